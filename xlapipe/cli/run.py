"""`xlapipe run`: runs a built executable on the attached GPUs."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.cli.options import Commands, at_least_one
from xlapipe.cli.output import print_json

if TYPE_CHECKING:
    from xlapipe.running.run_result import RunResult


def add(commands: Commands) -> None:
    """Adds the command."""
    run = commands.add("run", _run, "Run a built executable on the attached GPUs.")
    run.add_argument("path", type=Path, metavar="DIR", help="a folder written by `xlapipe build`")
    run.add_argument(
        "--inputs",
        default="random:0",
        metavar="INPUTS",
        help="random:SEED, or an .npz file with the arguments' paths as keys; default: %(default)s",
    )
    run.add_argument(
        "--repeat", type=at_least_one, default=10, metavar="N", help="timed calls; default: 10"
    )


def _run(options: argparse.Namespace) -> int:
    from xlapipe.running.rendezvous import this_member
    from xlapipe.running.run import run

    member = this_member()
    result = run(options.path, inputs=options.inputs, repeat=options.repeat, member=member)
    if member is not None and member.process > 0:
        return 0  # process 0 prints the result of all
    if options.json:
        print_json(result.to_json())
    else:
        for line in _result_lines(options.path, result):
            print(line)
    return 0


def _result_lines(path: Path, result: "RunResult") -> Iterator[str]:
    count = f"{len(result.devices)} × " if len(result.devices) > 1 else ""
    processes = f" in {result.processes} processes" if result.processes > 1 else ""
    yield f"{path} on {count}{result.device}{processes}, {result.autotuning}"
    yield f"  loaded in {result.load_seconds:.3f} s"
    median = result.median_call_seconds
    if median is not None:
        yield f"  {median * 1000:.3f} ms per call (median of {len(result.call_seconds)})"
    for output in result.outputs:
        yield f"  {output.path} {output.dtype}{list(output.shape)} sha256 {output.sha256}"
    yield from _memory_lines(result)


def _memory_lines(result: "RunResult") -> Iterator[str]:
    from dataclasses import asdict

    worst = result.worst
    if worst.memory is None:
        return
    if len(result.devices) > 1:
        yield f"  device {worst.device}, which used the most memory:"
    for name, value in asdict(worst.memory).items():
        yield f"  {name:<22} {value:>18,}"
    yield f"  unexplained: {worst.memory.unexplained_share:.3%} of the measured bytes"
    if worst.outside_before_bytes is not None and worst.outside_after_bytes is not None:
        yield (
            f"  outside XLA's allocator: {worst.outside_before_bytes:,} B before the first call, "
            f"{worst.outside_after_bytes:,} B after it"
        )
