"""Mutation run: which changes of constants, tables and comparisons do the tests notice?

`make mutants`, or `python -m tests.mutants.run [PACKAGE_OR_MODULE ...]`. The tests are those
without the marker `jax`, which compile nothing. Outcomes are kept in build/mutants, so that
an interrupted run continues, and a killed mutant runs again only when its module has changed. Do
not edit xlapipe or tests while it runs.

mutmut 3 changes only bodies of functions, and our tables are outside of them; cosmic-ray changes no
tables, and starts a pytest per mutant, which takes 2 s or more.
"""

import argparse
import importlib
import json
import marshal
import os
import pickle
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from tests.mutants.child_sessions import Lines, Outcome, Recorded
from tests.mutants.mentions import lines_that_mention
from tests.mutants.mutations import Mutant, modules_of, mutants_of
from tests.mutants.results import Results, digest_of_tree, reading_tests
from tests.mutants.servers import Request, Servers
from tests.mutants.survivors import page, print_summary, survivors_page

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "build" / "mutants"
PAGE = ROOT / "docs" / "lab" / "mutants.md"
SURVIVORS = ROOT / "tests" / "mutants" / "survivors.md"
PACKAGES = ("xlapipe/plans", "xlapipe/expect", "xlapipe/diff", "xlapipe/time/cost")
TESTS = tuple(str(file.relative_to(ROOT)) for file in reading_tests(ROOT))

# Imported once, before processes are forked.
_LIBRARIES = ("beartype", "google.protobuf", "jaxtyping", "jinja2", "numpy", "pytest", "xdist")

# How many of the tests that killed other mutants of a function or module run first.
_LIKELY_TESTS = 10
# Tests that take longer than this run last, also if they are likely to fail.
_SLOW_S = 0.3
# Among tests that take less than this, those that run few lines are first: they state one thing.
_FAST_S = 0.05

