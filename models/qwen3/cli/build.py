"""`--build-executables`: builds executables in advance, and reports them."""

import argparse
from typing import Any

from rich.console import Console

from models.qwen3.checkpoint.config_files import read_config, read_generation_config
from models.qwen3.cli.options import DEFAULT_NEW_TOKENS, check_combination, settings_of
from models.qwen3.config import Qwen3Config
from models.qwen3.generation.build_prebuilt import build_prebuilt
from models.qwen3.generation.prebuilt_index import PrebuiltExecutables
from models.qwen3.generation.sampling_settings import SamplingSettings
from models.qwen3.generation.static_sizes import (
    GPU_STEPS,
    GenerationSizes,
    bucket_of,
    cache_length_for,
)
from xlapipe import StepPlan, XlapipeError

DEFAULT_PROMPT_LENGTH = 512
DEFAULT_TARGET = "h200"


def build_command(options: argparse.Namespace) -> dict[str, Any]:
    """Builds the executables, and returns the output as JSON, with its text form as `text`."""
    check_combination(options)
    if options.checkpoint is None:
        raise XlapipeError("--build-executables needs --checkpoint, which gives the model")
    config = read_config(options.checkpoint, dtype=options.dtype)
    settings = settings_of(options, read_generation_config(options.checkpoint))
    prebuilt = _requested(options, config, settings)
    rows: dict[str, Any] = {}
    # Compiling a large model takes minutes: shows progress on stderr.
    with Console(stderr=True, quiet=options.json).status("compiling") as status:

        def on_built(name: str, plan: StepPlan, seconds: float) -> None:
            path = str(prebuilt.path / name)
            rows[name] = {
                "total_allocation_bytes": plan.total_allocation_bytes,
                "autotuning": plan.figures["autotuning"],
                "path": path,
                "seconds": round(seconds, 2),
            }
            status.update(f"compiling; {name} took {seconds:.0f} s")

        build_prebuilt(
            prebuilt,
            target=options.target or DEFAULT_TARGET,
            gemm=options.gemm,
            locks=options.autotune_lock or (),
            hopper_kernels=options.hopper_kernels,
            persistent_kernel=options.persistent_kernel is not False,
            on_built=on_built,
        )
    sizes = prebuilt.sizes
    lines = [f"{prebuilt.path}: {sizes.batch} × {sizes.cache_length:,} slots"]
    for name, row in rows.items():
        total = f"{row['total_allocation_bytes']:,} B"
        lines.append(f"{name}: {total}, {row['autotuning']}, all expectations hold")
    return {
        "path": str(prebuilt.path),
        "batch": sizes.batch,
        "cache_length": sizes.cache_length,
        "buckets": list(prebuilt.buckets),
        "executables": rows,
        "text": "\n".join(lines),
    }


def _requested(
    options: argparse.Namespace, config: Qwen3Config, settings: SamplingSettings
) -> PrebuiltExecutables:
    """The executables that the options describe."""
    lengths = options.prompt_length or [DEFAULT_PROMPT_LENGTH]
    batch = 1 if options.batch is None else options.batch
    new_tokens = DEFAULT_NEW_TOKENS if options.max_new_tokens is None else options.max_new_tokens
    for name, value in (
        ("batch", batch),
        ("prompt-length", min(lengths)),
        ("max-new-tokens", new_tokens),
        ("cache-length", 1 if options.cache_length is None else options.cache_length),
    ):
        if value < 1:
            raise XlapipeError(f"--{name} {value}: expected 1 or more")
    cache_length = options.cache_length or cache_length_for(max(lengths), new_tokens)
    if max(lengths) > cache_length:
        raise XlapipeError(
            f"--prompt-length {max(lengths):,} is larger than --cache-length {cache_length:,}"
        )
    buckets = tuple(sorted({bucket_of(length, cache_length) for length in lengths}))
    sizes = GenerationSizes(
        batch=batch,
        cache_length=cache_length,
        bucket=buckets[-1],
        steps=GPU_STEPS,
        candidates=settings.candidates(config.vocab_size),
    )
    return PrebuiltExecutables(
        path=options.build_executables, config=config, sizes=sizes, buckets=buckets
    )
