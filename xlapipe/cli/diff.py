"""List what differs between two plans, and its cost in bytes; a dump of torch Inductor and one of
XLA are shown side by side.

  xlapipe diff BEFORE AFTER
      what changed, and what it costs
  xlapipe diff --base origin/main
      what the working tree changes in the plans of all registered workloads
"""

import argparse
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.cli.compile_options import GEMM_POLICIES, TARGET, compile_settings
from xlapipe.cli.options import JOBS, NETWORK, PATH_HELP, WORKLOAD_HELP, Options, hidden
from xlapipe.cli.output import print_error, print_json, print_lines, print_markdown, print_text
from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xlapipe.compile.job import Job, XlaOption
    from xlapipe.differences import Difference
    from xlapipe.differences.compilers import CompilerComparison
    from xlapipe.report.changed_workloads import Limits

_BETWEEN_OPTIONS = re.compile(r",(?=\s*xla_\w+=)")
_OPTION = re.compile(r"\s*(xla_\w+)=(.*)")


def parse_policies(text: str) -> tuple[str, ...]:
    """One or two GEMM policies in `X,Y`."""
    policies = tuple(text.split(","))
    is_known = set(policies) <= set(GEMM_POLICIES)
    if len(policies) > 2 or len(set(policies)) < len(policies) or not is_known:
        raise XlapipeError(
            f"--gemm {text}: expected one or two different ones of {', '.join(GEMM_POLICIES)}"
        )
    return policies


