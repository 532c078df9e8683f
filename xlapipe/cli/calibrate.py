"""`xlapipe calibrate`: times the kinds of kernels that predicted times are made of."""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xlapipe.cli.options import Commands
from xlapipe.cli.output import print_json
from xlapipe.environment.scratch import scratch_folder
from xlapipe.errors import TargetError


def add(commands: Commands) -> None:
    """Adds the command."""
    calibrate = commands.add(
        "calibrate",
        _calibrate,
        "Time small programs on the attached GPU, for predicted times; takes up to ten minutes.",
    )
    calibrate.add_argument("--target", required=True, help="`attached`")
    calibrate.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="for `show --time --calibration FILE`",
    )
    calibrate.add_argument(
        "--only",
        metavar="REGEX",
        help="time only programs with such a name, and add their kernels to a calibration",
    )
    calibrate.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="with --only: the calibration; default: the package's own of this GPU",
    )
    calibrate.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="keep XLA's files and the profile of each program there",
    )


def _calibrate(options: argparse.Namespace) -> int:
    if options.target != "attached":
        raise TargetError(
            f"--target {options.target}: expected `attached`, because kernels are timed on a GPU; "
            "fix: run it where the GPU is, with --target attached"
        )
    if options.calibration is not None and options.only is None:
        raise TargetError(
            "--calibration: expected with --only, since without it all is timed; fix: add --only"
        )
    from rich.console import Console

    from xlapipe.cli.progress import Bar
    from xlapipe.files.writing import write_files
    from xlapipe.running.calibration.calibrate import (
        base_for_attached,
        calibrate,
        chosen_programs,
    )

    console = Console(stderr=True)
    started = time.perf_counter()
    base = None if options.only is None else base_for_attached(options.calibration)
    programs = chosen_programs(options.only or "")
    count = len(programs)
    left_out: list[str] = []
    command = ["xlapipe", *sys.argv[1:]]
    with (
        _folder(options.keep) as folder,
        Bar("calibrating", 2 * count, console=console, silent=options.json) as bar,
    ):
        calibration = calibrate(programs, folder, command, left_out.append, bar.advance, base)
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


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with scratch_folder() as folder:
        yield folder
