"""Time probes of kernels on the attached GPU, for predicted times; takes up to ten minutes.

xlapipe device calibrate --target attached --out gpu.json
    in up to ten minutes
xlapipe show DIR --time --calibration gpu.json
    predict with it
"""

import argparse
import sys
import time
from pathlib import Path

from xlapipe.cli.options import Options
from xlapipe.cli.output import print_json
from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.errors import TargetError, XlapipeError

OPTIONS: Options = {
    "--target NAME": "`attached`",
    "--from RECORD": {
        "dest": "record",
        "help": "derive it again from what was measured, e.g. by a newer xlapipe; needs no GPU",
    },
    "--out FILE": {"required": True, "help": "for `show --time --calibration FILE`"},
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.files.writing import write_files
    from xlapipe.run.calibration.fit import derived_calibration

    started = time.perf_counter()
    if (options.target is None) == (options.record is None):
        raise XlapipeError(
            "device calibrate takes --target attached or --from RECORD; fix: give one of them"
        )
    left_out: list[str] = []
    record: Path | None = options.record
    if record is None:
        record, left_out = _timed(options)
    calibration = derived_calibration(record)
    write_files({options.out: calibration.to_text().encode()})
    kinds = [calibration.of_kind(kind) for kind in calibration.lines]
    figures = {
        "out": str(options.out),
        "record": str(record),
        "device": calibration.device,
        "programs": len({name for kind in kinds for name in kind.program}),
        "kernels": sum(len(kind.at) for kind in kinds),
        "left_out": left_out,
        "seconds": time.perf_counter() - started,
    }
    if options.json:
        print_json(figures)
        return 0
    for line in left_out:
        print(line)
    print(
        f"{options.out}: {figures['kernels']:,} kernels of {figures['programs']:,} programs on "
        f"{calibration.device}, from {record}, in {figures['seconds']:.0f} s"
    )
    return 0


def _timed(options: argparse.Namespace) -> tuple[Path, list[str]]:
    """Write a record of the attached GPU; returns its path, and what was left out."""
    if options.target != "attached":
        raise TargetError(
            f"--target {options.target}: expected `attached`, because kernels are timed on a GPU; "
            "fix: run it where the GPU is, with --target attached"
        )
    from rich.console import Console

    from xlapipe.cli.progress import Bar
    from xlapipe.files.writing import write_files
    from xlapipe.run.calibration.probes import probes_for_attached
    from xlapipe.run.calibration.record import record_of
    from xlapipe.run.calibration.time_programs import time_probes

    programs = probes_for_attached()
    left_out: list[str] = []
    command, console = ["xlapipe", *sys.argv[1:]], Console(stderr=True)
    path: Path = options.out.with_suffix(".record.tar.xz")
    with (
        scratch_folder() as folder,
        Bar("calibrating", 2 * len(programs), console=console, silent=options.json) as bar,
    ):
        about, timed = time_probes(programs, folder, command, left_out.append, bar.add_done)
        write_files({path: record_of(folder, about, timed)})
    return path, left_out
