"""Goldens next to a test file: compared with a plan, or written if requested."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from xlapipe.api.answer import Answer
from xlapipe.compile.pipeline import dump_folder
from xlapipe.differences import compare_opened
from xlapipe.dump.dump import Dump, is_dump, open_dump, read_file, write_dump
from xlapipe.dump.normal_form.plan import compare, differences, read_normal_form
from xlapipe.errors import XlapipeError
from xlapipe.plans.donation import donations

_MAX_LINES = 80


@dataclass(frozen=True)
class Goldens:
    """The goldens of one test.

    Attributes:
      folder: `hlo_dumps` next to the test file.
      root: paths in messages are relative to it.
      update: write goldens instead of comparing.
      command: the command that writes the test's goldens, for messages.
      on_written: called with each golden that was written and a list of what changed.
      made: digests of the plans of all tests so far, by golden in lower case.
    """

    folder: Path
    root: Path
    update: bool
    command: str
    on_written: Callable[[str, list[str]], None]
    made: dict[str, str] = field(default_factory=dict)

    def matches(self, dump: Dump) -> Answer:
        """Whether the plan of `dump` equals the golden's in normal form.

        Args:
          dump: without predicted tuning, which changes when more results are known.

        Raises:
          DumpError: the golden is damaged, or was made by a newer xlapipe.
          XlapipeError: two plans would share one golden, or it cannot be written.
        """
        path = dump_folder(self.folder, dump.manifest)
        shown = str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)
        made = read_normal_form(dump.path)
        digest = sha256(f"{made.plan}\0{made.hlo}".encode(errors="surrogatepass")).hexdigest()
        if self.made.setdefault(str(path).casefold(), digest) != digest:
            raise XlapipeError(
                f"two plans would share the golden {shown}; fix: give each another name, "
                "xlapipe_plan(…, name=…)"
            )
        if not is_dump(path):
            if self.update:
                return self._write(path, shown, dump, ["new"])
            return Answer(False, f"no golden {shown}", self._missing(path, shown))
        golden = open_dump(path)
        kept = read_normal_form(path)
        differing_lines = differences(kept, made, name=shown)
        if not differing_lines:
            notes = compare(kept, made).notes
            return Answer(True, "; ".join((f"matches golden {shown}", *notes)))
        sentences = list(golden_changes(golden, dump)) or [
            "no total, donation or gemm count changed"
        ]
        if self.update:
            return self._write(path, shown, dump, [*sentences, differing_lines[0]])
        lines = [f"the plan differs from the golden {shown}:"]
        lines += [f"  {sentence}" for sentence in sentences]
        lines += differing_lines[:_MAX_LINES]
        if len(differing_lines) > _MAX_LINES:
            lines.append(f"… and {len(differing_lines) - _MAX_LINES} more lines")
        lines.append(f"if the change is intended, update the golden: {self.command}")
        return Answer(False, f"does not match golden {shown}", "\n".join(lines))

    def _write(self, path: Path, shown: str, dump: Dump, changes: list[str]) -> Answer:
        files = {name: read_file(dump.path, name) for name in dump.manifest.files}
        write_dump(path, dump.manifest, files, fix="goldens are written next to the test file")
        self.on_written(shown, changes)
        return Answer(True, f"golden {shown} was written")

    def _missing(self, path: Path, shown: str) -> str:
        others = sorted(folder.name for folder in path.parent.glob("*") if is_dump(folder))
        existing = f"\nexisting goldens of this plan: {', '.join(others)}" if others else ""
        return f"there is no golden {shown}{existing}\nfix: write it with {self.command}"


def golden_changes(golden: Dump, dump: Dump) -> Iterator[str]:
    """Changes of donations, then the sentences of `xlapipe diff`, largest first.

    Raises:
      DumpError: a text in a dump is damaged.
    """
    donated = {donation.path: donation for donation in donations(dump)}
    for before in donations(golden):
        now = donated.get(before.path)
        if now is None:
            yield f"{before.path} is no longer donated"
        elif (now.outcome, now.output) != (before.outcome, before.output):
            yield (
                f"{before.path} was {before.outcome}, is {now.outcome}: {now.reason or now.output}"
            )
    difference = compare_opened(golden, dump)
    yield from difference.context_lines()
    for sentence in difference.sentences():
        cost = f"{sentence.delta_bytes:+,} B: " if sentence.delta_bytes else ""
        yield f"{cost}{sentence.text}"
