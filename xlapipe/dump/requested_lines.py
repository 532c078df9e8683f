"""Source lines of a manifest's requested dots and collectives, which `source_lines.json` holds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from xlapipe.dump.manifest import Manifest
from xlapipe.dump.readers.source_lines import SourceLines
from xlapipe.errors import DumpError
from xlapipe.plans import SourceLine
from xlapipe.plans.program import RequestedCollective, RequestedDot

Requested = TypeVar("Requested", RequestedDot, RequestedCollective)


def with_requested_lines(lines: SourceLines, manifest: Manifest) -> SourceLines:
    """Adds those of a manifest."""
    return replace(
        lines,
        requested_dots=tuple(dot.source for dot in manifest.requested_dots),
        requested_collectives=tuple(it.source for it in manifest.requested_collectives or ()),
    )


def with_lines(manifest: Manifest, lines: SourceLines, *, where: str) -> Manifest:
    """A manifest as it was read, with its lines.

    Raises:
      DumpError: `lines` are those of another number of dots or collectives.
    """
    collectives = manifest.requested_collectives
    dots = _with_sources(manifest.requested_dots, lines.requested_dots, where)
    if collectives is not None:
        collectives = _with_sources(collectives, lines.requested_collectives, where)
    return replace(manifest, requested_dots=dots, requested_collectives=collectives)


def _with_sources(
    requested: Sequence[Requested], lines: Sequence[SourceLine | None], where: str
) -> tuple[Requested, ...]:
    if len(requested) != len(lines):
        raise DumpError(
            f"{where}: expected {len(requested)} lines of requested dots or collectives, found "
            f"{len(lines)}; fix: copy the whole folder, or make the dump again"
        )
    return tuple(replace(item, source=line) for item, line in zip(requested, lines, strict=True))
