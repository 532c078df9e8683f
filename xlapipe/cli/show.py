"""`xlapipe show`: the plan of a dump; nothing is compiled."""

import argparse
from pathlib import Path

from xlapipe.cli.options import PATH_HELP, Commands, at_least_one
from xlapipe.cli.output import print_json, print_lines


def add(commands: Commands) -> None:
    """Adds the command."""
    show = commands.add("show", _show, "Show the plan of a dump.")
    show.add_argument("path", type=Path, metavar="PATH", help=PATH_HELP)
    show.add_argument(
        "--time",
        action="store_true",
        help="also what the kernels must cost: bytes, operations, least time; measured times if "
        "the dump has a time_record.json",
    )
    show.add_argument(
        "--order",
        action="store_true",
        help="also how much of temp is held only by the order of instructions, by source line",
    )
    show.add_argument(
        "--why",
        metavar="KERNEL",
        help="what the predicted time of a kernel is made of",
    )
    show.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="predict times by a file of `xlapipe calibrate`; default: that of the GPU in xlapipe",
    )
    show.add_argument(
        "--trips",
        type=at_least_one,
        metavar="N",
        help="predict times with N trips of each loop whose number is unknown; default: 1",
    )
    show.add_argument(
        "--target",
        metavar="NAME",
        help="with --time: a GPU of `xlapipe targets`; default: the dump's",
    )


def _show(options: argparse.Namespace) -> int:
    from xlapipe.report.subjects import ShowOptions, TimeOptions, open_subject

    times = TimeOptions(options.target, options.calibration, options.trips)
    subject = open_subject(options.path, times)
    shown = ShowOptions(time=options.time, order=options.order, kernel=options.why)
    if options.json and options.why is None:
        print_json(subject.figures(shown))
    else:
        print_lines(subject.lines(shown))
    return 0
