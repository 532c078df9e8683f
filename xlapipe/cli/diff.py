"""List what differs between two plans, and its cost in bytes; a dump of torch Inductor and one of
XLA are shown side by side.

  xlapipe diff BEFORE AFTER
      what changed, and what it costs
  xlapipe diff --workload step:workload --versions 0.10.2,0.11.2
"""

import argparse
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.cli.options import (
    GEMM_POLICIES,
    NETWORK,
    PATH_HELP,
    TARGET,
    WORKLOAD_HELP,
    Options,
    compile_settings,
)
from xlapipe.cli.output import print_json, print_lines
from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from xlapipe.compile.job import Job, XlaOption
    from xlapipe.diff import Difference
    from xlapipe.diff.compilers import CompilerComparison
    from xlapipe.dump.opened import Opened

_BETWEEN_OPTIONS = re.compile(r",(?=\s*xla_\w+=)")
_OPTION = re.compile(r"\s*(xla_\w+)=(.*)")


def parse_policies(text: str) -> tuple[str, ...]:
    """One or two GEMM policies in `X,Y`.

    Raises:
      XlapipeError: an unknown policy, or one given twice.
    """
    policies = tuple(text.split(","))
    is_known = set(policies) <= set(GEMM_POLICIES)
    if len(policies) > 2 or len(set(policies)) < len(policies) or not is_known:
        raise XlapipeError(
            f"--gemm {text}: expected one or two different ones of {', '.join(GEMM_POLICIES)}"
        )
    return policies


def parse_versions(text: str) -> tuple[str, str]:
    """Two versions of jax in `X,Y`.

    Raises:
      XlapipeError: not two different versions.
    """
    first, _, second = text.partition(",")
    if not first or not second or "," in second or first == second:
        raise XlapipeError(f"--versions {text}: expected two versions of jax, e.g. `0.10.2,0.11.2`")
    return first, second


def parse_xla_options(text: str) -> "dict[str, XlaOption]":
    """XLA options in `K=V,K=V`; a value may contain commas.

    >>> parse_xla_options("xla_a=true,xla_b=FUSION,CUBLAS,xla_c=3")
    {'xla_a': True, 'xla_b': 'FUSION,CUBLAS', 'xla_c': 3}

    Raises:
      XlapipeError: text of another form, or an option that xlapipe sets itself.
    """
    options: dict[str, XlaOption] = {}
    for part in _BETWEEN_OPTIONS.split(text):
        match = _OPTION.fullmatch(part)
        if match is None:
            raise XlapipeError(
                f"--options {text}: expected `xla_name=value`, separated by commas, found {part!r}"
            )
        name, value = match[1], match[2].strip()
        if name.startswith("xla_dump_"):
            raise XlapipeError(f"--options: {name} is set by xlapipe itself; fix: leave it out")
        options[name] = _typed(value)
    return options


def _typed(value: str) -> "XlaOption":
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value


OPTIONS: Options = {
    "subjects PATH|WORKLOAD": {
        "nargs": "*",
        "help": f"two of: {PATH_HELP}; or a workload, which is compiled first",
    },
    "--all": "list every change",
    "--workload WORKLOAD": f"compile it twice instead: {WORKLOAD_HELP}",
    "--versions X,Y": {"type": parse_versions, "help": "with two versions of jax"},
    "--options K=V,…": "without and with these XLA options",
    "--gemm X[,Y]": {
        "type": parse_policies,
        "default": (),
        "help": "with two GEMM policies; one applies to both",
    },
    **TARGET,
    **NETWORK,
    "--out DIR": "keep the two dumps there",
}


def run(options: argparse.Namespace) -> int:
    compilers = _compare_compilers(options)
    if compilers is not None:
        return _print_compilers(compilers, json_output=options.json)
    compare = _compare_subjects if options.workload is None else _compare_jobs
    difference = compare(options)
    if options.json:
        from xlapipe.report.difference_figures import difference_figures

        print_json(difference_figures(difference))
    else:
        from xlapipe.report.difference_lines import difference_lines

        print_lines(difference_lines(difference, everything=options.all))
    return 0 if difference.same else 1


def _compare_compilers(options: argparse.Namespace) -> "CompilerComparison | None":
    """The comparison of a dump of torch Inductor with one of XLA; None for other arguments."""
    if options.workload is not None or len(options.subjects) != 2:
        return None
    paths = list(map(Path, options.subjects))

    from xlapipe.inductor.open_path import is_inductor_dump, open_path

    inductor = [path for path in paths if is_inductor_dump(path)]
    if len(inductor) != 1:
        return None

    from xlapipe.diff.compilers import compare_compilers
    from xlapipe.inductor.reader import read_inductor

    xla = next(path for path in paths if path not in inductor)
    return compare_compilers(read_inductor(inductor[0]), open_path(xla))


