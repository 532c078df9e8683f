"""Find the first version of jax, or XLA option, with which a workload's plan is worse.

xlapipe bisect step:workload --versions 0.10.0..0.11.2
    the first worse version
xlapipe bisect step:workload --options xla_gpu_enable_triton_gemm=false
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xlapipe.cli.options import SCHEDULER, TARGET, WORKLOAD, Options, compile_settings
from xlapipe.cli.output import print_json, print_lines
from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from rich.text import Text

    from xlapipe.compile.job import Job
    from xlapipe.diff.comparing.bisect import Bisection, Step

OPTIONS: Options = {
    **WORKLOAD,
    "--versions A..B": "versions of jax: A..B for all releases, or A,B,C",
    "--options K=V,…": "XLA options, added one after another",
    "--expect TEXT": {
        "nargs": "?",
        "const": "",
        "help": "worse means that an expectation of the workload fails, one whose text contains "
        "TEXT if given; default: more temporary memory",
    },
    "--compile-time RATIO": {
        "nargs": "?",
        "const": 1.5,
        "help": "worse means that the compile takes more than RATIO times the CPU time of the "
        "first; default: 1.5",
    },
    **TARGET,
    **SCHEDULER,
    "--out DIR": "keep the dumps there",
}


def run(options: argparse.Namespace) -> int:
    from contextlib import ExitStack

    from xlapipe.cli.progress import shown_steps
    from xlapipe.devices.environment.scratch import scratch_folder
    from xlapipe.diff.comparing.bisect import bisect

    if options.expect is not None and options.compile_time is not None:
        raise XlapipeError("bisect: --expect and --compile-time state two faults; fix: give one")
    with shown_steps() as show, ExitStack() as stack:
        candidates = _candidates(options, show)
        out = options.out or stack.enter_context(scratch_folder("bisect-"))
        show(f"compiling {options.workload}: {len(candidates)} candidates")
        result = bisect(
            candidates,
            out,
            expect=options.expect,
            compile_time=options.compile_time,
            scheduler=options.scheduler,
            on_done=lambda step: show(_step_line(step)),
        )
        if options.json:
            print_json(bisection_figures(options.workload, result))
        else:
            print_lines(_lines(options.workload, result))
    return 0 if result.bad is None else 1


def _candidates(
    options: argparse.Namespace, show: Callable[[str], None]
) -> "dict[str, Callable[[], Job]]":
    from importlib.metadata import version

    from xlapipe.cli.diff import parse_xla_options
    from xlapipe.compile.make_jobs import jobs_to_compare
    from xlapipe.diff.comparing.bisect import option_jobs, released_versions, versions_between
    from xlapipe.diff.comparing.jax_environments import python_with_jax
    from xlapipe.diff.comparing.two_compiles import job_of_any_jax

    if (options.versions is None) == (options.options is None):
        raise XlapipeError("bisect takes --versions A..B or --options K=V,…; give one of them")
    common = compile_settings(options, None)
    if options.options is not None:
        xla_options = parse_xla_options(options.options)
        first, _ = jobs_to_compare(options.workload, [common, replace(common, options=xla_options)])
        return option_jobs(first, xla_options)
    job = job_of_any_jax(options.workload, common)

    def with_version(name: str) -> "Callable[[], Job]":
        if name == version("jaxlib"):
            return lambda: job
        return lambda: replace(job, python=python_with_jax(name, on_install=show))

    names = versions_between(options.versions, released=released_versions)
    return {f"jax {name}": with_version(name) for name in names}


def _step_line(step: "Step") -> str:
    state = "worse" if step.bad else "as good as the first"
    if step.less_bytes > 0 and not step.bad:
        state = f"{step.less_bytes:,} B of temp less than the first"
    if step.compile_ratio is not None:
        state = f"compile {step.compile_ratio:.2f} times the CPU time of the first, {state}"
    failed = f"; fails: {'; '.join(step.failed)}" if step.failed else ""
    return (
        f"{step.label}: temp {step.temp_bytes:,} B, total {step.total_bytes:,} B, {state}{failed}"
    )


def bisection_figures(workload: str, result: "Bisection") -> dict[str, Any]:
    """The JSON of the command."""
    from xlapipe.report.difference import difference_figures
    from xlapipe.report.records import named

    return {
        "workload": workload,
        "compiled": [
            named(step, "label", "temp_bytes", "total_bytes", "failed", "bad", "compile_ratio")
            for step in result.steps
        ],
        **named(result, "good", "bad"),
        "difference": difference_figures(result.difference)
        if result.difference is not None
        else None,
    }


def _lines(workload: str, result: "Bisection") -> "Iterator[Text]":
    from rich.text import Text

    from xlapipe.report.difference import difference_lines

    for step in result.steps:
        yield Text(_step_line(step))
    if result.difference is None:
        last = result.steps[-1]
        outcome = f"{last.label} is as good as the first"
        if last.less_bytes > 0:
            outcome = f"{last.label} needs {last.less_bytes:,} B of temp less than the first"
        yield Text(f"{workload}: no candidate that was compiled is worse; {outcome}", style="bold")
        return
    yield Text(f"{workload}: {result.bad} is the first that is worse; {result.good} is not")
    yield from difference_lines(result.difference, everything=True)
