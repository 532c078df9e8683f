"""`xlapipe dump`: compiles workloads and writes their dumps."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.cli.options import (
    WORKLOAD_HELP,
    Commands,
    add_compile_options,
    add_estimate_option,
    at_least_one,
    read_compile_options,
)
from xlapipe.cli.output import named_error, print_error, print_json
from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from xlapipe.compiling.job import Job
    from xlapipe.compiling.pipeline import WrittenDump

_MAX_PARALLEL = 4


def add(commands: Commands) -> None:
    """Adds the command."""
    dump = commands.add("dump", _dump, "Compile workloads and write their dumps.")
    dump.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=WORKLOAD_HELP)
    dump.add_argument("--all", action="store_true", help="every registered workload")
    add_compile_options(dump)
    add_estimate_option(dump)
    dump.add_argument("--out", type=Path, default=Path("hlo_dumps"), help="default: %(default)s")
    dump.add_argument(
        "--tune", action="store_true", help="with --target attached: write its autotune results"
    )
    dump.add_argument(
        "--locked", action="store_true", help="compile with the autotune locks of goldens in --out"
    )
    dump.add_argument(
        "--jobs",
        type=at_least_one,
        metavar="N",
        help=f"parallel compiles; default: number of cores, at most {_MAX_PARALLEL}",
    )


def _dump(options: argparse.Namespace) -> int:
    from xlapipe.cli.dump_table import DumpTable
    from xlapipe.compiling.pipeline import WrittenDump, make_dumps, refusal
    from xlapipe.report.dump_row import dump_row

    jobs = _jobs(options)
    if not jobs and not options.json:
        print(f"No autotune lock for this jaxlib in {options.out}; nothing to compile.")
        return 0
    rows: list[dict[str, Any]] = []
    errors: list[str] = []
    with DumpTable(jobs, silent=options.json) as table:

        def on_done(job: "Job", outcome: WrittenDump | XlapipeError) -> None:
            if isinstance(outcome, XlapipeError):
                errors.append(named_error(job, outcome))
                table.add_failure(job)
                return
            if job.target is None:
                _record_run(outcome)
            row = dump_row(outcome.dump, changed=outcome.changed, seconds=outcome.seconds)
            rows.append(row)
            table.add(row)
            if outcome.dump.manifest.refused is not None:
                text = f"{refusal(outcome.dump.manifest)}; its plan is in {outcome.dump.path}"
                errors.append(text)

        at_once = options.jobs or min(_MAX_PARALLEL, os.cpu_count() or 1)
        make_dumps(jobs, options.out, at_once=at_once, on_done=on_done)
    if options.json:
        print_json({"dumps": rows, "errors": errors})
    for error in errors:
        print_error(error)
    return 2 if errors else 0


def _jobs(options: argparse.Namespace) -> "list[Job]":
    from xlapipe.compiling.make_jobs import jobs_of, locked_jobs
    from xlapipe.registry import registered_workloads

    names = list(options.workloads)
    if options.all:
        registered = (workload.name for workload in registered_workloads())
        names += [name for name in registered if name not in names]
    if not names:
        raise XlapipeError("no workload given; fix: name one of `xlapipe list`, or give --all")
    compile_options = read_compile_options(options, options.gemm)
    return (
        locked_jobs(names, options.out, compile_options)
        if options.locked
        else jobs_of(names, compile_options)
    )


def _record_run(made: "WrittenDump") -> None:
    """Writes the device, its driver and this command next to a dump made on the device itself."""
    from xlapipe.dumps.run_record import run_record, write_run_record
    from xlapipe.environment.machine import Machine

    manifest, gpu = made.dump.manifest, Machine.here().gpu()
    record = run_record(
        device=manifest.target_description,
        driver=gpu.driver_version if gpu is not None else None,
        versions=manifest.versions,
        command=["xlapipe", *sys.argv[1:]],
    )
    write_run_record(made.dump.path, record)
