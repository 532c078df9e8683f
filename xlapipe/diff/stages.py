"""The compiler stage at which two compiles first part, and what a plan does not hold of the HLO."""

import re

from xlapipe.diff.changes import HiddenChange
from xlapipe.dumps.normal_hlo import normal_hlo
from xlapipe.dumps.normal_plan import NormalForm, first_differing_stage
from xlapipe.dumps.opened import Opened

_SHARDING = re.compile(r", (?:sharding|frontend_attributes)=(?=\{)")


def first_stage(a: Opened, b: Opened, *, other_hlo: bool) -> str | None:
    """The first stage at which two compiles part, in words; None where that is not to be told.

    Args:
      other_hlo: the optimised modules are known to differ, so that they need not be compared.
    """
    if a.hlo_before is None or b.hlo_before is None:
        return None
    before = _apart(a.hlo_before, b.hlo_before)
    after = ("A", "B") if other_hlo else _apart(a.hlo_after, b.hlo_after)
    plans = a.plan_sections, b.plan_sections
    plan = (plans[0] or "", plans[1] or "") if None not in plans else ("", "")
    forms = (
        NormalForm(plan=plan[side], hlo=after[side], lowered_sha256=before[side]) for side in (0, 1)
    )
    return first_differing_stage(*forms)


def _apart(a: str | None, b: str | None) -> tuple[str, str]:
    """Two equal texts where the modules are the same, but for names and shardings' spelling."""
    if a is None or b is None or a == b:
        return "", ""
    one, other = (_without_shardings(normal_hlo(text, entry_names=False)) for text in (a, b))
    return one, other


def hidden_change(a: Opened, b: Opened) -> HiddenChange | None:
    """The first line in which optimised modules differ, names apart; None where none is known."""
    texts = a.hlo_after, b.hlo_after
    if texts[0] is None or texts[1] is None or texts[0] == texts[1]:
        return None
    # The header has the module's name; what else it says, the plan holds.
    lines_a, lines_b = (
        normal_hlo(text, entry_names=False).splitlines()[1:] for text in (texts[0], texts[1])
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
