"""Tables of the forms that `xlapipe choose` compiled, from `choose_regret.json`."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from statistics import mean
from typing import Any

PRESETS = ("recompute everything", "keep matrix products", "keep only", "keep everything")
# Limits, as shares of the way from the smallest plan to the largest.
SHARES = (0.05, 0.25, 0.45, 0.65, 0.85)
# Of plans and predicted times: the default of `xlapipe choose`, and `--tuning none`.
BASES = ("predicted_lock", "untuned")


def at_limits(
    rows: Sequence[dict[str, Any]], basis: str, seconds: Callable[[dict[str, Any]], float]
) -> list[dict[str, Any]]:
    """For each limit, the row that `choose` takes, the fastest one and the best preset.

    Args:
      rows: of a family of the record.
      basis: of the plans that are compared with the limit, and of the times by which `choose`
        takes a row: `predicted_lock`, its default, or `untuned`.
      seconds: of a row, infinite if it is not known: the fastest row and the best preset have the
        least of those that fit.
    """
    sizes = [row[basis]["total_bytes"] for row in rows]
    table = []
    for limit in (int(min(sizes) + share * (max(sizes) - min(sizes))) for share in SHARES):
        fitting = [row for row in rows if row[basis]["total_bytes"] <= limit]
        chosen = min(fitting, key=lambda row: float(row[basis]["predicted_seconds"]))
        fastest = min(fitting, key=seconds)
        preset = min(filter(is_preset, fitting), key=seconds, default=None)
        entry = {"limit_bytes": limit, "chosen": chosen["row"], "fastest": fastest["row"]}
        entry |= {"regret": seconds(chosen) / seconds(fastest) - 1}
        entry |= {"preset": preset["row"] if preset is not None else None}
        gain = seconds(chosen) / seconds(preset) - 1 if preset is not None else None
        table.append({**entry, "beside_preset": gain})
    return table


def measured_seconds(row: dict[str, Any]) -> float:
    """Of a call on the GPU, in a sequence of calls; infinite for a form that was not timed."""
    return float(row.get("tuned", {}).get("step_seconds", math.inf))


def is_preset(row: dict[str, Any]) -> bool:
    """Whether a row is the step as written, or one of jax's own policies."""
    return row["change"] is None or row["change"].startswith(PRESETS)


def _head() -> list[str]:
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    return [f"| step | plans | {shares} |", f"|---|---|{'--:|' * len(SHARES)}"]


def _line(family: dict[str, Any], cells: Iterable[str]) -> str:
    sizes = [row["predicted_lock"]["total_bytes"] for row in family["rows"]]
    plans = f"{min(sizes) / 2**30:.2f} to {max(sizes) / 2**30:.2f} GiB"
    return f"| {family['family']} | {plans} | {' | '.join(cells)} |"


def _gain(limit: dict[str, Any]) -> str:
    gain = limit["beside_preset"]
    return "none fits" if gain is None else f"{gain:+.1%}" if gain else "0"


def timed_families(families: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of which every form ran that is chosen at a limit, on both bases."""
    return [
        family
        for family in families
        if all(
            math.isfinite(measured_seconds(family["rows"][limit["chosen"]]))
            for basis in BASES
            for limit in at_limits(family["rows"], basis, measured_seconds)
        )
    ]


def regret_table(families: Sequence[dict[str, Any]]) -> list[str]:
    """In Markdown: at each limit, the regret of the chosen row, and its time beside the preset's.

    Args:
      families: those of the record.
    """
    lines = _head()
    for family in timed_families(families):
        limits = at_limits(family["rows"], "predicted_lock", measured_seconds)
        lines.append(_line(family, (f"{limit['regret']:.1%}, {_gain(limit)}" for limit in limits)))
    return lines


def ordered_share(rows: Sequence[dict[str, Any]], basis: str) -> float:
    """The share of pairs of rows, at least 3 % apart as measured, that are predicted in order."""
    right = []
    for one, other in combinations(rows, 2):
        slow, fast = sorted((one, other), key=measured_seconds, reverse=True)
        if measured_seconds(slow) >= 1.03 * measured_seconds(fast):
            right.append(slow[basis]["predicted_seconds"] > fast[basis]["predicted_seconds"])
    return sum(right) / len(right) if right else 1.0


def accuracy_table(families: Sequence[dict[str, Any]]) -> list[str]:
    """In Markdown: how far predicted times and planned bytes are off, by basis."""
    lines = [
        "| step | forms timed | measured | basis | predicted / measured | mean error "
        "| pairs in order | largest regret | plan / device's |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for family in families:
        rows = [row for row in family["rows"] if "tuned" in row]
        if not rows:
            continue
        seconds = [1e3 * measured_seconds(row) for row in rows]
        first = [family["family"], f"{len(rows)} of {len(family['rows'])}"]
        first += [f"{min(seconds):.1f} to {max(seconds):.1f} ms"]
        for basis in BASES:
            ratios = [row[basis]["predicted_seconds"] / measured_seconds(row) for row in rows]
            sizes = [row[basis]["total_bytes"] / row["tuned"]["total_bytes"] for row in rows]
            limits = at_limits(family["rows"], basis, measured_seconds)
            cells = [
                *first,
                basis.replace("predicted_lock", "predicted tuning"),
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{mean(abs(ratio - 1) for ratio in ratios):.1%}",
                f"{ordered_share(rows, basis):.0%}",
                f"{max(limit['regret'] for limit in limits):.1%}"
                if family in timed_families([family])
                else "",
                f"{min(sizes) - 1:+.1%} to {max(sizes) - 1:+.1%}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
            first = [""] * len(first)
    return lines
