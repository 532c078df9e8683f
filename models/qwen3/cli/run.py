"""Runs a generation: from the command's options to text on the terminal."""

import argparse
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.qwen3.argument_bytes import cache_bytes, weight_bytes
from models.qwen3.checkpoint.config_files import read_config, read_generation_config
from models.qwen3.cli.options import (
    DEFAULT_NEW_TOKENS,
    Prompts,
    check_combination,
    prompts_of,
    settings_of,
)
from models.qwen3.cli.output import TextOutput, TextSink, note
from models.qwen3.cli.timeline import Timeline
from models.qwen3.config import Qwen3Config
from models.qwen3.generation.prebuilt_index import PrebuiltExecutables, read_index
from models.qwen3.generation.sampling_settings import SamplingSettings
from models.qwen3.generation.static_sizes import (
    CPU_STEPS,
    GPU_STEPS,
    GenerationSizes,
    bucket_of,
    cache_length_for,
    check_lengths,
    check_prompts,
)
from xlapipe import XlapipeError

if TYPE_CHECKING:
    from models.qwen3.generation.compiled_steps import CompiledGeneration
    from models.qwen3.generation.generator import Generated
    from models.qwen3.generation.jax_device import JaxDevice


# Weights and cache of a model whose memory pool grows as needed.
_SMALL_MODEL_BYTES = 8 << 30


def generate_command(
    options: argparse.Namespace, *, timeline: Timeline, out: TextSink
) -> dict[str, Any]:
    """Generates, writes the text to `out` unless --json is given, and returns the JSON output."""
    check_combination(options)
    with _checkpoint(options) as checkpoint:
        return _run(options, checkpoint, timeline, out)


@dataclass(frozen=True)
class _Request:
    """What to generate, checked as far as possible without a device."""

    checkpoint: Path
    config: Qwen3Config
    prompts: Prompts
    settings: SamplingSettings
    eos_token_ids: tuple[int, ...]
    max_new_tokens: int
    cache_length: int
    prebuilt: PrebuiltExecutables | None
    hopper_kernels: bool
    persistent_kernel: bool

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(map(len, self.prompts.token_ids))


def _run(
    options: argparse.Namespace, checkpoint: Path, timeline: Timeline, out: TextSink
) -> dict[str, Any]:
    request = _request(options, checkpoint)
    _grow_memory_pool(request)
    if request.prebuilt is not None:
        compiled, device = _loaded(request, request.prebuilt, timeline)
    else:
        compiled, device = _compiled(request, timeline)
    timeline.mark("device_ready")
    compiled.when_loaded(lambda: timeline.mark("executables_loaded"))
    # Executables that were built in advance are now being loaded.
    from models.qwen3.generation.device_memory import check_fits, memory_limit, peak_bytes
    from models.qwen3.generation.generator import Generator

    limit = options.memory_limit
    check_fits(request.config, compiled, memory_limit(device) if limit is None else limit)

    def on_leaf(path: str) -> None:
        compiled.check_loaded(wait=False)

    with ThreadPoolExecutor(1, "allocating the cache") as pool:
        allocated = pool.submit(device.empty_cache, request.config, compiled.sizes)
        allocated.add_done_callback(lambda _: timeline.mark("cache_allocated"))
        load_started = timeline.mark("weights_started")
        params = device.load_params(request.checkpoint, request.config, on_leaf)
    load_seconds = timeline.mark("weights_loaded") - load_started
    compiled.check_loaded(wait=True)
    cache = allocated.result()
    timeline.mark("prompt_started")
    text_output = TextOutput(request.prompts, out, silent=options.json)

    def on_tokens(index: int, token_ids: list[int]) -> None:
        if "first_token" not in timeline.seconds:
            timeline.mark("first_token")
        text_output.add(index, token_ids)

    generated = Generator(request.config, compiled, params, device).generate(
        request.prompts.token_ids,
        max_new_tokens=request.max_new_tokens,
        settings=request.settings,
        eos_token_ids=request.eos_token_ids,
        on_tokens=on_tokens,
        cache=cache,
    )
    text_output.finish(generated)
    return {
        "outputs": _outputs(request.prompts, generated),
        "tokens_per_second": generated.tokens_per_second,
        "peak_bytes": peak_bytes(device),
        "planned_bytes": compiled.needed_bytes,
        "load_seconds": load_seconds,
        "prefill_seconds": generated.prefill_seconds,
        "first_token_seconds": timeline.seconds["first_token"]
        - timeline.seconds["command_started"],
        "timeline_seconds": timeline.seconds,
        "device": device.device_kind,
        "implementations": compiled.implementations,
        "dtype": request.config.dtype,
        "cache_length": compiled.sizes.cache_length,
        "random_weights": options.checkpoint is None,
    }


