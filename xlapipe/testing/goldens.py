"""Goldens beside a test file: compared with, or, on request, written."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from xlapipe.compiling.pipeline import dump_folder
from xlapipe.dumps.dump import Dump, is_dump, open_dump, read_file, write_dump
from xlapipe.dumps.normal_plan import differences, read_normal_form
from xlapipe.errors import XlapipeError
from xlapipe.testing.answer import Answer
from xlapipe.testing.golden_changes import changes

_MOST_LINES = 80


@dataclass(frozen=True)
class Goldens:
    """The goldens of one test.

    Attributes:
      folder: `hlo_dumps` beside the test file.
      root: what paths are shown relative to.
      update: write instead of comparing.
      command: what writes the test's goldens, for messages.
      on_written: is told of each golden that was written, and of what changed.
    """

    folder: Path
    root: Path
    update: bool
    command: str
    on_written: Callable[[str, list[str]], None]
    _asked: dict[Path, str] = field(default_factory=dict)

    def matches(self, found: Dump, key: str) -> Answer:
        """Whether the plan is the golden's, in normal form.

        Raises:
          DumpError: the golden is damaged, or was made by a newer xlapipe.
          XlapipeError: two plans of the test would share one golden, or it cannot be written.
        """
        path = dump_folder(self.folder, found.manifest)
        shown = str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)
        if self._asked.setdefault(path, key) != key:
            raise XlapipeError(
                f"two plans of this test would share the golden {shown}: tell them apart with "
                "xlapipe_plan(…, name=…)"
            )
        if not is_dump(path):
            if self.update:
                return self._write(path, shown, found, ["new"])
            return Answer(False, f"no golden {shown}", self._missing(path, shown))
        golden = open_dump(path)
        apart = differences(read_normal_form(path), read_normal_form(found.path), name=shown)
        if not apart:
            return Answer(True, f"matches golden {shown}")
        sentences = list(changes(golden, found)) or ["no total, donation or gemm count changed"]
        if self.update:
            return self._write(path, shown, found, [*sentences, apart[0]])
        lines = [f"the plan is not that of the golden {shown}:"]
        lines += [f"  {sentence}" for sentence in sentences]
        lines += islice(apart, _MOST_LINES)
        if len(apart) > _MOST_LINES:
            lines.append(f"… and {len(apart) - _MOST_LINES} lines more")
        lines.append(f"if that is meant: {self.command}")
        return Answer(False, f"does not match golden {shown}", "\n".join(lines))

    def _write(self, path: Path, shown: str, found: Dump, what: list[str]) -> Answer:
        files = {name: read_file(found.path, name) for name in found.manifest.files}
        write_dump(path, found.manifest, files, remedy="goldens lie beside their test file")
        self.on_written(shown, what)
        return Answer(True, f"golden {shown} was written")

    def _missing(self, path: Path, shown: str) -> str:
        others = sorted(each.name for each in path.parent.glob("*") if is_dump(each))
        beside = f"\nbeside it lie: {', '.join(others)}" if others else ""
        return f"there is no golden {shown}{beside}\nwrite it with: {self.command}"
