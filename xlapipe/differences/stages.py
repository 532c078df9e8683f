"""The compiler stage at which two compiles first differ, and differences of the HLO alone."""

import re

from xlapipe.differences.changes import HiddenChange
from xlapipe.dump.normal_form.hlo import normal_hlo
from xlapipe.dump.normal_form.plan import NormalForm, compare
from xlapipe.dump.readers.hlo_syntax import bracket_end
from xlapipe.dump.xla_files import XlaFiles

_SHARDING = re.compile(r", (?:sharding|frontend_attributes)=(?=\{)")


def first_stage(a: XlaFiles, b: XlaFiles, *, other_hlo: bool) -> str | None:
    """The first stage at which two compiles differ, as text; None if the dumps do not show it."""
    if a.hlo_before is None or b.hlo_before is None:
        return None
    before = _normal_texts(a.hlo_before, b.hlo_before)
    after = ("A", "B") if other_hlo else _normal_texts(a.hlo_after, b.hlo_after)
    plans = a.plan_sections, b.plan_sections
    plan = (plans[0] or "", plans[1] or "") if None not in plans else ("", "")
    forms = (NormalForm(plan[side], after[side], before[side].encode()) for side in (0, 1))
    return compare(*forms).stage


def _normal_texts(a: str | None, b: str | None) -> tuple[str, str]:
    """Two texts that are equal if the modules differ only in names and spelling of shardings."""
    if a is None or b is None or a == b:
        return "", ""
    normal_a, normal_b = (
        _without_shardings(normal_hlo(text, entry_names=False)) for text in (a, b)
    )
    return normal_a, normal_b


def hidden_change(a: XlaFiles, b: XlaFiles) -> HiddenChange | None:
    """The first line in which optimised modules differ, ignoring names; None if none is known."""
    texts = a.hlo_after, b.hlo_after
    if texts[0] is None or texts[1] is None or texts[0] == texts[1]:
        return None
    # The header contains the module's name; the plan contains all else in it.
    lines_a, lines_b = (
        normal_hlo(text, entry_names=False).splitlines()[1:] for text in (texts[0], texts[1])
    )
    # If one had more lines, an earlier one would call the computation that they are in.
    for line_a, line_b in zip(lines_a, lines_b, strict=False):
        if line_a != line_b:
            return HiddenChange(line_a.strip(), line_b.strip())
    return None


def _without_shardings(text: str) -> str:
    """The text without its header and without `sharding={…}` and `frontend_attributes={…}`."""
    pieces, position = [], text.find("\n") + 1
    for attribute in _SHARDING.finditer(text):
        if attribute.start() < position:
            continue
        pieces.append(text[position : attribute.start()])
        end = bracket_end(text, attribute.end())
        position = end if end > 0 else len(text)
    return "".join(pieces) + text[position:]
