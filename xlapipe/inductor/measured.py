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
    for plan in plans:
        part = _PARTS.get(plan.kind) if plan.kind is not None else None
        alone = sum(_PARTS.get(other.kind) == part for other in plans if other.kind) == 1
        if file is None or part is None or not alone or not isinstance(data.get(part), dict):
            yield plan
        else:
            yield replace(plan, measured=_measured(file, data[part]))


def _file(path: Path) -> Path | None:
    """The file in the folder itself, or in the one around a graph's folder."""
    folder = path if path.is_dir() else path.resolve().parent
    for candidate in (folder / MEASURED, folder.resolve().parent / MEASURED):
        if candidate.is_file():
            return candidate
    return None


def _read(file: Path) -> dict[str, Any]:
    source = read_source(file)
    try:
        data = parse_json(source.text)
    except ValueError as error:
        raise DumpError(
            f"{file}: expected JSON, found: {error}; fix: write it again, or remove it"
        ) from None
    if not isinstance(data, dict):
        raise DumpError(f"{file}: expected a JSON object, found another value; fix: write it again")
    return data


def _measured(file: Path, part: dict[str, Any]) -> Measured:
    before, peak, after = (
        part.get(f"requested_{moment}") for moment in ("before", "peak", "after")
    )
    if type(before) is not int or type(peak) is not int:
        raise DumpError(
            f"{file}: expected numbers requested_before and requested_peak, found "
            f"{before!r:.40} and {peak!r:.40}; fix: measure again"
        )
    end = after - before if type(after) is int else None
    return Measured(peak - before, end, str(file))
