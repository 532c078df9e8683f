"""What changed in the plans of workloads between two commits."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from xlapipe.differences.comparing.base_checkout import BaseCheckout
from xlapipe.differences.comparing.two_commits import TwoCommits, folder_name
from xlapipe.dump.dump import is_dump, open_dump
from xlapipe.errors import XlapipeError
from xlapipe.files.writing import write_files
from xlapipe.plans.wording import counted, listed
from xlapipe.report.changed_dumps import broken_expectations, changed_dumps
from xlapipe.report.html_page import render_page
from xlapipe.report.xla_subject import XlaSubject

# Figures by the name of a limit in percent; more of them is worse.
_SHARES = {"time": "step_seconds", "memory": "total_bytes", "collectives": "wire_bytes"}
_FLAGS = ("donation", "recompiles", "expectations")
_LIMIT = re.compile(r"(\w+)(?:=(\d+(?:\.\d+)?)%?)?")

Limits = Mapping[str, float]
"""Percent by name; 0 for a limit without a number."""


def changed_workloads(base: BaseCheckout, both: TwoCommits, limits: Limits) -> dict[str, Any]:
    """The JSON of `xlapipe diff --base`: workloads whose plans differ, and what is to be known."""
    has_dumps = any(both.after.iterdir()) or any(both.before.iterdir())
    changed = changed_dumps(both.before, both.after) if has_dumps else []
    for dump in changed:
        dump["name"] = unquote(dump["name"])
    named = {dump["name"] for dump in changed}
    notes = [
        *base.notes,
        *(
            f"{base.name} does not compile {listed(names, 3)}, so that nothing is compared: {text}"
            for text, names in both.failed_before.items()
        ),
    ]
    same = both.count - len(named) - len(both.failed)
    title = f"{len(named)} of {counted(both.count, 'workload')} changed since {base.name}"
    return {
        "base": base.commit,
        "title": f"{title}, {same} did not.",
        "workloads": both.count,
        "notes": notes,
        "failed": [{"workload": name, "message": text} for name, text in both.failed.items()],
        "broken": broken_limits(limits, changed),
        "changed": changed,
    }


def keep_changed(both: TwoCommits, compared: dict[str, Any], out: Path) -> None:
    """Copies the dumps that differ below `out`, with a report on each, and the JSON."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise XlapipeError(f"{out}: expected an empty folder, or none; fix: choose another --out")
    pages = {out / "changes.json": json.dumps(compared, indent=1).encode()}
    for name in (folder_name(dump["name"]) for dump in compared["changed"]):
        kept = [side / name for side in (both.before, both.after) if is_dump(side / name)]
        subjects = [XlaSubject(open_dump(path), given_name=path.parent.name) for path in kept]
        pages[out / f"{name}.html"] = render_page(subjects).encode(errors="replace")
        for path in kept:
            shutil.copytree(path, out / path.parent.name / name)
    write_files(pages)


def parse_limits(text: str) -> Limits:
    """Limits as a person writes them.

    >>> parse_limits("time=3%, donation")
    {'time': 3.0, 'donation': 0.0}
    """
    limits = {}
    for part in filter(None, map(str.strip, text.split(","))):
        match = _LIMIT.fullmatch(part)
        name, percent = match.groups() if match is not None else ("", None)
        if name not in (*_SHARES, *_FLAGS) or (name in _FLAGS) != (percent is None):
            raise XlapipeError(
                f"--fail-on {part}: expected {', '.join(f'{name}=PERCENT' for name in _SHARES)}, "
                f"{', '.join(_FLAGS)}; fix: write e.g. time=3%,memory=1%,donation"
            )
        limits[name] = float(percent or 0)
    return limits


def broken_limits(limits: Limits, changed: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each limit that a dump breaks, with the largest cause and its source line."""
    return [
        f"{dump['name']}: {text}"
        for dump in changed
        if dump["before"] is not None and dump["after"] is not None
        for name, percent in limits.items()
        for text in _broken(name, percent, dump)
    ]


def _broken(name: str, percent: float, dump: Mapping[str, Any]) -> Iterator[str]:
    old, new = dump["before"], dump["after"]
    if name in _SHARES:
        before, after = old[_SHARES[name]], new[_SHARES[name]]
        if before is None or after is None or after <= before * (1 + percent / 100):
            return
        if name == "time" and dump["time_within_error"]:
            return
        share = f"{after / before - 1:+.1%}" if before else f"{after:,} instead of 0"
        causes = dump["causes"]["time" if name == "time" else "bytes"]
        cause = f"; first cause: {causes[0]}" if causes and name != "collectives" else ""
        yield f"{name} {share}, more than {percent:g} %{cause}"
    elif name == "donation":
        if lost := dump["lost_donations"]:
            yield f"donation: {listed(lost, 3)} no longer updated in place"
    elif name == "recompiles" and (new["recompiles"] or 0) > (old["recompiles"] or 0):
        yield f"recompiles: {new['recompiles']} leaves compile the step again at its second call"
    elif name == "expectations":
        yield from (f"expectation {text} does not hold" for text in broken_expectations(dump))
