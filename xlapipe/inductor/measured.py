"""`measured.json` beside the graphs: what torch's allocator was asked for when they ran."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from xlapipe.dump.readers.file_contents import read_source
from xlapipe.errors import DumpError
from xlapipe.files.contents import parse_json
from xlapipe.inductor.graph_files import MEASURED
from xlapipe.inductor.inductor_plan import GraphKind, InductorPlan, Measured

_PARTS = {
    GraphKind.FORWARD: "forward",
    GraphKind.INFERENCE: "forward",
    GraphKind.BACKWARD: "backward",
}


def measured_for(path: Path, plans: Sequence[InductorPlan]) -> Iterator[InductorPlan]:
    """`plans`, with the measurement of each that has one.

    A measurement is of a whole call, so that it belongs to a graph only if no other one is of the
    same kind.

    Raises:
      DumpError: `measured.json` is not JSON of the expected form.
    """
    file = _file(path)
    data = _read(file) if file is not None else {}
    parts = [_PARTS[plan.kind] if plan.kind is not None else "" for plan in plans]
    for plan, part in zip(plans, parts, strict=True):
        measured = data.get(part)
        if file is not None and parts.count(part) == 1 and isinstance(measured, dict):
            yield replace(plan, measured=_measured(file, measured))
        else:
            yield plan


def _file(path: Path) -> Path | None:
    """The file in the folder itself, or in the one around a graph's folder."""
    folder = path if path.is_dir() else path.resolve().parent
    candidates = (folder / MEASURED, folder.resolve().parent / MEASURED)
    return next(filter(Path.is_file, candidates), None)


def _read(file: Path) -> dict[str, Any]:
    try:
        data = parse_json(read_source(file).text)
    except ValueError as error:
        raise _unexpected(file, "JSON", str(error)) from None
    if not isinstance(data, dict):
        raise _unexpected(file, "a JSON object", "another value")
    return data


def _measured(file: Path, part: dict[str, Any]) -> Measured:
    before, peak, after = (
        part.get(f"requested_{moment}") for moment in ("before", "peak", "after")
    )
    if type(before) is not int or type(peak) is not int:
        expected = "numbers requested_before and requested_peak"
        raise _unexpected(file, expected, f"{before!r:.40} and {peak!r:.40}")
    end = after - before if type(after) is int else None
    return Measured(peak - before, end, str(file))


def _unexpected(file: Path, expected: str, found: str) -> DumpError:
    return DumpError(
        f"{file}: expected {expected}, found {found}; fix: measure again, or remove it"
    )
