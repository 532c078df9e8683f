"""What a change may cost: the limits of `xlapipe diff --fail-on`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xlapipe.errors import XlapipeError
from xlapipe.plans.wording import listed
from xlapipe.report.changed_dumps import broken_expectations

# Figures by the name of a limit in percent; more of them is worse.
_SHARES = {"time": "step_seconds", "memory": "total_bytes", "collectives": "wire_bytes"}
_FLAGS = ("donation", "recompiles", "expectations")
_LIMIT = re.compile(r"(\w+)(?:=(\d+(?:\.\d+)?)%?)?")

Limits = Mapping[str, float]
"""Percent by name; 0 for a limit without a number."""


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
