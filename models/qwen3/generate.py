"""`python -m models.qwen3.generate`: text from a Qwen3 checkpoint. Prints; nothing else here does.

Exit codes: 0 good, 2 bad input.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from xlapipe.errors import XlapipeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    started = time.perf_counter()
    options = _parser().parse_args(arguments)
    try:
        if options.build_executables is not None:
            from models.qwen3.cli.build import build_command

            built = build_command(options)
            print(json.dumps(built) if options.json else built["text"])
        else:
            from models.qwen3.cli.run import run_command

            result = run_command(options, started=started, out=sys.stdout)
            if options.json:
                print(json.dumps(result, ensure_ascii=False))
        sys.stdout.flush()
    except XlapipeError as error:
        if options.json:
            print(json.dumps({"error": str(error)}, ensure_ascii=False))
        print(f"generate: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output went away (`| head`); leave stdout nothing to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("generate: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models.qwen3.generate",
        description="Generate text with a Qwen3 dense checkpoint in Hugging Face form.",
        epilog="Tokens are greedy unless --temperature, --top-k, --top-p or --seed is given; "
        "those of them that are not given are then as in the checkpoint's generation_config.json.",
    )
    add = parser.add_argument
    add(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="config.json, safetensors, tokenizer.json; default: a small one of random weights",
    )
    add("--prompt", action="append", metavar="TEXT", help="may be repeated: all are run at once")
    add("--prompt-ids", action="append", metavar="1,2,3", help="token ids instead; repeatable")
    add("--chat", action="store_true", help="put each prompt into the checkpoint's chat template")
    add("--system", metavar="TEXT", help="with --chat: what the system says")
    add("--no-thinking", action="store_true", help="with --chat: enable_thinking=False")
    add("--max-new-tokens", type=int, default=None, metavar="N", help="default: 64")
    add("--greedy", action="store_true", help="the likeliest token, which is the default")
    add("--temperature", type=float, metavar="T", help="above 0")
    add("--top-k", type=int, metavar="K", help="of the K likeliest; 0 for all")
    add("--top-p", type=float, metavar="P", help="of the likeliest that reach mass P; in (0, 1]")
    add("--seed", type=int, metavar="N", help="draws are the same for a seed; default: 0")
    add("--dtype", choices=("float32", "bfloat16"), help="default: the checkpoint's")
    add("--cache-length", type=int, metavar="S", help="slots for each sequence; default: enough")
    add("--memory-limit", type=int, metavar="BYTES", help="default: what the device tells")
    add(
        "--no-hopper-kernels",
        dest="hopper_kernels",
        action="store_false",
        help="on Hopper too, prompts by the kernels for any GPU",
    )
    add("--executables", type=Path, metavar="DIR", help="use what --build-executables made")
    add("--json", action="store_true", help="print JSON")
    build = parser.add_argument_group("building ahead, with or without a GPU")
    add = build.add_argument
    add("--build-executables", type=Path, metavar="DIR", help="compile into DIR, and stop")
    add("--target", default=None, help="a name of `xlapipe targets`, or `attached`; default: h200")
    add("--gemm", choices=("auto", "cublas", "triton"), help="default: auto if attached, or cublas")
    add(
        "--autotune-lock",
        type=Path,
        action="append",
        metavar="PATH",
        help="a device's autotune results for a program, or a folder of them; repeatable",
    )
    add("--batch", type=int, metavar="N", help="prompts at once; default: 1")
    add(
        "--prompt-length",
        type=int,
        action="append",
        metavar="T",
        help="longest prompt, rounded up to a power of two; repeatable; default: 512",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
