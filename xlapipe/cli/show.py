"""`xlapipe show`: the plan of a dump; nothing is compiled."""

import argparse
import os
from pathlib import Path

from xlapipe.cli.options import (
    PATH_HELP,
    Commands,
    add_network_option,
    at_least_one,
    multiple,
    target_names,
)
from xlapipe.cli.output import print_json, print_lines, print_text, screen_width
from xlapipe.errors import XlapipeError


def add(commands: Commands) -> None:
    """Adds the command."""
    show = commands.add("show", _show, "Show the plan of a dump, on one screen.")
    show.add_argument("path", type=Path, metavar="PATH", help=PATH_HELP)
    show.add_argument(
        "names",
        nargs="*",
        default=[],
        metavar="NAME",
        help="what a source line, a value or an argument holds, who makes it, until when it is "
        "kept: gpt.py:63, fusion.12, params",
    )
    for option, text in (
        ("allocations", "totals, and allocations with their contents"),
        ("donation", "aliases, and the outcome of each donation"),
        ("gemms", "matrix products by backend, shapes and source line"),
        ("collectives", "what devices exchange, and what is computed meanwhile"),
        (
            "time",
            "what the kernels must cost and are predicted to take; measured times if the dump has "
            "a time_record.json",
        ),
        ("order", "how much of temp is held only by the order of instructions, by source line"),
        ("all", "every part of the plan but --time and --order"),
    ):
        show.add_argument(f"--{option}", action="store_true", help=text)
    show.add_argument(
        "--module",
        metavar="NAME",
        help="of a folder with many modules: the one whose file's name contains NAME, the largest "
        "of several; of torch Inductor's graphs, those",
    )
    show.add_argument(
        "--why",
        metavar="KERNEL",
        help="what the predicted time of a kernel is made of",
    )
    show.add_argument(
        "--timed",
        type=Path,
        metavar="FOLDER",
        help="predict kernels that were timed before by their times: dumps with time records",
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
        "--host",
        type=multiple,
        metavar="FACTOR",
        default=1.0,
        help="predict times with a host that takes FACTOR times as long for launches and calls as "
        "the one that the calibration was timed on",
    )
    show.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the predicted timeline as a Chrome trace, for Perfetto",
    )
    show.add_argument(
        "--target",
        type=target_names,
        metavar="NAME",
        help="with --time: a GPU of `xlapipe targets`; default: the dump's",
    )
    add_network_option(show)


def _show(options: argparse.Namespace) -> int:
    from xlapipe.dump.readers.files import modules_in
    from xlapipe.inductor.open_path import is_inductor_dump
    from xlapipe.report.subjects import ShowOptions, TimeOptions, open_subject

    if options.json and options.names:
        raise XlapipeError(
            "show: names are answered in text, and --json prints the whole plan; fix: leave out "
            "one of them"
        )
    path = options.path
    if options.module is not None and not is_inductor_dump(path):
        from xlapipe.report.module_list import module_named

        path = module_named(path, options.module)
    elif not options.json and len(modules := modules_in(path)) > 1:
        from xlapipe.report.module_list import module_lines

        for line in module_lines(path, modules, width=screen_width()):
            print_text(line)
        return 0
    # The threads that numpy starts take longer than the small systems that it solves here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    times = TimeOptions(
        options.target,
        options.calibration,
        options.trips,
        options.timed,
        options.host,
    )
    subject = open_subject(path, times)
    if options.trace is not None:
        from xlapipe.files.writing import write_files

        trace = subject.trace()
        write_files({options.trace: trace})
        if not options.json:
            print_text(f"{options.trace}: {len(trace):,} B")
            return 0
    shown = ShowOptions(
        allocations=options.allocations,
        donation=options.donation,
        gemms=options.gemms,
        collectives=options.collectives,
        time=options.time,
        order=options.order,
        everything=options.all,
        kernel=options.why,
        names=tuple(options.names),
        module=options.module,
        width=screen_width(),
    )
    if options.json and options.why is None:
        print_json(subject.figures(shown))
    else:
        print_lines(subject.lines(shown))
    return 0
