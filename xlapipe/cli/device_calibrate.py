"""Time probes of kernels on the attached GPU, for predicted times; takes up to ten minutes.

xlapipe device calibrate --target attached --out gpu.json
    in up to ten minutes
xlapipe show DIR --time --calibration gpu.json
    predict with it
"""

import argparse
import sys
import time

from xlapipe.cli.options import Options
from xlapipe.cli.output import print_json
from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.errors import TargetError

OPTIONS: Options = {
    "--target NAME": {"required": True, "help": "`attached`"},
    "--out FILE": {"required": True, "help": "for `show --time --calibration FILE`"},
}


def run(options: argparse.Namespace) -> int:
    started = time.perf_counter()
    if options.target != "attached":
        raise TargetError(
            f"--target {options.target}: expected `attached`, because kernels are timed on a GPU; "
            "fix: run it where the GPU is, with --target attached"
        )
    from rich.console import Console

    from xlapipe.cli.progress import Bar
    from xlapipe.devices.targets.device import device_of_config
    from xlapipe.files.writing import write_files
    from xlapipe.run.calibration.fit import calibration_of
    from xlapipe.run.calibration.probes import probes_for_attached
    from xlapipe.run.calibration.profiles import profile_of
    from xlapipe.run.calibration.time_programs import time_probes

    programs = probes_for_attached()
    left_out: list[str] = []
    command, console = ["xlapipe", *sys.argv[1:]], Console(stderr=True)
    with (
        scratch_folder() as folder,
        Bar("calibrating", 2 * len(programs), console=console, silent=options.json) as bar,
    ):
        about, config, timed = time_probes(programs, folder, command, left_out.append, bar.add_done)
        profiles = [profile_of(folder, name, calls, about["gpus"]) for name, calls in timed.items()]
    device = device_of_config(config)
    if device is None:
        raise TargetError(
            f"{about['device']}: its configuration states no bandwidth; fix: update jax"
        )
    calibration = calibration_of(profiles, device, about)
    write_files({options.out: calibration.to_text().encode()})
    kinds = [calibration.of_kind(kind) for kind in calibration.lines]
    figures = {
        "out": str(options.out),
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
        f"{calibration.device}, in {figures['seconds']:.0f} s"
    )
    return 0
