"""`run` and `target capture`: what needs the GPU itself."""

import argparse
from pathlib import Path

from xlapipe.cli.options import Commands, at_least_one, print_json


def add(commands: Commands) -> None:
    """Adds the commands of this module."""
    run = commands.add("run", _run, "Run a built executable on the attached GPU.")
    run.add_argument("path", type=Path, metavar="DIR", help="a folder that `build` made")
    run.add_argument("--inputs", default="random:0", help="random:SEED or FILE.npz")
    run.add_argument("--repeat", type=at_least_one, default=10, metavar="N", help="timed calls")

    target = commands.group("target", "Capture the configuration of a GPU.")
    text = "Write the attached GPU's target config, with its provenance."
    capture = target.add("capture", _target_capture, text)
    capture.add_argument("--out", type=Path, help="default: print it")


def _run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from xlapipe.run import run

    result = run(options.path, inputs=options.inputs, repeat=options.repeat)
    figures = {
        **asdict(result),
        "median_call_seconds": result.median_call_seconds,
    }
    if options.json:
        print_json(figures)
        return 0
    print(f"{options.path} on {result.device}, {result.autotuning}")
    print(f"  loaded in {result.load_seconds:.3f} s")
    median = result.median_call_seconds
    if median is not None:
        print(f"  {median * 1000:.3f} ms per call (median of {len(result.call_seconds)})")
    for output in result.outputs:
        print(f"  {output.path} {output.dtype}{list(output.shape)} sha256 {output.sha256}")
    if result.memory is not None:
        for name, value in asdict(result.memory).items():
            print(f"  {name:<22} {value:>18,}")
        print(f"  unexplained: {result.memory.unexplained_share:.3%} of what was measured")
    return 0


def _target_capture(options: argparse.Namespace) -> int:
    from xlapipe.capture_target import captured_target, write_target

    captured = captured_target()
    if options.out is not None:
        write_target(options.out, captured)
    if options.json:
        print_json(captured.to_json())
    elif options.out is None:
        print(captured.text(), end="")
    else:
        print(f"{options.out}: {captured.device}, driver {captured.driver or 'unknown'}")
    return 0
