"""The table of killed mutants, and the list of survivors with their reasons."""

import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutants.child_sessions import Outcome
from tests.mutants.mutations import Mutant

REASONS = Path(__file__).with_name("survivors.toml")

Outcomes = Mapping[Mutant, Outcome | None]


@dataclass(frozen=True)
class Reason:
    """Why a group of mutants survives.

    Attributes:
      mutants: what their keys start with: a module, a place of it, or one mutant.
      kind: `equivalent`, `display` or `untested`.
      because: a sentence.
      change: what is changed, if the reason holds for this change alone.
    """

    mutants: str
    kind: str
    because: str
    change: str = ""

    def holds_for(self, mutant: Mutant) -> bool:
        """Whether this is the reason for a mutant."""
        return mutant.key.startswith(self.mutants) and self.change in (mutant.change, "")


def read_reasons() -> list[Reason]:
    """The reasons in survivors.toml, in its order."""
    return [Reason(**entry) for entry in tomllib.loads(REASONS.read_text()).get("reason", [])]


def print_summary(outcomes: Outcomes, console: Console) -> None:
    """Prints the table of packages."""
    table = Table("package", "mutants", "killed", "share")
    for row in _rows(outcomes):
        table.add_row(*row)
    console.print(table)


def page(outcomes: Outcomes, budget_s: float) -> str:
    """The page docs/lab/mutants.md, of a run with so many seconds of CPU per mutant."""
    run = f"Run of {date.today()}, with at most {budget_s:g} s of CPU per mutant:"
    lines = [_INTRODUCTION, run, "", "| package | mutants | killed | share |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(outcomes)]
    lines += ["", "By kind:", "", "| kind | mutants | killed | share |", "|---|---|---|---|"]
    for kind in ("constant", "table", "comparison"):
        of_kind = {mutant: known for mutant, known in outcomes.items() if mutant.kind == kind}
        lines.append(f"| {' | '.join(_row(kind, of_kind))} |")
    survivors = [mutant for mutant, known in outcomes.items() if not (known and known.killed_by)]
    lines += ["", f"`tests/mutants/survivors.md` has the {len(survivors)} survivors, and why."]
    return "\n".join(lines) + "\n"


def survivors_page(outcomes: Outcomes) -> str:
    """The survivors by reason, as Markdown."""
    lines = ["# Mutants that survive", ""]
    survivors = [
        mutant for mutant, outcome in outcomes.items() if not (outcome and outcome.killed_by)
    ]
    reasons = read_reasons()
    by_reason: dict[Reason | None, list[Mutant]] = defaultdict(list)
    for mutant in survivors:
        matching = (reason for reason in reasons if reason.holds_for(mutant))
        by_reason[next(matching, None)].append(mutant)
    for kind, text in _KINDS.items():
        groups = {reason: group for reason, group in by_reason.items() if _kind(reason) == kind}
        if groups:
            lines += [f"### {kind}: {sum(map(len, groups.values()))}", "", text, ""]
        for reason, group in groups.items():
            names = [_code(mutant.key.removeprefix("xlapipe/")) for mutant in group]
            if reason is None:
                lines += [f"- {name}" for name in names]
            else:
                lines.append(f"- {reason.because} {', '.join(names)}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


_INTRODUCTION = """\
# Mutants

`make mutants` changes one constant, one entry of a table or one comparison of the packages below at
a time, and runs the tests of `tests` without the marker `jax` that run the changed line, until
one fails. `tests/mutants/mutations.py` states what is changed and what is not: text for people,
annotations, options of dataclasses. Tests that compile could kill more; they are not run.
"""

_KINDS = {
    "equivalent": "No program can behave differently.",
    "display": "Only wording, order or layout of what people read differs.",
    "untested": "A test could notice it.",
    "no reason stated": "Not looked at yet.",
}


def _kind(reason: Reason | None) -> str:
    return "no reason stated" if reason is None else reason.kind


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}".replace("\n", " ")


def _rows(outcomes: Outcomes) -> list[tuple[str, str, str, str]]:
    packages: dict[str, dict[Mutant, Outcome | None]] = defaultdict(dict)
    for mutant, outcome in outcomes.items():
        packages["/".join(mutant.path.split("/")[:2])][mutant] = outcome
    return [*(_row(name, part) for name, part in packages.items()), _row("all", outcomes)]


def _row(name: str, outcomes: Outcomes) -> tuple[str, str, str, str]:
    killed = sum(1 for outcome in outcomes.values() if outcome and outcome.killed_by)
    share = f"{killed / len(outcomes):.1%}" if outcomes else "–"
    return name, str(len(outcomes)), str(killed), share
