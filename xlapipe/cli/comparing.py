"""`diff`: two plans of dumps, or of two compiles."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.cli.options import (
    PATH_HELP,
    WORKLOAD_HELP,
    Commands,
    add_target_options,
    asked_for,
    print_json,
)
from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from xlapipe.diff import Difference


def add(commands: Commands) -> None:
    """Adds the commands of this module."""
    text = "Say what is different between two plans, and what it costs."
    diff = commands.add("diff", _diff, text)
    diff.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=f"two: {PATH_HELP}")
    diff.add_argument("--workload", help=f"compile it twice instead: {WORKLOAD_HELP}")
    diff.add_argument("--versions", metavar="X,Y", help="with two versions of jax")
    diff.add_argument("--options", metavar="K=V,…", help="without and with these XLA options")
    diff.add_argument("--gemm", metavar="X[,Y]", help="with two policies; or one, for both")
    add_target_options(diff)
    diff.add_argument("--out", type=Path, help="keep the two dumps there")


def _diff(options: argparse.Namespace) -> int:
    from xlapipe.report.figures import difference_figures

    difference = _difference(options)
    if options.json:
        print_json(difference_figures(difference))
    else:
        from xlapipe.report.difference import print_difference

        print_difference(difference)
    return 0 if difference.same else 1


def _difference(options: argparse.Namespace) -> "Difference":
    if options.workload is None:
        from xlapipe.diff import compare_paths

        given = [options.versions, options.options, options.gemm, options.out]
        if len(options.paths) != 2 or any(value is not None for value in given):
            raise XlapipeError(
                "diff takes two paths, or --workload with --versions, --options or --gemm; "
                f"found {len(options.paths)} paths and no --workload"
            )
        return compare_paths(*options.paths)
    if options.paths:
        raise XlapipeError("diff takes two paths or --workload, not both")

    import tempfile
    from contextlib import ExitStack

    from xlapipe.compiling.two_compiles import compare_pair, pair
    from xlapipe.report.difference import Steps

    asked = asked_for(options, None)
    with Steps().shown() as steps:
        jobs = pair(
            options.workload,
            asked,
            versions=options.versions,
            options=options.options,
            gemm=options.gemm,
            say=steps.say,
        )
        steps.say(f"compiling {options.workload} with {' and with '.join(jobs)}")
        with ExitStack() as stack:
            out = options.out
            if out is None:
                scratch = tempfile.TemporaryDirectory(prefix="xlapipe-diff-")
                out = stack.enter_context(scratch)
            return compare_pair(
                jobs, Path(out), on_done=lambda name: steps.say(f"compiled with {name}")
            )
