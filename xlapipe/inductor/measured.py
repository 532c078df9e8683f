"""`measured.json` beside the graphs: what torch's allocator was asked for when they ran."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from xlapipe.dump.readers.file_contents import read_source
from xlapipe.errors import DumpError
from xlapipe.files.contents import parse_json
from xlapipe.files.typed_data import MisfitError, typed
from xlapipe.inductor.graph_files import MEASURED
from xlapipe.inductor.inductor_plan import GraphKind, InductorPlan, Measured


@dataclass(frozen=True, slots=True)
class _Call:
    requested_before: int
    requested_peak: int
    requested_after: int | None = None


@dataclass(frozen=True, slots=True)
class _File:
    forward: _Call | None = None
    backward: _Call | None = None


def measured_for(path: Path, plans: Sequence[InductorPlan]) -> Iterator[InductorPlan]:
    """`plans`, with the measurement of each that has one.

    A measurement is of a whole call, so that it belongs to a graph only if no other one is of the
    same kind.
    """
    file = _path(path)
    calls = _read(file) if file is not None else _File()
    is_backward = [plan.kind == GraphKind.BACKWARD for plan in plans if plan.kind is not None]
    for plan in plans:
        backward = plan.kind == GraphKind.BACKWARD
        call = calls.backward if backward else calls.forward
        if call is None or plan.kind is None or is_backward.count(backward) > 1:
            yield plan
            continue
        before, after = call.requested_before, call.requested_after
        end = after - before if after is not None else None
        measured = Measured(call.requested_peak - before, end, str(file))
        yield replace(plan, measured=measured)


def _path(path: Path) -> Path | None:
    """The file in the folder itself, or in the one around a graph's folder."""
    folder = path if path.is_dir() else path.resolve().parent
    candidates = (folder / MEASURED, folder.resolve().parent / MEASURED)
    return next(filter(Path.is_file, candidates), None)


def _read(file: Path) -> _File:
    try:
        return typed(_File, parse_json(read_source(file).text))
    except MisfitError as error:
        problem = str(error)
    except ValueError as error:
        problem = f"expected JSON, found {error}"
    raise DumpError(f"{file}: {problem}; fix: measure again, or remove it")
