"""Writes docs/lab/figures.md, the tables of figures that the documentation cites, from the records.

    python -m tests.figures          # what takes seconds: the first day
    python -m tests.figures --time   # also predicted times: ten minutes of CPU, no GPU

Without `--time`, the tables of predicted times stay as they are in the page.
"""

import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/lab/figures.md"
FIRST_DAY = ROOT / "tests/gpu/first_day.json"
TIME_BEGIN, TIME_END = "<!-- predicted times -->\n", "<!-- end of predicted times -->\n"
_HEAD = """\
# Figures

`python -m tests.figures` writes this page from the records in `tests/gpu`; `--time` includes
predicted times. A test compares all but those.

## Predicted times

"""
# Zoos by when they were written, as the page has them.
_GROUPS = {"2 to 6": (1, 6), "7 to 14": (6, 14), "15 to 21": (14, 21), "22 to 28": (21, 28)}


def module_at(path: str) -> ModuleType:
    """A script of this repository, by its path."""
    folder = str((ROOT / path).parent)
    sys.path.insert(0, folder)  # scripts import those beside them
    try:
        spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def predicted_times() -> Iterator[str]:
    """Tables of errors of predicted times."""
    compare = module_at("tests/gpu/time_zoo/compare.py")
    zoos = [compare.compared(name) for name in compare.ZOOS]
    yield "Errors of the sum over the kernels, of the span and of a call, with the device's plan."
    yield ""
    yield from _errors(compare, zoos)
    yield ""
    yield "Intervals at first sight of the zoos 15 to 28 and blind, each by what suits the others:"
    yield ""
    intervals = module_at("tests/gpu/time_zoo/fit_errors.py")
    yield from intervals.coverage(list(intervals.programs()), intervals.shipped_errors())
    yield ""


def _errors(compare: ModuleType, zoos: Sequence[Sequence[Any]]) -> Iterator[str]:
    halves = compare.halves()
    groups = {
        f"first zoo, {half}": [program for program in zoos[0] if program.name in names]
        for half, names in halves.items()
    }
    groups |= {
        f"zoos {name}": [program for zoo in zoos[first:last] for program in zoo]
        for name, (first, last) in _GROUPS.items()
    }
    groups["all"] = [program for zoo in zoos for program in zoo]
    for zoo, prefix, family in (
        ("blind", "machine_learning", "machine learning"),
        ("blind", "numerics", "numerics"),
        ("blind2", "learning", "machine learning"),
        ("blind2", "numerics", "numerics"),
    ):
        programs = [item for item in compare.compared(zoo) if item.name.startswith(prefix)]
        groups[f"{zoo}, {family}"] = programs
    groups["on two H200s"] = list(compare.compared("two"))
    groups["on two H100s"] = list(compare.compared("two_h100"))
    shown = ("mean", "median", "nine_of_ten", "within_15", "span_mean", "call_mean", "interval")
    headings = ("programs", "number", "mean", "median", "9 of 10", "≤ 15 %", "span", "call")
    yield f"| {' | '.join(headings)} | in the interval | median of high / low |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for name, programs in groups.items():
        row = compare.summary(programs)
        cells = (f"{row[key]:.1%}".replace("%", " %") for key in shown)
        yield f"| {name} | {len(programs)} | {' | '.join(cells)} | {row['width']:.2f} |"


def first_day() -> Iterator[str]:
    """Tables of what is predicted without a lock, beside a device."""
    programs = json.loads(FIRST_DAY.read_text(encoding="utf-8"))["programs"]
    yield "## The first day"
    yield ""
    yield "Programs that no fit has seen, by the device's plan and by one made without a lock"
    yield "as first predicted (`tests/gpu/first_day.json`); a step is of calls back to back."
    yield ""
    yield "| program | step, ms | total | kernels, by both plans | step | in the interval |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name, row in programs.items():
        total = f"{_total_error(row):+.1%}"
        if other := row["without"]["other"]:
            chance, more_bytes = other
            total += f", or {_total_error(row, more_bytes):+.1%} (chance {chance:.0%})"
        cells = [f"{1e3 * row['measured']['step_seconds']:.2f}", total]
        cells += (
            ", ".join(f"{_error(row, plan, key):+.1%}" for plan in _PLANS)
            for key in ("kernel_seconds", "step_seconds")
        )
        cells.append(", ".join("yes" if _is_inside(row, plan) else "no" for plan in _PLANS))
        yield f"| {name} | {' | '.join(cells)} |".replace("%", " %")
    yield ""
    yield "| programs | total within 2, 5 % | kernels, mean | step, mean | in the interval |"
    yield "|---|--:|--:|--:|--:|"
    for family in ("learning", "numerics"):
        rows = [row for name, row in programs.items() if name.startswith(family)]
        within = [sum(abs(_total_error(row)) <= limit for row in rows) for limit in (0.02, 0.05)]
        cells = [f"{within[0]}, {within[1]} of {len(rows)}"]
        for key in ("kernel_seconds", "step_seconds"):
            means = (mean(abs(_error(row, plan, key)) for row in rows) for plan in _PLANS)
            cells.append(", ".join(f"{it:.1%}" for it in means))
        cells.append(", ".join(str(sum(_is_inside(it, plan) for it in rows)) for plan in _PLANS))
        yield f"| {family} | {' | '.join(cells)} |".replace("%", " %")
    yield ""


_PLANS = ("with", "without")


def _error(row: Mapping[str, Any], plan: str, key: str) -> float:
    return float(row[plan][key] / row["measured"][key] - 1)


def _total_error(row: Mapping[str, Any], more_bytes: int = 0) -> float:
    total_bytes = row["without"]["total_bytes"] + more_bytes
    return float(total_bytes / row["measured"]["total_bytes"] - 1)


def _is_inside(row: Mapping[str, Any], plan: str) -> bool:
    low, high = row[plan]["interval"]
    return bool(low <= row["measured"]["step_seconds"] <= high)


def page(before: str, *, times: bool) -> str:
    """The page.

    Args:
      before: the page as it is.
      times: whether to make the tables of predicted times again.
    """
    kept = before.partition(TIME_BEGIN)[2].partition(TIME_END)[0]
    text = "\n".join(predicted_times()) if times else kept
    rest = "\n".join(first_day())
    return f"{_HEAD}{TIME_BEGIN}{text}{TIME_END}\n{rest}\n"


def main(*arguments: str) -> None:
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    PAGE.write_text(page(before, times="--time" in arguments), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
