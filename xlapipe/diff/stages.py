"""The compiler stage at which two compiles first part, and what a plan does not hold of the HLO."""

import re
from dataclasses import dataclass
from pathlib import Path

from xlapipe.diff.changes import HiddenChange
from xlapipe.dumps.dump import PLAN, Dump, read_file
from xlapipe.dumps.normal_hlo import normal_hlo
from xlapipe.dumps.normal_plan import NormalForm, first_stage_apart
from xlapipe.errors import DumpError
from xlapipe.read.file_contents import read_source

_SHARDING = re.compile(r", (?:sharding|frontend_attributes)=(?=\{)")
# In front of it, plan.txt says what it was made with.
_FIRST_SECTION = "\n["


@dataclass(frozen=True)
class StageTexts:
    """What a dump keeps of a compile's stages; None where it keeps nothing.

    Attributes:
      before, after: the module before and after optimisation, as XLA prints it.
      plan: plan.txt, from its first section on.
    """

    before: str | None
    after: str | None
    plan: str | None


def texts_of_dump(dump: Dump) -> StageTexts:
    """The texts of a dump of xlapipe's.

    Raises:
      DumpError: one of them is missing or damaged.
    """
    before, after, plan = (
        read_file(dump.path, name).decode(errors="replace")
        for name in ("before_optimizations.txt", "after_optimizations.txt", PLAN)
    )
    return StageTexts(before, after, plan[plan.find(_FIRST_SECTION) :])


def texts_beside(path: Path) -> StageTexts:
    """The texts of an XLA dump, where its folder has one of each."""
    folder = path if path.is_dir() else path.parent

    def only(ending: str) -> str | None:
        found = [each for each in folder.glob(f"*{ending}*") if each.is_file()]
        try:
            return read_source(found[0]).text if len(found) == 1 else None
        except DumpError:
            return None  # nothing that the plan is read from

    return StageTexts(only("before_optimizations.txt"), only("after_optimizations.txt"), None)


def first_stage(a: StageTexts, b: StageTexts, *, other_hlo: bool) -> str | None:
    """The first stage at which two compiles part, in words; None where that is not to be told.

    Args:
      other_hlo: the optimised modules are known to differ, so that they need not be compared.
    """
    if a.before is None or b.before is None:
        return None
    before = _apart(a.before, b.before)
    after = ("A", "B") if other_hlo else _apart(a.after, b.after)
    plan = (a.plan, b.plan) if a.plan is not None and b.plan is not None else ("", "")
    forms = (
        NormalForm(plan=plan[side], hlo=after[side], lowered_sha256=before[side]) for side in (0, 1)
    )
    return first_stage_apart(*forms)


def _apart(a: str | None, b: str | None) -> tuple[str, str]:
    """Two equal texts where the modules are the same, but for names and shardings' spelling."""
    if a is None or b is None or a == b:
        return "", ""
    one, other = (_without_shardings(normal_hlo(text, entry_names=False)) for text in (a, b))
    return one, other


def hidden_change(a: StageTexts, b: StageTexts) -> HiddenChange | None:
    """The first line in which optimised modules differ, names apart; None where none is known."""
    if a.after is None or b.after is None or a.after == b.after:
        return None
    # The header has the module's name; what else it says, the plan holds.
    lines_a, lines_b = (
        normal_hlo(text, entry_names=False).splitlines()[1:] for text in (a.after, b.after)
    )
    for one, other in zip(lines_a, lines_b, strict=False):
        if one != other:
            return HiddenChange(one.strip(), other.strip())
    if len(lines_a) != len(lines_b):
        return HiddenChange(f"{len(lines_a)} lines", f"{len(lines_b)} lines")
    return None


def _without_shardings(text: str) -> str:
    """Drops the braces behind `sharding=` and `frontend_attributes=`; the header stays out too."""
    pieces, position = [], text.find("\n") + 1
    for found in _SHARDING.finditer(text):
        if found.start() < position:
            continue
        pieces.append(text[position : found.start()])
        position = _closing_brace(text, found.end()) + 1
    return "".join(pieces) + text[position:]


def _closing_brace(text: str, start: int) -> int:
    depth, quoted = 0, False
    for position in range(start, len(text)):
        character = text[position]
        if character == '"' and text[position - 1] != "\\":
            quoted = not quoted
        elif not quoted and character == "{":
            depth += 1
        elif not quoted and character == "}":
            depth -= 1
            if depth == 0:
                return position
    return len(text)
