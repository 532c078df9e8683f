"""Compile a workload into an executable for a GPU to load.

xlapipe build step:workload --out built
    an executable for an H200
xlapipe build step:workload --out built --target h100_sxm
"""

import argparse
from dataclasses import replace

from xlapipe.cli.compile_options import COMPILE, compile_settings
from xlapipe.cli.options import WORKLOAD, Options
from xlapipe.cli.output import print_json
from xlapipe.compile.tuning import Tuned
from xlapipe.errors import XlapipeError

OPTIONS: Options = {**WORKLOAD, **COMPILE, "--out DIR": {"required": True, "help": "a new folder"}}


def run(options: argparse.Namespace) -> int:
    from xlapipe.cli.dump_table import DumpTable
    from xlapipe.compile.make_jobs import jobs_of
    from xlapipe.compile.pipeline import build
    from xlapipe.report.dump_row import dump_row

    compile_options = compile_settings(options, options.gemm)
    if len(compile_options.policies) > 1:
        raise XlapipeError("build makes one executable; fix: give --gemm only once")
    if options.tuning is None:  # the device may refuse what predicted tuning names
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
