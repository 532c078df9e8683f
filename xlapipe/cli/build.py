"""`xlapipe build`: an executable that a GPU loads, made with or without the GPU."""

import argparse
from dataclasses import replace
from pathlib import Path

from xlapipe.cli.options import WORKLOAD_HELP, Commands, add_compile_options, compile_settings
from xlapipe.cli.output import print_json
from xlapipe.compile.tuning import Tuned
from xlapipe.errors import XlapipeError


def add(commands: Commands) -> None:
    """Adds the command."""
    text = "Compile a workload into an executable for a GPU to load."
    build = commands.add("build", _build, text)
    build.add_argument("workload", metavar="WORKLOAD", help=WORKLOAD_HELP)
    add_compile_options(build)
    build.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")


def _build(options: argparse.Namespace) -> int:
    from xlapipe.cli.dump_table import DumpTable
    from xlapipe.compile.make_jobs import jobs_of
    from xlapipe.compile.pipeline import build
    from xlapipe.report.dump_row import dump_row

    compile_options = compile_settings(options, options.gemm)
    if len(compile_options.policies) > 1:
        raise XlapipeError("build makes one executable; fix: give --gemm only once")
    if options.tuning is None:  # the device may refuse what a predicted lock names
        compile_options = replace(compile_options, tuning=Tuned.NONE)
    jobs = jobs_of([options.workload], compile_options)
    (job,) = jobs
    with DumpTable(jobs, silent=options.json) as table:
        made = build(job, options.out)
        row = dump_row(made.dump, changed=made.changed, seconds=made.seconds)
        table.add(row)
    if options.json:
        print_json(row)
    return 0
