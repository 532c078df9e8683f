"""`xlapipe calibrate`: times the kinds of kernels that predicted times are made of."""

import argparse
import sys
import time
from pathlib import Path

from xlapipe.cli.options import Commands
from xlapipe.cli.output import print_json
from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.errors import TargetError


def add(commands: Commands) -> None:
    """Adds the command."""
    calibrate = commands.add(
        "calibrate",
        _calibrate,
        "Time probes of kernels on the attached GPU, for predicted times; takes up to ten minutes.",
    )
    calibrate.add_argument("--target", required=True, help="`attached`")
    calibrate.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="for `show --time --calibration FILE`",
    )


def _calibrate(options: argparse.Namespace) -> int:
    if options.target != "attached":
        raise TargetError(
            f"--target {options.target}: expected `attached`, because kernels are timed on a GPU; "
            "fix: run it where the GPU is, with --target attached"
        )
    from rich.console import Console

    from xlapipe.cli.progress import Bar
    from xlapipe.files.writing import write_files
    from xlapipe.run.calibration.calibrate import calibrate
    from xlapipe.run.calibration.probes import probes_for_attached

    console = Console(stderr=True)
    started = time.perf_counter()
    programs = probes_for_attached()
    count = len(programs)
    left_out: list[str] = []
    command = ["xlapipe", *sys.argv[1:]]
    with (
        scratch_folder() as folder,
        Bar("calibrating", 2 * count, console=console, silent=options.json) as bar,
    ):
        calibration = calibrate(programs, folder, command, left_out.append, bar.advance)
    write_files({options.out: calibration.to_text().encode()})
    seconds = time.perf_counter() - started
    if options.json:
        print_json(
            {
                "out": str(options.out),
                "device": calibration.device,
                "programs": count,
                "kernels": len(calibration.kernels),
                "left_out": left_out,
                "seconds": seconds,
            }
        )
        return 0
    for line in left_out:
        print(line)
    print(
        f"{options.out}: {len(calibration.kernels):,} kernels of {count:,} programs on "
        f"{calibration.device}, in {seconds:.0f} s"
    )
    return 0