def _outputs(prompts: Prompts, generated: "Generated") -> list[dict[str, Any]]:
    tokenizer = prompts.tokenizer
    return [
        {
            "prompt_ids": prompt,
            "token_ids": token_ids,
            "text": None if tokenizer is None else tokenizer.decode(token_ids),
            "finish_reason": finish,
        }
        for prompt, token_ids, finish in zip(
            prompts.token_ids, generated.token_ids, generated.finish, strict=True
        )
    ]


def _request(options: argparse.Namespace, checkpoint: Path) -> _Request:
    config = read_config(checkpoint, dtype=options.dtype)
    defaults = read_generation_config(checkpoint)
    settings = settings_of(options, defaults)
    prompts = prompts_of(options, checkpoint, config)
    check_prompts(prompts.token_ids, config.vocab_size)
    folder, count = options.executables, options.max_new_tokens
    prebuilt = None if folder is None else read_index(folder, config)
    max_new_tokens = DEFAULT_NEW_TOKENS if count is None else count
    if prebuilt is not None:
        cache_length = prebuilt.sizes.cache_length
        if options.cache_length not in (None, cache_length):
            raise XlapipeError(
                f"--cache-length {options.cache_length}: the executables are compiled for "
                f"{cache_length}; fix: leave it out"
            )
    elif options.cache_length is not None:
        cache_length = options.cache_length
    else:
        longest = max(map(len, prompts.token_ids))
        cache_length = cache_length_for(longest, max(max_new_tokens, 1))
    check_lengths(prompts.token_ids, cache_length, max_new_tokens)
    return _Request(
        checkpoint=checkpoint,
        config=config,
        prompts=prompts,
        settings=settings,
        eos_token_ids=defaults.eos_token_ids,
        max_new_tokens=max_new_tokens,
        cache_length=cache_length,
        prebuilt=prebuilt,
        hopper_kernels=options.hopper_kernels,
        persistent_kernel=options.persistent_kernel is not False,
    )


def _grow_memory_pool(request: _Request) -> None:
    """Lets XLA's memory pool grow as needed if the model is small, unless the user chose.

    Otherwise XLA's client allocates three quarters of the GPU's memory at first use. On an H200
    that takes longer than reading the weights of such a model. A pool that grows may lose memory to
    fragments, which matters only to models that fill the GPU.
    """
    config, prebuilt = request.config, request.prebuilt
    sequences = len(request.prompts.token_ids) if prebuilt is None else prebuilt.sizes.batch
    needed_bytes = weight_bytes(config) + cache_bytes(
        config, batch=sequences, cache_length=request.cache_length
    )
    if needed_bytes < _SMALL_MODEL_BYTES:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _loaded(
    request: _Request, prebuilt: PrebuiltExecutables, timeline: Timeline
) -> tuple["CompiledGeneration", "JaxDevice"]:
    """The steps that were built in advance, and the GPU to run them on.

    The client is created, and loading starts, in a thread while the rest is imported.
    """
    from models.qwen3.generation.start_loading import start_loading

    with ThreadPoolExecutor(1, "starting to load") as pool:
        executables = pool.submit(start_loading, prebuilt, request.longest)
        executables.add_done_callback(lambda _: timeline.mark("loading_started"))
        from models.qwen3.generation.load_prebuilt import load_prebuilt

        timeline.mark("imports_done")
        return load_prebuilt(prebuilt, request.longest, executables.result())


def _compiled(request: _Request, timeline: Timeline) -> tuple["CompiledGeneration", "JaxDevice"]:
    """The steps compiled in this process, and the device to run them on."""
    # Imported here, because they import jax: bad options are reported without it.
    from models.first_device import first_device
    from models.qwen3.generation.compile_generation import compile_generation
    from models.qwen3.generation.jax_device import JaxDevice

    timeline.mark("imports_done")
    device = first_device()
    steps = CPU_STEPS if device.platform == "cpu" else GPU_STEPS
    sizes = GenerationSizes(
        batch=len(request.prompts.token_ids),
        cache_length=request.cache_length,
        bucket=bucket_of(request.longest, request.cache_length),
        steps=min(steps, max(request.max_new_tokens - 1, 1)),
        candidates=request.settings.candidates(request.config.vocab_size),
    )
    compiled = compile_generation(
        request.config,
        sizes,
        device,
        hopper_kernels=request.hopper_kernels,
        persistent_kernel=request.persistent_kernel,
    )
    return compiled, JaxDevice(device)


@contextmanager
def _checkpoint(options: argparse.Namespace) -> Iterator[Path]:
    """The checkpoint's folder, or a temporary one with random weights."""
    if options.checkpoint is not None:
        yield options.checkpoint
        return
    from models.qwen3.checkpoint.random_checkpoint import write_random_checkpoint

    note("no --checkpoint: using a small model with random weights; its text is meaningless")
    with tempfile.TemporaryDirectory(prefix="qwen3-random-") as scratch:
        yield write_random_checkpoint(Path(scratch) / "random")
