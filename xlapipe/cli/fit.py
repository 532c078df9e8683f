"""Compile a workload in many sizes, and list which fit the device's memory.

xlapipe fit step:workload --vary batch=8,16,32,64
    which batches fit, and their time
xlapipe fit step:workload --cliff batch
    from which batch on XLA computes again
"""

import argparse
from typing import TYPE_CHECKING

from xlapipe.cli.options import FITTING, VARY, WORKLOAD, Options, search_settings, target_name
from xlapipe.cli.output import print_error, print_json, print_lines, table_width
from xlapipe.errors import XlapipeError
from xlapipe.plans.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xlapipe.search.rows import Row
    from xlapipe.search.sweep import Axis

OPTIONS: Options = {
    **WORKLOAD,
    **VARY,
    "--cliff NAME[=LOW..HIGH]": "an integer argument: find, within one percent, the size from "
    "which on XLA rematerialises, and what that costs; sizes are multiples of LOW",
    **FITTING,
    "--timings": "with the seconds that each compile took",
    "--out DIR": "write whole dumps there; default: write none",
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.cli.fit_table import fit_figures, fit_lines
    from xlapipe.search.rows import largest
    from xlapipe.search.sweep import Axis

    if options.cliff is not None:
        return _cliff(options)
    axes = [Axis.parse(text) for text in options.vary]
    rows = _rows(options, axes)
    best = largest(rows, axes)
    target = target_name(options)
    if options.json:
        print_json(fit_figures(options.workload, target, rows, best))
    elif any(not isinstance(row.outcome, XlapipeError) for row in rows):
        print_lines(
            fit_lines(
                options.workload,
                target,
                rows,
                axes,
                best,
                timings=options.timings,
                width=table_width(),
            )
        )
    errors = [
        (row.candidate.reference.name, str(row.outcome))
        for row in rows
        if isinstance(row.outcome, XlapipeError)
    ]
    printed: set[str] = set()
    for name, message in errors:
        cause = message.replace(name, "")
        if cause not in printed:
            print_error(message if name in message else f"{name}: {message}")
        printed.add(cause)
    if len(printed) < len(errors):
        print_error(f"{counted(len(errors) - len(printed), 'other size')} failed likewise")
    if errors:
        return 2
    return 0 if any(row.fits for row in rows) else 1


def _cliff(options: argparse.Namespace) -> int:
    """Finds where XLA begins to rematerialise; exit code 1 if no size fits."""
    from xlapipe.cli.fit_table import cliff_figures, cliff_lines, fit_figures
    from xlapipe.cli.progress import shown_steps
    from xlapipe.search.sizing.cliff import find_cliff

    if options.vary or options.out is not None or options.scheduler:
        raise XlapipeError(
            "--cliff takes neither --vary nor --out or --scheduler; fix: leave them out"
        )
    name, lower, upper = _bounds(options.cliff)
    target = target_name(options)
    with shown_steps() as show:
        cliff = find_cliff(
            options.workload,
            name,
            lower=lower,
            upper=upper,
            search=search_settings(options),
            on_done=lambda row: show(
                f"{row.candidate.values_text}: {row.memory.total_bytes:,} B, "
                f"{row.memory.rematerialised} instructions rematerialised"
            ),
        )
    if options.json:
        figures = fit_figures(options.workload, target, cliff.compiled, ())
        print_json({**figures, "cliff": cliff_figures(cliff)})
    else:
        print_lines(cliff_lines(options.workload, target, cliff))
    return 0 if any(row.fits for row in cliff.compiled) else 1


def _bounds(text: str) -> tuple[str, int, int | None]:
    """Name, least and largest value of `NAME` or `NAME=LOW..HIGH`."""
    name, equals, bounds = text.partition("=")
    low, dots, high = bounds.partition("..")
    try:
        if not name.isidentifier() or (equals and not dots):
            raise ValueError
        return name, int(low or 1), int(high) if high else None
    except ValueError:
        raise XlapipeError(
            f"--cliff {text!r}: expected a parameter's name, or e.g. batch=8..512"
        ) from None


def _rows(options: argparse.Namespace, axes: "Sequence[Axis]") -> "Sequence[Row]":
    """Compiles every combination, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.markup import escape

    from xlapipe.cli.fit_table import fits_text
    from xlapipe.cli.progress import Bar
    from xlapipe.search.rows import compile_rows
    from xlapipe.search.sweep import combinations

    candidates = combinations(options.workload, axes)
    count = len(candidates)
    with Bar("compiling", count, console=Console(stderr=True), silent=options.json) as bar:

        def on_done(row: "Row") -> None:
            text = f"{row.candidate.values_text}: {fits_text(row)}".removeprefix(": ")
            bar.add_done(last=escape(text))

        return compile_rows(candidates, search_settings(options, options.out), on_done)
