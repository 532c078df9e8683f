"""One dump of a report: its plan, the author's names, and the texts of the compiler's stages."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from xlapipe.dumps.dump import MANIFEST, Dump, is_dump, open_dump, read_file
from xlapipe.errors import DumpError
from xlapipe.plan import Plan
from xlapipe.plan.occupancy import Occupancy
from xlapipe.plan.program import ArgumentLeaf, Program
from xlapipe.read import read_path
from xlapipe.read.file_contents import read_bytes, read_source
from xlapipe.read.files import beside, in_directory
from xlapipe.report.figures import dump_figures, plan_figures
from xlapipe.report.labels import Labels
from xlapipe.report.peak import Peak

# A dump's own texts in the order of the compiler's stages.
_STAGES = (
    ("before_optimizations.txt", "HLO before optimizations"),
    ("after_optimizations.txt", "HLO after optimizations"),
    ("hlo.txt", "HLO after optimizations, in normal form"),
    ("thunk_sequence.txt", "thunk sequence"),
    ("buffer-assignment.txt", "buffer assignment"),
)
_PROTO = "after_optimizations.hlo.pb"


@dataclass(frozen=True)
class Stage:
    """The text that one stage of the compiler left."""

    name: str
    text: str


@dataclass(frozen=True)
class Subject:
    """A dump to report on.

    Attributes:
      name: the path as the user gave it.
      dump: None for files that xlapipe did not write; arguments then have HLO's names.
    """

    name: str
    path: Path
    plan: Plan
    dump: Dump | None = None

    @property
    def title(self) -> str:
        """Workload and target, where known; else the file's name."""
        if self.dump is None:
            return self.path.name or self.name
        manifest = self.dump.manifest
        return f"{manifest.workload} on {manifest.device}"

    @property
    def arguments(self) -> tuple[ArgumentLeaf, ...]:
        return self.dump.manifest.arguments if self.dump is not None else ()

    @property
    def program(self) -> Program:
        return self.dump.program if self.dump is not None else Program(self.plan)

    @cached_property
    def labels(self) -> Labels:
        if self.dump is None:
            return Labels(self.plan)
        return Labels(self.plan, self.arguments, self.dump.manifest.outputs)

    @cached_property
    def peak(self) -> Peak:
        return Peak(Occupancy(self.plan), self.labels)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The JSON of `xlapipe show`."""
        return plan_figures(self.plan) if self.dump is None else dump_figures(self.dump)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Texts that lie in the dump, or beside a file of another's.

        Raises:
          DumpError: a text that is damaged, or was edited since the manifest was written.
        """
        found = self._own_stages() if self.dump is not None else self._found_stages()
        return tuple(found)

    def _own_stages(self) -> Iterator[Stage]:
        assert self.dump is not None
        for name, title in _STAGES:
            digest = self.dump.manifest.files.get(name)
            if digest is None:
                continue
            content = read_file(self.path, name)
            if hashlib.sha256(content).hexdigest() != digest:
                raise DumpError(
                    f"{self.path / name}: content differs from the SHA-256 in {MANIFEST}: damaged "
                    "or edited; make the dump again"
                )
            yield Stage(title, content.decode(errors="replace"))

    def _found_stages(self) -> Iterator[Stage]:
        files = in_directory(self.path) if self.path.is_dir() else beside(self.path)
        texts = (files.hlo, files.thunks, files.assignment)
        titles = ("HLO after optimizations", "thunk sequence", "buffer assignment")
        for title, path in zip(titles, texts, strict=True):
            if path is not None:
                yield Stage(title, read_source(path).text)

    def proto(self) -> bytes:
        """The serialised HloProto.

        Raises:
          DumpError: the dump holds none.
        """
        if self.dump is not None:
            return read_file(self.path, _PROTO)
        files = in_directory(self.path) if self.path.is_dir() else beside(self.path)
        path = files.proto
        if path is None:
            raise DumpError(
                f"{self.path}: expected an .hlo.pb, which XProf reads, found text alone; dump "
                "again with --xla_dump_hlo_as_proto, and give the .hlo.pb or its directory"
            )
        return read_bytes(path)


def read_subject(path: Path) -> Subject:
    """Reads what `xlapipe show` reads.

    Raises:
      DumpError: as `xlapipe.read.read_path` and `xlapipe.dumps.dump.open_dump`.
    """
    if is_dump(path):
        dump = open_dump(path)
        return Subject(str(path), path, dump.plan, dump)
    return Subject(str(path), path, read_path(path))
