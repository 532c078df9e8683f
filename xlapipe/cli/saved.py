"""List what a step's forward pass keeps for its backward pass.

xlapipe saved step:workload
    what is kept for the backward pass, most bytes first
xlapipe saved step:workload --free 2000000000
    the cheapest values to compute again
"""

import argparse
import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from xlapipe.cli.compile_options import TARGET, compile_settings, target_name
from xlapipe.cli.options import NETWORK, WORKLOAD, Options
from xlapipe.cli.output import print_error, print_json, print_lines
from xlapipe.errors import XlapipeError
from xlapipe.report.units import parse_bytes

if TYPE_CHECKING:
    from rich.text import Text

    from xlapipe.search.choosing.saved import SavedValues

_NAME = re.compile(r"""(?P<quote>["'])(?P<name>.+?)(?P=quote)""")
_SHOWN, _SHOWN_FORMS = 30, 5


def _free_bytes(text: str) -> int:
    try:
        free_bytes = parse_bytes(text)
    except ValueError as error:
        raise XlapipeError(f"--free {text}: {error}") from None
    if not free_bytes:
        raise XlapipeError("--free 0: expected 1 or more bytes; fix: write e.g. --free 16GB")
    return free_bytes


OPTIONS: Options = {
    **WORKLOAD,
    "--policy NAMES": "the names of the step's policy, e.g. attn,mlp or "
    "\"save_only_these_names('attn')\": those that the step gives to no value are errors",
    "--free SIZE": {
        "type": _free_bytes,
        "help": "compile the policy that computes least again and keeps so much less: bytes, or "
        "e.g. 16GB, 16GiB, 512MB",
    },
    **TARGET,
    **NETWORK,
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.search.choosing.saved import saved

    values = saved(
        options.workload,
        target_name(options),
        compile_settings(options, None),
        policy_names=_names(options.policy or ""),
        free_bytes=options.free,
    )
    if options.json:
        print_json(values)
    else:
        print_lines(_lines(values))
    for name in values.unmatched:
        given = ", ".join(values.names) or "no name"
        print_error(
            f"{options.workload}: no value has the name {name!r}, so the policy does nothing for "
            f"it; the step gives {given}; fix: checkpoint_name(value, {name!r})"
        )
    for name, reason in values.not_offloaded.items():
        print_error(f"{options.workload}: {name!r} stays on the device: {reason}")
    too_few = bool(values.freed) and values.freed[0].freed_bytes < options.free
    if too_few:
        print_error(
            f"{options.workload}: no policy frees {options.free:,} B: those compiled free up to "
            f"{max(item.freed_bytes for item in values.freed):,} B; fix: give fewer bytes, or see "
            "`xlapipe advise` for other changes"
        )
    return 1 if values.unmatched or values.not_offloaded or too_few else 0


def _names(text: str) -> list[str]:
    quoted = [match["name"] for match in _NAME.finditer(text)]
    if not quoted and re.search(r"[.(]", text):
        raise XlapipeError(
            f"--policy {text}: expected names of checkpoint_name, e.g. attn,mlp or "
            "\"save_only_these_names('attn')\"; fix: leave --policy out: the table lists what the "
            "step's own policy keeps, whatever it decides by"
        )
    return quoted or [name.strip() for name in text.split(",") if name.strip()]


def _change(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1e6:+z,.1f} µs"


def _lines(values: "SavedValues") -> "Iterator[Text]":
    from rich.text import Text

    from xlapipe.report.text_table import aligned_rows
    from xlapipe.report.units import microseconds, rounded

    kept = sum(row.size_bytes for row in values.rows)
    at_peak = sum(row.peak_bytes or 0 for row in values.rows)
    yield Text(
        f"{values.workload} on {values.target}: the plan keeps {values.saved_bytes:,} B for the "
        f"backward pass at its peak of {values.total_bytes:,} B",
        style="bold",
    )
    yield Text(
        f"In the traced step the backward pass uses {kept:,} B of the forward pass, on all "
        f"devices; {at_peak:,} B of them are alive at the peak, on one device"
    )
    table = [["all devices", "at the peak", "in", "count", "again", "value", "line", "why"]]
    for row in values.rows[:_SHOWN]:
        shape = ",".join(map(str, row.shape))
        table.append(
            [
                rounded(row.size_bytes),
                rounded(row.peak_bytes) if row.peak_bytes is not None else "no",
                ", ".join(map(str, row.allocations)),
                str(row.count),
                microseconds(row.again_seconds),
                f"{row.name or row.primitive} {row.dtype}[{shape}]",
                row.source or "-",
                row.why,
            ]
        )
    yield from map(Text, aligned_rows(table, right={0, 1, 2, 3, 4}))
    if len(values.rows) > _SHOWN:
        yield Text(f"and {len(values.rows) - _SHOWN} smaller kinds; --json lists all")
    yield Text(
        "at the peak: a value of this shape is alive there, on one device, in the allocation of "
        "this number; no: XLA computes it inside of kernels, keeps it in another form, or it is "
        "not alive then. again: estimated from bytes and operations."
    )
    if values.other_forms:
        kept = sum(form.size_bytes for form in values.other_forms)
        yield Text(f"Kept in another form at the peak, such as partial sums: {kept:,} B", "bold")
        forms = [
            [rounded(form.size_bytes), str(form.allocation), form.shape, form.source or "-"]
            for form in values.other_forms[:_SHOWN_FORMS]
        ]
        header = ["one device", "in", "value", "line"]
        yield from map(Text, aligned_rows([header, *forms], right={0, 1}))
    yield Text(
        f"The backward pass also reads {values.arguments} of the step's arguments, "
        f"{values.arguments_bytes:,} B on all devices, which are kept anyway."
    )
    for item in values.freed:
        yield Text(
            f"{item.change.text}: {item.freed_bytes:,} B less, {item.total_bytes:,} B in total, "
            f"predicted time {_change(item.seconds)}"
            + (f", network {item.network}" if item.network else ""),
            style="bold",
        )
        yield from map(Text, item.change.code.splitlines())
    workload = shlex.quote(values.workload)
    yield Text(
        f"`xlapipe choose {workload} --remat` compiles what keeps less, and prints the fastest "
        f"form that fits; `xlapipe advise {workload}` lists what each change saves"
    )
