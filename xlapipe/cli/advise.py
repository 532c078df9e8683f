"""Compile changes of a workload, and list what each saves of its memory.

xlapipe advise step:workload
    what would save memory, by bytes
xlapipe advise 'step:workload(batch=64)' --target h100_sxm
    for another GPU
"""

import argparse
import shlex
from typing import TYPE_CHECKING

from xlapipe.cli.compile_options import TARGET, compile_settings
from xlapipe.cli.options import JOBS, WORKLOAD, Options
from xlapipe.cli.output import print_json, print_text, screen_width

if TYPE_CHECKING:
    from xlapipe.report.advice import Advice

OPTIONS: Options = {**WORKLOAD, **TARGET, **JOBS}


def run(options: argparse.Namespace) -> int:
    from xlapipe.report.advice import advice_figures, advice_lines

    advice = _advice(options)
    if options.json:
        print_json(advice_figures(advice))
    else:
        for line in advice_lines(advice, width=screen_width()):
            print_text(line)
    return 0


def _advice(options: argparse.Namespace) -> "Advice":
    from xlapipe.cli.progress import shown_steps
    from xlapipe.compile.make_jobs import jobs_of
    from xlapipe.compile.pipeline import compile_dump
    from xlapipe.devices.targets.target_config import target_attached
    from xlapipe.plans.phases import phases_of
    from xlapipe.plans.usable_memory import usable_memory
    from xlapipe.report.advice import Advice
    from xlapipe.search.choosing.remedies import try_changes
    from xlapipe.time.predicted_locks.plan_error import plan_error_bytes

    (job,) = jobs_of([options.workload], compile_settings(options, None))
    with shown_steps() as show:
        show(f"{job.reference.name}: unchanged")
        compiled = compile_dump(job, None, allow_refused=True)
        manifest, plan = compiled.dump.manifest, compiled.dump.plan
        config = compiled.files.get("target_config.txtpb", b"").decode()
        memory = usable_memory(
            job.target or target_attached(config), plan, libtpu=manifest.versions.get("libtpu")
        )
        show(f"{job.reference.name}: changes that may save memory")
        tried = try_changes(job, compiled.dump, memory.usable_bytes, at_once=options.jobs)
    totals = plan.totals
    return Advice(
        workload=manifest.workload,
        device=manifest.device,
        total_bytes=totals.total_allocation_bytes - totals.thread_local_bytes,
        usable_bytes=memory.usable_bytes,
        error_bytes=plan_error_bytes(
            plan, tuned=manifest.tuned_or_none, predicted_lock=manifest.predicted_lock
        ),
        autotuning=manifest.autotuning,
        tried=tried,
        notes=(_other_commands(options.workload),) if phases_of(plan).trains else (),
    )


def _other_commands(workload: str) -> str:
    return (
        f"`xlapipe choose {shlex.quote(workload)} --remat` prints the code of policies, with their "
        f"predicted times; `xlapipe saved {shlex.quote(workload)}` lists what is kept"
    )
