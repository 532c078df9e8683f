"""`--build-executables`: the options of a build, and what it made."""

import argparse
from typing import Any

from rich.console import Console

from models.qwen3.checkpoint.config_json import read_config, read_generation_config
from models.qwen3.cli.options import DEFAULT_NEW_TOKENS, refuse_mixed, settings_of
from models.qwen3.generation.build_prebuilt import build_executables
from models.qwen3.generation.load_prebuilt import Executables
from models.qwen3.generation.sizes import (
    GPU_STEPS,
    GenerationSizes,
    bucket_of,
    cache_length_for,
)
from xlapipe.compiling.make_jobs import DEFAULT_TARGET
from xlapipe.compiling.pipeline import Made
from xlapipe.errors import XlapipeError
from xlapipe.report.figures import dump_row

DEFAULT_PROMPT_LENGTH = 512


def build_command(options: argparse.Namespace) -> dict[str, Any]:
    """Builds, and returns what to print as JSON, with a `text` to print instead."""
    refuse_mixed(options)
    if options.checkpoint is None:
        raise XlapipeError("--build-executables takes the model from --checkpoint")
    config = read_config(options.checkpoint, dtype=options.dtype)
    settings = settings_of(options, read_generation_config(options.checkpoint))
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
            f"--prompt-length {max(lengths):,} is more than --cache-length {cache_length:,}"
        )
    buckets = tuple(sorted({bucket_of(length, cache_length) for length in lengths}))
    sizes = GenerationSizes(
        batch=batch,
        cache_length=cache_length,
        bucket=buckets[-1],
        steps=GPU_STEPS,
        candidates=settings.candidates(config.vocab_size),
    )
    rows: dict[str, Any] = {}
    # Compiling takes minutes for a large model: say on stderr how far it is.
    with Console(stderr=True, quiet=options.json).status("compiling") as status:

        def on_built(name: str, made: Made) -> None:
            rows[name] = dump_row(made.dump, changed=made.changed, seconds=made.seconds)
            status.update(f"compiling; {name} took {made.seconds:.0f} s")

        asked_for = Executables(
            path=options.build_executables, config=config, sizes=sizes, buckets=buckets
        )
        build_executables(
            options.checkpoint,
            asked_for,
            target=options.target or DEFAULT_TARGET,
            gemm=options.gemm,
            locks=options.autotune_lock or (),
            hopper_kernels=options.hopper_kernels,
            on_built=on_built,
        )
    told = (
        f"{name}: {row['total_allocation_bytes']:,} B, {row['autotuning']}, its expectations hold"
        for name, row in rows.items()
    )
    return {
        "path": str(options.build_executables),
        "batch": batch,
        "cache_length": cache_length,
        "buckets": list(buckets),
        "executables": rows,
        "text": "\n".join(
            [f"{options.build_executables}: {batch} × {cache_length:,} slots", *told]
        ),
    }