Places = Mapping[str, Lines]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the mutants that have no outcome yet; writes outcomes and the page."""
    description, _, _ = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("paths", nargs="*", default=PACKAGES, help="packages or modules")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders or files of tests")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of CPU per mutant")
    parser.add_argument("--fresh", action="store_true", help="run also what has an outcome")
    options = parser.parse_args(arguments)
    if sys.version_info < (3, 12):
        parser.error(
            "expected Python 3.12 or newer, for sys.monitoring; fix: make PYTHON=python3.12"
        )
    os.chdir(ROOT)
    os.nice(10)
    for library in _LIBRARIES:
        importlib.import_module(library)

    start = time.monotonic()
    console = Console(stderr=True)
    modules = {path: mutants_of(ROOT, path) for path in modules_of(ROOT, tuple(options.paths))}
    mutants = [mutant for _, of_module in modules.values() for mutant in of_module]
    results = Results(ROOT, RESULTS / "outcomes.jsonl", fresh=options.fresh)
    waiting = [mutant for mutant in mutants if results.outcome(mutant) is None]
    waiting.sort(key=results.survived_before)
    if waiting:
        mentions = lines_that_mention(ROOT, {name for mutant in mutants for name in mutant.names})
        wanted = frozenset(
            {(mutant.path, line) for mutant in mutants for line in mutant.lines}.union(
                *mentions.values()
            )
        )
        tests_run = tuple(options.tests)
        with Servers(ROOT, options.jobs, wanted, tests_run) as servers:
            recorded = _record(servers, wanted, tests_run, console)
            tests_at = _tests_at(recorded)

            def request(mutant: Mutant) -> Request:
                at_import = not mutant.in_function or bool(
                    {(mutant.path, line) for line in mutant.lines} & servers.lines_at_import
                )
                covering = _covering_tests(mutant, tests_at, mentions)
                tests = _in_order(covering, recorded, results.likely_tests(mutant, _LIKELY_TESTS))
                tree = mutant.module(modules[mutant.path][0])
                code = compile(tree, str(ROOT / mutant.path), "exec", dont_inherit=True)
                seconds = {test: recorded[test].seconds for test in tests}
                message = (mutant.path, marshal.dumps(code), tests, seconds, options.budget)
                return not at_import, ("mutant", *message)

            with _progress(console) as progress:
                task = progress.add_task("mutants", total=len(waiting))

                def done(mutant: Mutant, outcome: Outcome) -> None:
                    if outcome.killed_by is not None or tests_run == TESTS:
                        results.add(mutant, outcome)
                    progress.advance(task)

                servers.run(waiting, request, done)
    seconds = time.monotonic() - start

    outcomes = {mutant: results.outcome(mutant) for mutant in mutants}
    records = [
        {"mutant": mutant.key, "kind": mutant.kind, "line": mutant.line} | asdict(outcome)
        for mutant, outcome in outcomes.items()
        if outcome is not None
    ]
    (RESULTS / "results.json").write_text(json.dumps(records, indent=1, ensure_ascii=False))
    print_summary(outcomes, console)
    console.print(f"{len(waiting)} mutants run in {seconds:.0f} s: {RESULTS / 'results.json'}")
    if tuple(options.paths) == PACKAGES and tests_run == TESTS:
        PAGE.write_text(page(outcomes, options.budget))
        SURVIVORS.write_text(survivors_page(outcomes))
        console.print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


def _progress(console: Console) -> Progress:
    columns = [*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()]
    return Progress(*columns, console=console)


def _record(
    servers: Servers, wanted: Lines, tests_run: tuple[str, ...], console: Console
) -> dict[str, Recorded]:
    """The lines and the time of each test that passes, each run in a process of its own."""
    file = RESULTS / "recorded.pickle"
    key = (digest_of_tree(ROOT), wanted, tests_run)
    if file.exists():
        known_key, recorded = pickle.loads(file.read_bytes())
        if known_key == key:
            return recorded
    recorded = {}
    with _progress(console) as progress:
        task = progress.add_task("lines of each test", total=len(servers.tests))

        def done(test: str, answer: Recorded) -> None:
            recorded[test] = answer
            progress.advance(task)

        servers.run(servers.tests, lambda test: (True, ("record", test)), done)
    failed = [test for test, answer in recorded.items() if not answer.passed]
    if failed:
        console.print("[yellow]left out, since they fail when they run alone:[/]", *failed)
    recorded = {test: answer for test, answer in recorded.items() if answer.passed}
    file.write_bytes(pickle.dumps((key, recorded)))
    return recorded


def _tests_at(recorded: Mapping[str, Recorded]) -> dict[tuple[str, int], list[str]]:
    tests: dict[tuple[str, int], list[str]] = defaultdict(list)
    for test, answer in recorded.items():
        for place in answer.lines:
            tests[place].append(test)
    return tests


def _covering_tests(
    mutant: Mutant, tests_at: Mapping[tuple[str, int], Sequence[str]], mentions: Places
) -> set[str]:
    """Tests that run what the mutant changes.

    For what runs at import: tests that run lines which mention what is defined there.
    """
    places = {(mutant.path, line) for line in mutant.lines}
    for name in mutant.names:
        places |= mentions[name]
    return {test for place in places for test in tests_at.get(place, ())}


def _in_order(
    covering: Iterable[str], recorded: Mapping[str, Recorded], likely: Iterable[str]
) -> list[str]:
    """Likely ones first, then fast ones that run few lines in all, then the others by time."""

    def rank(test: str) -> tuple[bool, float]:
        seconds, lines = recorded[test].seconds, len(recorded[test].lines)
        return seconds > _FAST_S, seconds if seconds > _FAST_S else lines

    by_rank = sorted(covering, key=rank)
    known = set(by_rank)
    first = [test for test in likely if test in known and recorded[test].seconds < _SLOW_S]
    return list(dict.fromkeys([*first, *by_rank]))


if __name__ == "__main__":
    raise SystemExit(main())
