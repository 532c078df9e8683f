"""Compile workloads and write their dumps.

xlapipe dump step:workload
    compile for an H200, into hlo_dumps/
xlapipe dump 'step:workload(batch=64)' --target h100_sxm --out /tmp/dumps
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.cli.compile_options import COMPILE, compile_settings
from xlapipe.cli.options import SCHEDULER, WORKLOAD_HELP, Options, hidden
from xlapipe.cli.output import named_error, print_error, print_json, print_text
from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from xlapipe.compile.job import Job
    from xlapipe.compile.pipeline import CompiledDump

_MAX_PARALLEL = 4

OPTIONS: Options = {
    "workloads WORKLOAD": {"nargs": "*", "help": WORKLOAD_HELP},
    "--all": "every registered workload",
    **COMPILE,
    "--out DIR": {"default": Path("hlo_dumps"), "help": "default: %(default)s"},
    **hidden({"--locked": ""}),
    **SCHEDULER,
    "--jobs N": f"parallel compiles; default: number of cores, at most {_MAX_PARALLEL}",
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.cli.dump_table import DumpTable
    from xlapipe.compile.pipeline import CompiledDump, make_dumps, refusal
    from xlapipe.report.dump_row import dump_row

    jobs = _jobs(options)
    if not jobs and not options.json:
        print_text(f"No autotune lock for this jaxlib in {options.out}; nothing to compile.")
        return 0
    # By job: compiles end in any order, and JSON has the order of the command.
    rows: dict[int, dict[str, Any]] = {}
    errors: list[str] = []
    with DumpTable(jobs, silent=options.json) as table:

        def on_done(job: "Job", outcome: CompiledDump | XlapipeError) -> None:
            if isinstance(outcome, XlapipeError):
                errors.append(named_error(job, outcome))
                table.add_failure(job)
                return
            if job.target is None:
                _record_run(outcome)
            row = dump_row(
                outcome.dump,
                changed=outcome.changed,
                seconds=outcome.seconds,
                notes=outcome.notes,
            )
            rows[id(job)] = row
            table.add(row)
            if outcome.dump.manifest.refused is not None:
                text = f"{refusal(outcome.dump.manifest)}; its plan is in {outcome.dump.path}"
                errors.append(text)

        at_once = options.jobs or min(_MAX_PARALLEL, os.cpu_count() or 1)
        make_dumps(
            jobs,
            options.out,
            at_once=at_once,
            on_done=on_done,
            scheduler=options.scheduler,
        )
    if options.json:
        in_order = [rows[id(job)] for job in jobs if id(job) in rows]
        print_json({"dumps": in_order, "errors": errors})
    for error in errors:
        print_error(error)
    return 2 if errors else 0


def _jobs(options: argparse.Namespace) -> "list[Job]":
    from xlapipe.compile.make_jobs import jobs_of, locked_jobs
    from xlapipe.registry import registered_workloads

    names = list(options.workloads)
    if options.all:
        registered = (workload.name for workload in registered_workloads())
        names += [name for name in registered if name not in names]
    if not names:
        raise XlapipeError("no workload given; fix: name one of `xlapipe list`, or give --all")
    compile_options = compile_settings(options, options.gemm)
    return (
        locked_jobs(names, options.out, compile_options)
        if options.locked
        else jobs_of(names, compile_options)
    )


def _record_run(made: "CompiledDump") -> None:
    """Writes the device, its driver and this command next to a dump made on the device itself."""
    from xlapipe.dump.run_record import run_record, write_run_record

    manifest, command = made.dump.manifest, ["xlapipe", *sys.argv[1:]]
    device, versions = manifest.target_description, manifest.versions
    record = run_record(device=device, versions=versions, command=command)
    write_run_record(made.dump.path, record)
