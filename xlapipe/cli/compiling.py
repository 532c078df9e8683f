"""`dump` and `build`: what compiles and writes."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from xlapipe.cli.options import (
    WORKLOAD_HELP,
    Commands,
    add_compile_options,
    asked_for,
    at_least_one,
    print_json,
)
from xlapipe.errors import XlapipeError


def add(commands: Commands) -> None:
    """Adds the commands of this module."""
    dump = commands.add("dump", _dump, "Compile workloads and write their dumps.")
    dump.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=WORKLOAD_HELP)
    dump.add_argument("--all", action="store_true", help="every registered workload")
    add_compile_options(dump)
    dump.add_argument("--out", type=Path, default=Path("hlo_dumps"), help="default: hlo_dumps")
    dump.add_argument("--tune", action="store_true", help="keep the attached GPU's autotuning")
    dump.add_argument(
        "--locked", action="store_true", help="with the locks that lie beside the goldens in --out"
    )
    dump.add_argument("--jobs", type=at_least_one, default=None, help="compiles at once")

    text = "Compile a workload into an executable for a GPU to load."
    build = commands.add("build", _build, text)
    build.add_argument("workload", metavar="WORKLOAD", help=WORKLOAD_HELP)
    add_compile_options(build)
    build.add_argument("--out", type=Path, required=True, help="the folder to make")


def _dump(options: argparse.Namespace) -> int:
    from xlapipe.compiling.job import Job
    from xlapipe.compiling.make_jobs import jobs_of, locked_jobs
    from xlapipe.compiling.pipeline import Made, make_dumps
    from xlapipe.registry import registered_workloads
    from xlapipe.report.figures import dump_row
    from xlapipe.report.terminal import DumpTable

    names = list(options.workloads)
    if options.all:
        names += [each.name for each in registered_workloads() if each.name not in names]
    if not names:
        raise XlapipeError("name a workload, or --all; `xlapipe list` lists them")
    asked = asked_for(options, options.gemm)
    jobs = locked_jobs(names, options.out, asked) if options.locked else jobs_of(names, asked)
    rows: list[dict[str, Any]] = []
    errors: list[XlapipeError] = []
    if not jobs and not options.json:
        print(f"no autotune lock of this jaxlib lies in {options.out}: nothing to compile")
        return 0
    with DumpTable(len(jobs), silent=options.json) as table:

        def on_done(job: Job, outcome: Made | XlapipeError) -> None:
            if isinstance(outcome, XlapipeError):
                errors.append(outcome)
                table.add_failure(job.reference.name, job.policy)
            else:
                if job.target is None:
                    _record_run(outcome)
                rows.append(
                    dump_row(outcome.dump, changed=outcome.changed, seconds=outcome.seconds)
                )
                table.add(rows[-1])

        at_once = options.jobs or min(4, os.cpu_count() or 1)
        make_dumps(jobs, options.out, at_once=at_once, on_done=on_done)
    if options.json:
        print_json({"dumps": rows, "errors": [str(error) for error in errors]})
    for error in errors:
        print(f"xlapipe: error: {error}", file=sys.stderr)
    return 2 if errors else 0


def _record_run(made: Any) -> None:
    """Leaves beside a device's golden what device it was, and by which command."""
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


def _build(options: argparse.Namespace) -> int:
    from xlapipe.compiling.make_jobs import jobs_of
    from xlapipe.compiling.pipeline import build
    from xlapipe.report.figures import dump_row
    from xlapipe.report.terminal import DumpTable

    asked = asked_for(options, options.gemm)
    if len(asked.policies) > 1:
        raise XlapipeError("build makes one executable: give one --gemm")
    (job,) = jobs_of([options.workload], asked)
    with DumpTable(1, silent=options.json) as table:
        made = build(job, options.out)
        row = dump_row(made.dump, changed=made.changed, seconds=made.seconds)
        table.add(row)
    if options.json:
        print_json(row)
    return 0
