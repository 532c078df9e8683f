"""Which files belong to one graph, in a `torch_compile_debug` or trace folder, and in a log.

A graph's folder holds `output_code.py`, `ir_pre_fusion.txt`, `ir_post_fusion.txt` and
`fx_graph_readable.py`, each gzipped or not. Folders are named `model__0_forward_1.0`, `forward0`
and the like, and may be nested: `torch_compile_debug/run_…/torchinductor/model__0_forward_1.0`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from xlapipe.dump.readers.file_contents import read_source
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal, files_in, plain_name, read_head
from xlapipe.inductor.inductor_plan import GraphKind
from xlapipe.inductor.ir.text import is_ir_header
from xlapipe.inductor.logs import LogSection, log_sections
from xlapipe.inductor.text_lines import TextLines

WRAPPER = "output_code.py"
IR_POST = "ir_post_fusion.txt"
IR_PRE = "ir_pre_fusion.txt"
FX = ("fx_graph_readable.py", "fx_graph_transformed.py")
_GRAPH_FILES = frozenset({WRAPPER, IR_POST, IR_PRE})
_MOST_FOLDERS = 10_000
_MOST_DEPTH = 8
_NAME = re.compile(
    r"(?:(?P<before>\d+)_)?(?P<kind>forward|backward|inference)(?:_?(?P<after>\d+))?", re.IGNORECASE
)
_MARKS = re.compile(
    r"torch\._inductor|empty_strided_cuda\(|async_compile\.|# AOT ID: |\[__output_code\]"
    r"|^=====+ (?:Forward|Backward|Joint) graph|^ =====+ (?:Forward|Backward|Joint) graph",
    re.MULTILINE,
)
# How XLA's texts begin, and what the names of its files hold.
_XLA = re.compile(rb"\s*(?:BufferAssignment|HloModule|HloLiveRange|Used values|ThunkSequence)")
_XLA_NAME = re.compile(r"after_optimizations|buffer-assignment|live-range\.txt")
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class GraphFiles:
    """The documents of one graph; None for those that are missing.

    Attributes:
      name: folder or AOT id.
      group: graphs of one group may be forward and backward of one another.
      number: what a forward graph and its backward graph have in common.
    """

    name: str
    group: str
    kind: GraphKind | None
    number: str | None
    where: str
    wrapper: TextLines | None = None
    ir: TextLines | None = None
    fx: TextLines | None = None


def is_inductor(path: Path) -> bool:
    """Whether a path is a dump of torch Inductor, judged by names and marks in the text.

    Never raises: the reader refuses files that cannot be read.
    """
    try:
        if path.is_dir():
            named = any(_XLA_NAME.search(name) for name in _names(path))
            return not named and next(_graph_folders(path), None) is not None
        if not path.is_file() or path.name.endswith((".pb", ".pb.gz", ".json", ".zip")):
            return False
        if plain_name(path.name) in _GRAPH_FILES:
            return True
        of_xla = _XLA.match(read_head(path, _HEAD_BYTES))  # some of whose dumps are large
        return of_xla is None and is_inductor_text(read_source(path).text)
    except DumpError:
        return False


def is_inductor_text(text: str) -> bool:
    """Whether a text is IR, wrapper code, or a log with either."""
    if _MARKS.search(text) is not None:
        return True
    return "SchedulerNode(" in text and any(
        is_ir_header(line.strip()) for line in text.splitlines()
    )


def graphs_of(path: Path) -> tuple[GraphFiles, ...]:
    if path.is_dir():
        folders = sorted(_graph_folders(path), key=_natural)
        return tuple(_folder_files(folder, path) for folder in folders)
    source = read_source(path)
    name = plain_name(path.name)
    if name == WRAPPER:
        return (_folder_files(path.parent, path.parent, wrapper=path),)
    if name in (IR_POST, IR_PRE):
        return (_ir_files(path, source),)
    return _text_files(path, source)


def _folder_files(folder: Path, root: Path, *, wrapper: Path | None = None) -> GraphFiles:
    names, name = _names(folder), folder.resolve().name
    kind, number = _named(name)
    ir = names.get(IR_POST) or names.get(IR_PRE)
    code = wrapper or names.get(WRAPPER)
    text = _text(code)
    return GraphFiles(
        name=folder.relative_to(root).as_posix() if folder != root else name,
        group=str(folder.parent),
        kind=(_id_of(text)[0] if text is not None else None) or kind,
        number=number,
        where=str(code or ir or folder),
        wrapper=text,
        ir=_text(ir),
        fx=_fx(names),
    )


def _ir_files(path: Path, source: SourceText) -> GraphFiles:
    folder = path.resolve().parent.name
    kind, number = _named(folder)
    name, text = folder if kind is not None else path.name, TextLines.of(source)
    fx = _fx(_names(path.parent))
    return GraphFiles(name, str(path), kind, number, str(path), ir=text, fx=fx)


def _fx(names: Mapping[str, Path]) -> TextLines | None:
    return _text(next((names[name] for name in FX if name in names), None))


def _text_files(path: Path, source: SourceText) -> tuple[GraphFiles, ...]:
    """The graphs of a file with another name: IR, wrapper code or a log."""
    text = TextLines.of(source)
    content = [line for line in text.lines if line.strip() and not line.startswith("#")]
    if content and is_ir_header(content[0]):
        return (_ir_files(path, source),)
    sections = log_sections(text)
    if any(section.kind in ("wrapper", "ir") for section in sections):
        return tuple(_section_files(path, sections))
    if any(line.startswith("def call(") or "def call(self, args" in line for line in text.lines):
        kind, number = _named(path.name)
        kind = _id_of(text)[0] or kind
        return (GraphFiles(path.name, str(path), kind, number, str(path), wrapper=text),)
    graphs = sum(section.kind == "graph" for section in sections)
    logged = f"{graphs} AOT graphs without either" if graphs else "neither"
    raise DumpError(
        f"{path}:1: expected wrapper code or IR of torch Inductor, found {logged}; fix: log with "
        "TORCH_LOGS=output_code, or set TORCH_COMPILE_DEBUG=1"
    )


def _section_files(path: Path, sections: tuple[LogSection, ...]) -> Iterator[GraphFiles]:
    """Graphs of a log: wrapper codes, or IR without wrapper code."""
    wrappers = [section for section in sections if section.kind == "wrapper"]
    irs = [section for section in sections if section.kind == "ir"]
    graphs = {section.title: section.text for section in sections if section.kind == "graph"}
    after = [section for section in irs if section.title == "AFTER"] or irs
    if wrappers:
        # The IR of a graph is logged before its wrapper code.
        texts = [section.text for section in after] if len(after) == len(wrappers) else []
        for at, section in enumerate(wrappers):
            kind, number = _id_of(section.text)
            name = f"{number}_{kind}" if kind is not None else f"graph {at}"
            title = "Backward" if kind == GraphKind.BACKWARD else "Forward"
            fx = graphs.get(f"{title} {number}")
            ir = texts[at] if texts else None
            yield GraphFiles(name, str(path), kind, number, str(path), section.text, ir, fx)
        return
    for at, section in enumerate(after):
        yield GraphFiles(f"graph {at}", str(path), None, None, str(path), ir=section.text)


def _id_of(text: TextLines) -> tuple[GraphKind | None, str | None]:
    """Kind and number in the comment `# AOT ID: ['0_forward']`."""
    for line in text.lines[:50]:
        if "# AOT ID:" in line:
            return _named(line.partition("'")[2].partition("'")[0])
    return None, None


def _named(name: str) -> tuple[GraphKind | None, str | None]:
    """Kind and number in `0_forward`, `forward0` or `model__0_forward_1.0`."""
    match = _NAME.search(name)
    if match is None:
        return None, None
    return GraphKind(match["kind"].lower()), match["before"] or match["after"]


def _graph_folders(root: Path) -> Iterator[Path]:
    """Folders that hold the files of a graph, `root` among them."""
    pending = [(root, 0)]
    seen = 0
    while pending and seen < _MOST_FOLDERS:
        folder, depth = pending.pop()
        seen += 1
        if _names(folder).keys() & _GRAPH_FILES:
            yield folder
        if depth < _MOST_DEPTH:
            pending.extend((subfolder, depth + 1) for subfolder in _subfolders(folder))


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(
            entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()
        )
    except OSError:
        return []


def _names(folder: Path) -> Mapping[str, Path]:
    """Files by the name before they were packed; a file that is not packed comes first."""
    names: dict[str, Path] = {}
    for file in files_in(folder, lambda name: plain_name(name) in _GRAPH_FILES, Refusal()):
        names.setdefault(plain_name(file.name), file)
    return names


def _text(path: Path | None) -> TextLines | None:
    return None if path is None else TextLines.of(read_source(path))


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts numbers in names by value."""
    parts = re.split(r"(\d+)", path.as_posix())
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]
