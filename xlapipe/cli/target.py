"""`xlapipe target capture`: the target config of the attached GPU."""

import argparse
from pathlib import Path

from xlapipe.cli.options import Commands
from xlapipe.cli.output import print_json


def add(commands: Commands) -> None:
    """Adds the commands of the group `target`."""
    target = commands.group("target", "Capture the configuration of a GPU.")
    text = "Write the attached GPU's target config, with the device and driver it comes from."
    capture = target.add("capture", _capture, text)
    capture.add_argument("--out", type=Path, metavar="FILE", help="default: print it")


def _capture(options: argparse.Namespace) -> int:
    from xlapipe.run.capture_target import captured_target, write_target

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