def _print_compilers(comparison: "CompilerComparison", *, json_output: bool) -> int:
    if json_output:
        from xlapipe.report.compilers_tables import comparison_figures

        print_json(comparison_figures(comparison))
    else:
        from xlapipe.report.compilers_tables import comparison_page
        from xlapipe.report.pages import page_lines

        print_lines(page_lines(comparison_page(comparison)))
    return 0 if comparison.same_interface else 1


def _compare_subjects(options: argparse.Namespace) -> "Difference":
    """The difference of two dumps, of two workloads, or of one of each."""
    from xlapipe.compile.make_jobs import jobs_of
    from xlapipe.diff import compare_opened
    from xlapipe.inductor.open_path import open_path

    subjects: list[str] = options.subjects
    policies: tuple[str, ...] = options.gemm
    if len(subjects) != 2 or options.versions or options.options or len(policies) > 1:
        raise XlapipeError(
            "diff takes two of dumps and workloads, or --workload with --versions, --options or "
            f"--gemm X,Y; found {len(subjects)} without --workload; fix: name two, or add "
            "--workload"
        )
    workloads = [subject for subject in subjects if _is_workload(subject)]
    if not workloads and (policies or options.out is not None):
        raise XlapipeError(
            "diff: --gemm and --out are for compiles, and both subjects are dumps; fix: leave "
            "them out"
        )
    a, b = subjects
    opened = {name: open_path(Path(name)) for name in subjects if name not in workloads}
    if not workloads:
        return compare_opened(opened[a], opened[b], names=(a, b))
    settings = compile_settings(options, policies)
    # All names are looked up before the first compile.
    jobs = {name: jobs_of([name], settings)[0] for name in workloads}
    with _compiled(jobs, options, f"compiling {' and '.join(jobs)}") as compiled:
        opened |= compiled
        return compare_opened(opened[a], opened[b], names=(a, b))


def _is_workload(subject: str) -> bool:
    """Whether a name can be of a workload: it is not, and cannot be, a path."""
    return not Path(subject).exists() and "/" not in subject.partition("(")[0]


@contextmanager
def _compiled(
    jobs: "Mapping[str, Job]", options: argparse.Namespace, doing: str
) -> "Iterator[dict[str, Opened]]":
    """The plans of jobs by label, compiled at the same time; their files are there in the block."""
    from xlapipe.cli.progress import shown_steps
    from xlapipe.devices.environment.scratch import scratch_folder
    from xlapipe.diff.comparing.two_compiles import compile_each

    with shown_steps() as show, scratch_folder("diff-") as scratch:
        show(doing)
        yield compile_each(
            jobs, options.out, scratch, on_done=lambda name: show(f"compiled {name}")
        )


def _compare_jobs(options: argparse.Namespace) -> "Difference":
    if options.subjects:
        raise XlapipeError(
            "diff takes two subjects or --workload, not both; fix: leave one of them out"
        )

    from xlapipe.cli.progress import shown_steps
    from xlapipe.diff import compare_opened

    with shown_steps() as show:
        jobs = _two_jobs(options, show)
    doing = f"compiling {options.workload} with {' and with '.join(jobs)}"
    a, b = jobs
    with _compiled(jobs, options, doing) as opened:
        return compare_opened(opened[a], opened[b], names=(a, b))


def _two_jobs(options: argparse.Namespace, show: "Callable[[str], None]") -> "dict[str, Job]":
    """The two compiles by the label of what differs between them; A first."""
    from dataclasses import replace

    from xlapipe.diff.comparing.two_compiles import (
        jobs_of_options,
        jobs_of_policies,
        jobs_of_versions,
    )

    policies: tuple[str, ...] = options.gemm
    given = [options.versions is not None, options.options is not None, len(policies) == 2]
    if sum(given) != 1:
        raise XlapipeError(
            "--workload: give one thing in which the two compiles differ: --versions X,Y, "
            f"--options K=V, or --gemm X,Y; found {sum(given) or 'none'} of them"
        )
    compile_options = compile_settings(options, policies)
    if options.versions is not None:
        return jobs_of_versions(
            options.workload, compile_options, options.versions, on_install=show
        )
    if options.options is not None:
        xla_options = parse_xla_options(options.options)
        return jobs_of_options(
            options.workload, compile_options, xla_options, label=options.options
        )
    return jobs_of_policies(options.workload, replace(compile_options, policies=()), policies)
