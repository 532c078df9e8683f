"""Compile a workload in many sizes, and list which fit the device's memory.

xlapipe fit step:workload --vary batch=8,16,32,64
    which batches fit, and their time
xlapipe fit step:workload --vary batch=8,16 --target h100_sxm,h200
    on two GPUs
"""

import argparse
from typing import TYPE_CHECKING

from xlapipe.cli.compile_options import FITTING, search_settings, target_name
from xlapipe.cli.options import VARY, WORKLOAD, Options
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
    **FITTING,
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.cli.fit_table import fit_figures, fit_lines
    from xlapipe.search.rows import largest
    from xlapipe.search.sweep import Axis

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

        return compile_rows(candidates, search_settings(options), on_done)