def parse_xla_options(text: str) -> "dict[str, XlaOption]":
    """XLA options in `K=V,K=V`; a value may contain commas.

    >>> parse_xla_options("xla_a=true,xla_b=FUSION,CUBLAS,xla_c=3")
    {'xla_a': True, 'xla_b': 'FUSION,CUBLAS', 'xla_c': 3}
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


def limits(text: str) -> "Limits":
    from xlapipe.report.changed_workloads import parse_limits

    return parse_limits(text)


def _typed(value: str) -> "XlaOption":
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value


CONFIG = {name: TARGET[name] for name in TARGET if name.startswith("--target-config")}
OPTIONS: Options = {
    "subjects PATH|WORKLOAD": {
        "nargs": "*",
        "help": f"two of: {PATH_HELP}; or a workload, which is compiled first",
    },
    "--all": "list every change",
    "--base REF": "compile the workloads of this folder's project, all or those that are named, "
    "and those of a commit, in a temporary git worktree; a program that is the same is compiled "
    "once",
    "--fail-on LIMITS": {
        "type": limits,
        "metavar": "LIMITS",
        "help": "with --base or --markdown: exit code 1 if a plan costs more, e.g. "
        "time=3%%,memory=1%%,collectives=0%%,donation,recompiles,expectations",
    },
    "--markdown": "with --base, or of two folders of dumps: a comment for a pull request",
    "--workload WORKLOAD": f"compile it twice instead: {WORKLOAD_HELP}",
    "--options K=V,…": "without and with these XLA options",
    "--gemm X[,Y]": {
        "type": parse_policies,
        "default": (),
        "help": "with two GEMM policies; one applies to both",
    },
    **{name: TARGET[name] for name in TARGET if name not in CONFIG},
    **NETWORK,
    "--out DIR": "keep the dumps there; with --base those that differ, and a report on each",
    **hidden({"--link URL": "", **JOBS, **CONFIG}),
}


def run(options: argparse.Namespace) -> int:
    if options.base is not None:
        return _compare_commits(options)
    if options.fail_on and not options.markdown:
        raise XlapipeError(
            "diff: --fail-on is for --base or --markdown; fix: add one of them, or leave it out"
        )
    if options.markdown:
        return _print_markdown(options)
    compilers = _compare_compilers(options)
    if compilers is not None:
        return _print_compilers(compilers, json_output=options.json)
    difference = _difference(options)
    if options.json:
        from xlapipe.report.difference import difference_figures

        print_json(difference_figures(difference))
    else:
        from xlapipe.report.difference import difference_lines

        print_lines(difference_lines(difference, everything=options.all))
    return 0 if difference.same else 1


def _print_markdown(options: argparse.Namespace) -> int:
    from xlapipe.report.changed_dumps import changed_dumps, changed_markdown
    from xlapipe.report.changed_workloads import broken_limits

    folders = list(map(Path, options.subjects))
    if len(folders) != 2 or options.workload is not None:
        raise XlapipeError("diff --markdown takes two folders of dumps; fix: name BEFORE and AFTER")
    for folder in folders:
        if not folder.is_dir():
            raise XlapipeError(
                f"{folder}: expected a folder of dumps, found "
                f"{'a file' if folder.exists() else 'none'}; fix: give the folder above the dumps, "
                "or an empty one if there was none before"
            )
    changed = changed_dumps(*folders)
    broken = broken_limits(options.fail_on or {}, changed)
    if options.json:
        print_json(changed)
    else:
        print_markdown(changed_markdown(changed, link=options.link, notes=broken))
    return _print_broken(broken)


def _print_broken(broken: "Sequence[str]") -> int:
    """Prints each limit that is broken, on stderr; the exit code."""
    for line in broken:
        print_error(line)
    return 1 if broken else 0


def _compare_commits(options: argparse.Namespace) -> int:
    if options.workload or options.options:
        raise XlapipeError(
            "diff: --base compares two commits, not --workload or --options; fix: leave them out, "
            "and name workloads as arguments"
        )
    from xlapipe.cli.progress import shown_steps
    from xlapipe.devices.environment.scratch import scratch_folder
    from xlapipe.differences.comparing.base_checkout import base_checkout
    from xlapipe.differences.comparing.two_commits import compile_both
    from xlapipe.report.changed_dumps import changed_lines, changed_markdown
    from xlapipe.report.changed_workloads import changed_workloads, keep_changed

    settings = compile_settings(options, options.gemm)
    with (
        shown_steps() as show,
        base_checkout(options.base) as base,
        scratch_folder("diff-") as scratch,
    ):
        both = compile_both(
            base,
            options.subjects,
            settings,
            scratch,
            at_once=options.jobs or os.cpu_count() or 1,
            on_done=lambda name: show(f"compiled {name}"),
        )
        compared = changed_workloads(base, both, options.fail_on or {})
        if options.out is not None:
            keep_changed(both, compared, options.out)
    failed = [failure["message"] for failure in compared["failed"]]
    if options.json:
        print_json(compared)
    elif options.markdown:
        print_markdown(
            changed_markdown(
                compared["changed"],
                link=options.link,
                title=compared["title"],
                notes=[*compared["broken"], *failed, *compared["notes"]],
            )
        )
    else:
        for note in (compared["title"], *compared["notes"]):
            print_text(note)
        print_lines(changed_lines(compared["changed"]))
    for message in failed:
        print_error(message)
    return _print_broken(compared["broken"]) or (2 if failed else 0)


def _compare_compilers(options: argparse.Namespace) -> "CompilerComparison | None":
    """The comparison of a dump of torch Inductor with one of XLA; None for other arguments."""
    if options.workload is not None or len(options.subjects) != 2:
        return None
    paths = list(map(Path, options.subjects))

    from xlapipe.inductor.open_path import is_inductor_dump, open_path

    inductor = [path for path in paths if is_inductor_dump(path)]
    if len(inductor) != 1:
        return None

    from xlapipe.differences.compilers import compare_compilers
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


def _difference(options: argparse.Namespace) -> "Difference":
    """The difference of two dumps, of two workloads, of one of each, or of two compiles of one."""
    from xlapipe.differences import compare_opened

    if options.workload is None:
        from xlapipe.inductor.open_path import open_path

        a, b = names = _two_subjects(options)
        workloads = [name for name in names if _is_workload(name)]
        opened = {name: open_path(Path(name)) for name in names if name not in workloads}
        if not workloads:
            return compare_opened(opened[a], opened[b], names=(a, b))

    from xlapipe.cli.progress import shown_steps
    from xlapipe.compile.make_jobs import jobs_of
    from xlapipe.devices.environment.scratch import scratch_folder
    from xlapipe.differences.comparing.two_commits import compile_each

    with shown_steps() as show, scratch_folder("diff-") as scratch:
        if options.workload is None:
            # All names are looked up before the first compile.
            settings = compile_settings(options, options.gemm)
            jobs = {name: jobs_of([name], settings)[0] for name in workloads}
            show(f"compiling {' and '.join(jobs)}")
        else:
            opened, jobs = {}, _two_jobs(options)
            a, b = jobs
            show(f"compiling {options.workload} with {' and with '.join(jobs)}")
        opened |= compile_each(
            jobs, options.out, scratch, on_done=lambda name: show(f"compiled {name}")
        )
        return compare_opened(opened[a], opened[b], names=(a, b))


def _two_subjects(options: argparse.Namespace) -> "tuple[str, str]":
    names, several = options.subjects, len(options.gemm) > 1
    if len(names) != 2 or options.options or several:
        raise XlapipeError(
            "diff takes two of dumps and workloads, or --workload with --options or --gemm X,Y; "
            f"found {len(names)} without --workload; fix: name two, or add --workload"
        )
    if not any(map(_is_workload, names)) and (options.gemm or options.out is not None):
        raise XlapipeError(
            "diff: --gemm and --out are for compiles, and both subjects are dumps; fix: leave "
            "them out"
        )
    a, b = names
    return a, b


def _is_workload(subject: str) -> bool:
    """Whether a name can be of a workload: it is not, and cannot be, a path."""
    return not os.path.exists(subject) and "/" not in subject.partition("(")[0]


def _two_jobs(options: argparse.Namespace) -> "dict[str, Job]":
    """Two compiles of one workload, by the label of what differs between them; A first."""
    from xlapipe.compile.make_jobs import jobs_to_compare

    if options.subjects:
        raise XlapipeError(
            "diff takes two subjects or --workload, not both; fix: leave one of them out"
        )
    policies: tuple[str, ...] = options.gemm
    given = [options.options is not None, len(policies) == 2]
    if sum(given) != 1:
        raise XlapipeError(
            "--workload: give one thing in which the two compiles differ: --options K=V, or "
            f"--gemm X,Y; found {'both' if all(given) else 'none'} of them"
        )
    common = compile_settings(options, policies)
    settings = {policy: replace(common, policies=(policy,)) for policy in policies}
    if options.options is not None:
        changed = replace(common, options=parse_xla_options(options.options))
        settings = {"XLA's default options": common, options.options: changed}
    jobs = jobs_to_compare(options.workload, [*settings.values()])
    return dict(zip(settings, jobs, strict=True))
