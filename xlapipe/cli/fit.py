"""`xlapipe fit`: which sizes of a workload fit a device's memory."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.cli.options import (
    GEMM_HELP,
    GEMM_POLICIES,
    WORKLOAD_HELP,
    Commands,
    add_target_options,
    at_least_one,
    read_compile_options,
)
from xlapipe.cli.output import print_error, print_json, print_lines
from xlapipe.compiling.defaults import DEFAULT_MEMORY_FRACTION, DEFAULT_TARGET
from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xlapipe.compiling.fit import Row
    from xlapipe.compiling.sweep import Axis


def add(commands: Commands) -> None:
    """Adds the command."""
    text = "Compile a workload in many sizes, and list which fit the device's memory."
    fit = commands.add("fit", _fit, text)
    fit.add_argument("workload", metavar="WORKLOAD", help=WORKLOAD_HELP)
    fit.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=VALUE,…",
        help="an argument of the workload and its values; repeatable",
    )
    add_target_options(fit)
    fit.add_argument(
        "--gemm",
        choices=GEMM_POLICIES,
        default="auto",
        help=f"{GEMM_HELP}; default: %(default)s",
    )
    fit.add_argument(
        "--memory-fraction",
        type=float,
        metavar="F",
        help=f"usable share of the device's memory; default: {DEFAULT_MEMORY_FRACTION:g} on GPUs, "
        "as in jax; all that the compiler leaves on TPUs",
    )
    fit.add_argument(
        "--jobs", type=at_least_one, metavar="N", help="parallel compiles; default: number of cores"
    )
    fit.add_argument(
        "--out", type=Path, metavar="DIR", help="write whole dumps there; default: write none"
    )


def _fit(options: argparse.Namespace) -> int:
    from xlapipe.cli.fit_table import fit_figures, fit_lines
    from xlapipe.compiling.fit import largest
    from xlapipe.compiling.sweep import Axis

    if options.autotune_lock is not None:
        raise XlapipeError(
            "fit does not accept --autotune-lock: a lock is valid only for one size of a workload"
        )
    axes = [Axis.parse(text) for text in options.vary]
    rows = _rows(options, axes)
    best = largest(rows, axes)
    config: Path | None = options.target_config
    target = config.stem if config is not None else options.target or DEFAULT_TARGET
    if options.json:
        print_json(fit_figures(options.workload, target, rows, best))
    else:
        print_lines(fit_lines(options.workload, target, rows, axes, best))
    errors = [
        (row.combination.reference.name, str(row.outcome))
        for row in rows
        if isinstance(row.outcome, XlapipeError)
    ]
    for name, message in errors:
        print_error(message if name in message else f"{name}: {message}")
    if errors:
        return 2
    return 0 if any(row.fits for row in rows) else 1


def _rows(options: argparse.Namespace, axes: "Sequence[Axis]") -> "Sequence[Row]":
    """Compiles every combination, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.markup import escape

    from xlapipe.cli.fit_table import fits_text
    from xlapipe.cli.progress import Bar
    from xlapipe.compiling.fit import fit
    from xlapipe.compiling.make_jobs import jobs_of
    from xlapipe.compiling.sweep import combinations

    points = combinations(options.workload, axes)
    compile_options = read_compile_options(options, [options.gemm])
    jobs = jobs_of([point.reference for point in points], compile_options)
    with Bar("compiling", len(jobs), console=Console(stderr=True), silent=options.json) as bar:

        def on_done(row: "Row") -> None:
            bar.advance(last=escape(f"{row.combination}: {fits_text(row)}".removeprefix(": ")))

        return fit(
            points,
            jobs,
            at_once=options.jobs or os.cpu_count() or 1,
            memory_fraction=options.memory_fraction,
            out=options.out,
            on_done=on_done,
        )
