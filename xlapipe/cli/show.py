"""`xlapipe show`: the plan of a dump; nothing is compiled."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.cli.options import PATH_HELP, Commands, at_least_one
from xlapipe.cli.output import print_json, print_lines

if TYPE_CHECKING:
    from xlapipe.inductor.reader import InductorDump


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
    from xlapipe.dumps.opened import Opened, open_any
    from xlapipe.plans.donation import donations
    from xlapipe.report.plan_figures import opened_figures

    opened = open_any(options.path)
    if not isinstance(opened, Opened):
        _show_inductor(opened, options)
        return 0
    if options.target is not None:
        opened = replace(opened, target=_gpu_named(options.target))
    if options.calibration is not None:
        from xlapipe.predict.calibration import read_calibration

        opened = replace(opened, calibration=read_calibration(options.calibration))
    if options.trips is not None:
        opened = replace(opened, unknown_trips=options.trips)
    if options.why is not None:
        from rich.text import Text

        from xlapipe.report.why_lines import why_lines

        print_lines(map(Text, why_lines(opened.prediction, options.why)))
        return 0
    figures = opened_figures(opened, with_time=options.time or options.json)
    share = None
    if options.order:
        from xlapipe.report.order_lines import order_figures, order_lines
        from xlapipe.temp_order.instruction_order import order_share

        share = order_share(opened.program.plan)
        figures["order"] = order_figures(share)
    if options.json:
        print_json(figures)
    else:
        from rich.text import Text

        from xlapipe.report.plan_lines import plan_lines

        donated = donations(opened.program)
        print_lines(plan_lines(str(options.path), figures, opened.program, donated))
        if options.time:
            from xlapipe.report.time_lines import time_lines

            lines = time_lines(figures["time"], on_tpu=figures["on_tpu"])
            print_lines(map(Text, lines))
        if options.order:
            print_lines(map(Text, order_lines(share)))
    return 0


def _gpu_named(name: str) -> str:
    """The name of a GPU of the catalogue.

    Raises:
      XlapipeError: there is no such target, or it is a TPU.
    """
    from xlapipe.errors import TargetError
    from xlapipe.targets.catalogue import target_named

    target = target_named(name)
    if target.platform == "tpu":
        raise TargetError(
            f"--target {name}: expected a GPU, because times are computed for GPUs only, found "
            f"{target.description}; fix: name a GPU of `xlapipe targets`"
        )
    return target.name


def _show_inductor(dump: "InductorDump", options: argparse.Namespace) -> None:
    if options.json:
        from xlapipe.report.inductor_figures import inductor_figures

        print_json(inductor_figures(dump))
    else:
        from xlapipe.report.inductor_terminal import inductor_lines

        print_lines(inductor_lines(dump))
