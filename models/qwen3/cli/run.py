"""From the options of a generation to tokens on the terminal."""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from models.qwen3.checkpoint.config_json import read_config, read_generation_config
from models.qwen3.cli.options import (
    DEFAULT_NEW_TOKENS,
    Prompts,
    prompts_of,
    refuse_mixed,
    settings_of,
)
from models.qwen3.cli.output import LoadingBar, Teller, note
from models.qwen3.config import Qwen3Config
from models.qwen3.generation.load_prebuilt import Executables, read_executables
from models.qwen3.generation.sampling_settings import Settings
from models.qwen3.generation.sizes import (
    CPU_STEPS,
    GPU_STEPS,
    GenerationSizes,
    bucket_of,
    cache_length_for,
    check_lengths,
    check_prompts,
)
from xlapipe.environment.machine import Machine
from xlapipe.errors import XlapipeError


def run_command(options: argparse.Namespace, *, started: float, out: TextIO) -> dict[str, Any]:
    """Generates, tells on `out` unless --json is given, and returns what to print as JSON.

    Args:
      started: time.perf_counter() when the command began.
    """
    refuse_mixed(options)
    with _checkpoint(options) as checkpoint:
        return _run(options, checkpoint, started, out)


@dataclass(frozen=True)
class _Request:
    """What is to be done, checked as far as it can be without a device."""

    checkpoint: Path
    config: Qwen3Config
    prompts: Prompts
    settings: Settings
    eos_token_ids: tuple[int, ...]
    max_new_tokens: int
    cache_length: int
    executables: Executables | None
    hopper_kernels: bool

    @property
    def longest(self) -> int:
        return max(map(len, self.prompts.token_ids))


def _run(
    options: argparse.Namespace, checkpoint: Path, started: float, out: TextIO
) -> dict[str, Any]:
    request = _request(options, checkpoint)
    # Not before all that can be refused without jax has been.
    from models.qwen3.checkpoint.load import checkpoint_bytes, load_params
    from models.qwen3.generation.fits_memory import memory_limit, peak_bytes, refuse_unless_fits
    from models.qwen3.generation.generator import Generator

    clock = time.perf_counter
    programs, device = _programs(request)
    limit = options.memory_limit
    refuse_unless_fits(request.config, programs, memory_limit(device) if limit is None else limit)
    loading = clock()
    with LoadingBar(checkpoint_bytes(checkpoint), silent=options.json) as bar:
        params = load_params(checkpoint, request.config, device=device, on_leaf=bar.leaf)
    load_seconds = clock() - loading
    first: list[float] = []
    tokenizer = request.prompts.tokenizer
    teller = Teller(request.prompts, request.max_new_tokens, out, silent=options.json)

    def on_tokens(index: int, token_ids: list[int]) -> None:
        first.append(clock() - started) if not first else None
        teller.tell(index, token_ids)

    with teller:
        generated = Generator(request.config, programs, params, device).generate(
            request.prompts.token_ids,
            max_new_tokens=request.max_new_tokens,
            settings=request.settings,
            eos_token_ids=request.eos_token_ids,
            on_tokens=on_tokens,
        )
    teller.tell_result(generated)
    return {
        "outputs": [
            {
                "prompt_ids": prompt,
                "token_ids": token_ids,
                "text": None if tokenizer is None else tokenizer.decode(token_ids),
                "finish_reason": finish,
            }
            for prompt, token_ids, finish in zip(
                request.prompts.token_ids, generated.token_ids, generated.finish, strict=True
            )
        ],
        "tokens_per_second": generated.tokens_per_second,
        "peak_bytes": peak_bytes(device),
        "planned_bytes": programs.needed_bytes,
        "load_seconds": load_seconds,
        "prefill_seconds": generated.prefill_seconds,
        "first_token_seconds": first[0],
        "device": device.device_kind,
        "dtype": request.config.dtype,
        "cache_length": programs.sizes.cache_length,
        "random_weights": options.checkpoint is None,
    }


def _request(options: argparse.Namespace, checkpoint: Path) -> _Request:
    config = read_config(checkpoint, dtype=options.dtype)
    defaults = read_generation_config(checkpoint)
    settings = settings_of(options, defaults)
    prompts = prompts_of(options, checkpoint, config)
    check_prompts(prompts.token_ids, config.vocab_size)
    built = None if options.executables is None else read_executables(options.executables, config)
    given = DEFAULT_NEW_TOKENS if options.max_new_tokens is None else options.max_new_tokens
    if built is not None:
        cache_length = built.sizes.cache_length
        if options.cache_length not in (None, cache_length):
            raise XlapipeError(
                f"--cache-length {options.cache_length}: the executables are for {cache_length}"
            )
    elif options.cache_length is not None:
        cache_length = options.cache_length
    else:
        longest = max(map(len, prompts.token_ids))
        cache_length = cache_length_for(longest, max(given, 1))
    check_lengths(prompts.token_ids, cache_length, given)
    return _Request(
        checkpoint=checkpoint,
        config=config,
        prompts=prompts,
        settings=settings,
        eos_token_ids=defaults.eos_token_ids,
        max_new_tokens=given,
        cache_length=cache_length,
        executables=built,
        hopper_kernels=options.hopper_kernels,
    )


def _programs(request: _Request) -> tuple[Any, Any]:
    """The programs, built ahead or compiled here, and the device to run them on."""
    if request.executables is not None:
        from models.qwen3.generation.prebuilt_index import load_programs

        return load_programs(request.executables, request.longest)
    from models.qwen3.generation.programs import compiled_here

    device = _device()
    steps = CPU_STEPS if device.platform == "cpu" else GPU_STEPS
    sizes = GenerationSizes(
        batch=len(request.prompts.token_ids),
        cache_length=request.cache_length,
        bucket=bucket_of(request.longest, request.cache_length),
        steps=min(steps, max(request.max_new_tokens - 1, 1)),
        candidates=request.settings.candidates(request.config.vocab_size),
    )
    hopper = request.hopper_kernels
    return compiled_here(request.config, sizes, device, hopper_kernels=hopper), device


def _device() -> Any:
    """jax's first device; its CUDA plugin, which would complain, is asked where there is a GPU."""
    import jax

    if not (Path("/dev/nvidia0").exists() or Machine.here().gpu() or "JAX_PLATFORMS" in os.environ):
        jax.config.update("jax_platforms", "cpu")
    return jax.devices()[0]


@contextmanager
def _checkpoint(options: argparse.Namespace) -> Iterator[Path]:
    """The checkpoint's folder, or one of random weights that is gone afterwards."""
    if options.checkpoint is not None:
        yield options.checkpoint
        return
    from models.qwen3.checkpoint.random import write_random_checkpoint

    note("no --checkpoint: a small model of random weights, whose text means nothing")
    with tempfile.TemporaryDirectory(prefix="qwen3-random-") as scratch:
        yield write_random_checkpoint(Path(scratch) / "random")
