"""A program that was read from files of XLA, and the texts beside the plan."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from xlapipe.devices.platforms.dump_files import STAGE_TITLES
from xlapipe.errors import DumpError
from xlapipe.plans import HloModule, Program
from xlapipe.plans.short_repr import short_repr


@dataclass(frozen=True, slots=True)
class StageText:
    """The text of one stage of the compiler."""

    __repr__ = short_repr

    title: str
    text: str


@dataclass(frozen=True, kw_only=True, repr=False)
class XlaFiles(Program):
    """A program that was read from files of XLA, without a manifest unless it is a `Dump`.

    Names of arguments are then HLO's, and target, options and expectations are unknown.
    """

    path: Path

    @property
    def title(self) -> str:
        """Workload and target if known, else the file's name."""
        return self.path.name or str(self.path)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader could not read, and what is particular to the program."""
        return self.plan.notes

    @property
    def autotuning(self) -> str:
        """The label that every display of the plan has."""
        return "unknown"

    @property
    def tuning_word(self) -> str:
        """`tuned`, `untuned`, `predicted tuning`; empty where plans do not depend on tuning."""
        return ""

    @property
    def plan_sections(self) -> str | None:
        """plan.txt from its first section on; None for a dump that xlapipe did not write."""
        return None

    @cached_property
    def stage_texts(self) -> tuple[StageText, ...]:
        """The texts of the compiler's stages, in their order."""
        texts = ((title, self.text_of(name)) for name, title in STAGE_TITLES.items())
        return tuple(StageText(title, text) for title, text in texts if text is not None)

    @cached_property
    def hlo_before(self) -> str | None:
        """The module before optimisation, as XLA prints it; None if it was not dumped."""
        return self.text_of("before_optimizations.txt")

    @cached_property
    def hlo_after(self) -> str | None:
        """The module after optimisation, as XLA prints it; None if it was not dumped."""
        return self.text_of("after_optimizations.txt")

    def lowered_module(self) -> HloModule | None:
        """The module before optimisation; None if the files lack it, or it is of unknown form."""
        from xlapipe.dump.readers.hlo_text import parse_hlo
        from xlapipe.dump.readers.source_text import SourceText

        text = self.hlo_before
        if text is None:
            return None
        source = SourceText(f"{self.path}/before_optimizations.txt", text)
        with suppress(DumpError):  # only the MFU needs it
            return parse_hlo(source).module
        return None

    def text_of(self, name: str) -> str | None:
        """The text that a dump of xlapipe has under `name`; None if it was not dumped."""
        from xlapipe.dump.readers.file_contents import read_source

        path = self._xla_paths.get(name)
        return read_source(path).text if path is not None else None

    @cached_property
    def _xla_paths(self) -> Mapping[str, Path | None]:
        """Files that XLA wrote, by the name that they have in a Dump."""
        from xlapipe.dump.readers.files import files_at

        files = files_at(self.path)
        folder = self.path if self.path.is_dir() else self.path.parent
        before = [path for path in folder.glob("*before_optimizations.txt*") if path.is_file()]
        before = [path for path in before if not path.is_symlink()]
        return {
            # Its name does not state the module, so it is this module's only if it is the only one.
            "before_optimizations.txt": before[0] if len(before) == 1 else None,
            "after_optimizations.txt": files.hlo,
            "thunk_sequence.txt": files.thunks,
            "buffer-assignment.txt": files.assignment,
        }
