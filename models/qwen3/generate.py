"""`python -m models.qwen3.generate`: generates text with a Qwen3 checkpoint.

Exit codes: 0 success, 2 bad input.
"""

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from models.command import run_command
from models.qwen3.cli.timeline import Timeline


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    timeline = Timeline()
    timeline.mark("command_started")
    options = _parser().parse_args(arguments)
    return run_command(
        lambda: _run(options, timeline), program="generate", json_output=options.json
    )


def _run(options: argparse.Namespace, timeline: Timeline) -> int:
    if options.build_executables is not None:
        from models.qwen3.cli.build import build_command

        built = build_command(options)
        print(json.dumps(built) if options.json else built["text"])
        return 0
    from models.qwen3.cli.run import generate_command

    result = generate_command(options, timeline=timeline, out=sys.stdout)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models.qwen3.generate",
        description="Generate text with a dense Qwen3 checkpoint in Hugging Face format.",
        epilog="Decoding is greedy unless --temperature, --top-k, --top-p or --seed is given. If "
        "any of them is given, the others default to the checkpoint's generation_config.json.",
    )
    _add_generation_options(parser.add_argument)
    build = parser.add_argument_group("building executables in advance, with or without a GPU")
    _add_build_options(build.add_argument)
    return parser


def _add_generation_options(add: Callable[..., argparse.Action]) -> None:
    add(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="folder with config.json, safetensors and tokenizer.json; default: a small model "
        "with random weights",
    )
    add("--prompt", action="append", metavar="TEXT", help="repeatable; prompts run as one batch")
    add("--prompt-ids", action="append", metavar="1,2,3", help="token ids of a prompt; repeatable")
    add("--chat", action="store_true", help="insert prompts into the checkpoint's chat template")
    add("--system", metavar="TEXT", help="system message; with --chat only")
    add("--no-thinking", action="store_true", help="enable_thinking=False; with --chat only")
    add("--max-new-tokens", type=int, metavar="N", help="for each prompt; default: 64")
    add("--greedy", action="store_true", help="take the most probable token; the default")
    add("--temperature", type=float, metavar="T", help="divide logits by T, above 0")
    add("--top-k", type=int, metavar="K", help="keep the K most probable tokens; 0 keeps all")
    add(
        "--top-p",
        type=float,
        metavar="P",
        help="nucleus sampling: keep the top tokens with total probability P, in (0, 1]",
    )
    add("--seed", type=int, metavar="N", help="random seed; same seed, same tokens; default: 0")
    add("--dtype", choices=("float32", "bfloat16"), help="default: the checkpoint's dtype")
    add(
        "--cache-length",
        type=int,
        metavar="S",
        help="cache slots per sequence; default: enough for prompts and new tokens",
    )
    add(
        "--memory-limit",
        type=int,
        metavar="BYTES",
        help="available device memory; default: as reported by the device",
    )
    add(
        "--no-hopper-kernels",
        dest="hopper_kernels",
        action="store_false",
        help="on Hopper, run prompts with the kernels for any GPU",
    )
    add(
        "--persistent-kernel",
        action=argparse.BooleanOptionalAction,
        help="decode one sequence with one kernel for all layers; default: where GPU and model "
        "allow it",
    )
    add("--executables", type=Path, metavar="DIR", help="run executables of --build-executables")
    add("--json", action="store_true", help="print JSON")


def _add_build_options(add: Callable[..., argparse.Action]) -> None:
    add("--build-executables", type=Path, metavar="DIR", help="compile into DIR, and exit")
    add("--target", help="a target of `xlapipe targets`, or `attached`; default: h200")
    add(
        "--gemm",
        choices=("auto", "cublas", "triton"),
        help="GEMM policy; default: auto with --target attached, else cublas",
    )
    add(
        "--autotune-lock",
        type=Path,
        action="append",
        metavar="PATH",
        help="a program's autotune lock, or a folder of locks; repeatable",
    )
    add("--batch", type=int, metavar="N", help="prompts per batch; default: 1")
    add(
        "--prompt-length",
        type=int,
        action="append",
        metavar="T",
        help="longest prompt in tokens, rounded up to a power of two; repeatable; default: 512",
    )


if __name__ == "__main__":
    gc.disable()  # modules and arrays are many objects, but no garbage
    sys.exit(main())
