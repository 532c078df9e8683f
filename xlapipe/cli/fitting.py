"""`fit`: which sizes of a workload fit a device."""

import argparse
import os
import sys
from pathlib import Path

from xlapipe.cli.options import (
    WORKLOAD_HELP,
    Commands,
    add_target_options,
    asked_for,
    at_least_one,
    print_json,
)
from xlapipe.errors import XlapipeError


def add(commands: Commands) -> None:
    """Adds the command of this module."""
    text = "Compile a workload in many sizes, and say which fit the device's memory."
    fit = commands.add("fit", _fit, text)
    fit.add_argument("workload", metavar="WORKLOAD", help=WORKLOAD_HELP)
    fit.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=VALUE,…",
        help="an argument of the workload and its values; may be repeated",
    )
    add_target_options(fit)
    fit.add_argument(
        "--gemm",
        choices=("auto", "cublas", "triton"),
        default="auto",
        help="which backends matrix products may go to; default: auto",
    )
    fit.add_argument(
        "--memory-fraction",
        type=float,
        metavar="F",
        help="the share of the device's memory that may be used; default: 0.75, as in jax",
    )
    fit.add_argument(
        "--jobs", type=at_least_one, help="compiles at once; default: as many as cores"
    )
    fit.add_argument("--out", type=Path, help="keep whole dumps there; default: keep none")


def _fit(options: argparse.Namespace) -> int:
    from xlapipe.compiling.fit import DEFAULT_MEMORY_FRACTION, fit, largest
    from xlapipe.compiling.make_jobs import DEFAULT_TARGET, jobs_of
    from xlapipe.compiling.sweep import Axis, combinations
    from xlapipe.report.fit import FitProgress, fit_figures, print_fit

    if options.autotune_lock is not None:
        raise XlapipeError("fit takes no --autotune-lock: a lock is of one workload and its sizes")
    axes = [Axis.parse(text) for text in options.vary]
    found = combinations(options.workload, axes)
    jobs = jobs_of([each.reference for each in found], asked_for(options, [options.gemm]))
    fraction = options.memory_fraction
    if fraction is None:
        fraction = DEFAULT_MEMORY_FRACTION
    with FitProgress(len(jobs), silent=options.json) as progress:
        rows = fit(
            found,
            jobs,
            at_once=options.jobs or os.cpu_count() or 1,
            memory_fraction=fraction,
            out=options.out,
            on_done=progress.done,
        )
    best = largest(rows, axes)
    config: Path | None = options.target_config
    target = config.stem if config is not None else options.target or DEFAULT_TARGET
    if options.json:
        print_json(fit_figures(options.workload, target, rows, best))
    else:
        print_fit(options.workload, target, rows, axes, best)
    errors = [row.outcome for row in rows if isinstance(row.outcome, XlapipeError)]
    for error in errors:
        print(f"xlapipe: error: {error}", file=sys.stderr)
    if errors:
        return 2
    return 0 if any(row.fits for row in rows) else 1
