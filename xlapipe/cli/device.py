"""`run`, `launch` and `target capture`: what needs the GPU itself."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.cli.options import Commands, at_least_one, print_json
from xlapipe.running.rendezvous import DEFAULT_WAIT_SECONDS

if TYPE_CHECKING:
    from xlapipe.running.run_result import RunResult

_LAUNCH_HELP = (
    "Run a command in one process per GPU of this host; the same on every host, with its own "
    "--host-index."
)


def add(commands: Commands) -> None:
    """Adds the commands of this module."""
    run = commands.add("run", _run, "Run a built executable on the attached GPUs.")
    run.add_argument("path", type=Path, metavar="DIR", help="a folder that `build` made")
    run.add_argument("--inputs", default="random:0", help="random:SEED or FILE.npz")
    run.add_argument("--repeat", type=at_least_one, default=10, metavar="N", help="timed calls")

    launch = commands.add("launch", _launch, _LAUNCH_HELP)
    launch.add_argument(
        "--processes", type=at_least_one, required=True, metavar="N", help="GPUs of this host"
    )
    launch.add_argument("--hosts", type=at_least_one, default=1, metavar="N", help="default: 1")
    launch.add_argument(
        "--host-index", type=int, default=0, metavar="I", help="of this host, from 0; default: 0"
    )
    launch.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="host 0 and a free port there; default: this host alone, any port",
    )
    launch.add_argument(
        "--wait",
        type=float,
        default=DEFAULT_WAIT_SECONDS,
        metavar="S",
        help="how long processes wait for each other; default: 60",
    )
    launch.add_argument("program", nargs="+", metavar="-- COMMAND", help="what each process runs")

    target = commands.group("target", "Capture the configuration of a GPU.")
    text = "Write the attached GPU's target config, with its provenance."
    capture = target.add("capture", _target_capture, text)
    capture.add_argument("--out", type=Path, help="default: print it")


def _run(options: argparse.Namespace) -> int:
    from xlapipe.running.rendezvous import this_member
    from xlapipe.running.run import run

    member = this_member()
    result = run(options.path, inputs=options.inputs, repeat=options.repeat, member=member)
    if member is not None and member.process > 0:
        return 0  # process 0 tells of all
    if options.json:
        print_json(result.to_json())
    else:
        _print_run(options.path, result)
    return 0


def _print_run(path: Path, result: "RunResult") -> None:
    from dataclasses import asdict

    several = len(result.devices) > 1
    count = f"{len(result.devices)} × " if several else ""
    processes = f" in {result.processes} processes" if result.processes > 1 else ""
    print(f"{path} on {count}{result.device}{processes}, {result.autotuning}")
    print(f"  loaded in {result.load_seconds:.3f} s")
    median = result.median_call_seconds
    if median is not None:
        print(f"  {median * 1000:.3f} ms per call (median of {len(result.call_seconds)})")
    for output in result.outputs:
        print(f"  {output.path} {output.dtype}{list(output.shape)} sha256 {output.sha256}")
    worst = result.worst
    if worst.memory is None:
        return
    if several:
        print(f"  device {worst.device}, which took most:")
    for name, value in asdict(worst.memory).items():
        print(f"  {name:<22} {value:>18,}")
    print(f"  unexplained: {worst.memory.unexplained_share:.3%} of what was measured")
    if worst.outside_before_bytes is not None and worst.outside_after_bytes is not None:
        print(
            f"  beside XLA's allocator {worst.outside_before_bytes:,} B before the first call, "
            f"{worst.outside_after_bytes:,} B after it"
        )


def _launch(options: argparse.Namespace) -> int:
    from xlapipe.running.launch import Launch, launch

    return launch(
        Launch(
            command=tuple(options.program),
            processes=options.processes,
            hosts=options.hosts,
            host_index=options.host_index,
            coordinator=options.coordinator,
            wait_seconds=options.wait,
        )
    )


def _target_capture(options: argparse.Namespace) -> int:
    from xlapipe.running.capture_target import captured_target, write_target

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
