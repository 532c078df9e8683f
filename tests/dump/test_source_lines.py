"""Source lines in a file of their own: what is read is what XLA's module held."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.shared.dumps import DATA, DIRECTORIES, name_of, one, proto_of, texts_of
from xlapipe.cli import main
from xlapipe.compile.capture import source_lines, without_frames
from xlapipe.compile.wire_format import in_number_order
from xlapipe.devices.platforms.dump_files import MODULE, SOURCE_LINES, Part
from xlapipe.dump.dump import open_dump, read_file, read_manifest, write_dump
from xlapipe.dump.manifest import with_requested_lines
from xlapipe.dump.normal_form.plan import differences, read_normal_form
from xlapipe.dump.readers import read_path, read_proto, read_text
from xlapipe.dump.readers.hlo_proto import HloProto
from xlapipe.dump.readers.proto_reader import parse_proto
from xlapipe.dump.readers.source_lines import FrameLocation, SourceLines
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.dump.same_dump import write_lines
from xlapipe.errors import DumpError
from xlapipe.plans import Plan, SourceLine
from xlapipe.plans.call_chains import Frame
from xlapipe.plans.program import RequestedDot

PARTS = {
    "before_optimizations.txt": Part.BEFORE,
    "after_optimizations.txt": Part.HLO,
    MODULE: Part.PROTO,
    "buffer-assignment-values.txt": Part.VALUES,
}


def separated(folder: Path, target: Path) -> Path:
    """A dump of the old form as it is written now."""
    dump = open_dump(folder)
    files = {name: read_file(folder, name) for name in dump.manifest.files}
    proto = files[MODULE]
    files |= {name: without_frames(part, files[name]) for name, part in PARTS.items()}
    lines = with_requested_lines(source_lines(proto, files[MODULE]), dump.manifest)
    write_dump(target, dump.manifest, {**files, SOURCE_LINES: lines.to_bytes()})
    return target


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A dump of an xlapipe that left the lines in XLA's files and in the manifest."""
    dump = open_dump(DATA / "host_memory")
    files = {name: read_file(dump.path, name) for name in dump.manifest.files}
    dots = (RequestedDot("dot", "f32[8]", SourceLine("model.py", 12)),)
    write_dump(tmp_path / "old", replace(dump.manifest, requested_dots=dots), files)
    return tmp_path / "old"


@pytest.fixture
def new(old: Path, tmp_path: Path) -> Path:
    return separated(old, tmp_path / "new")


def shown(path: Path, capsys: pytest.CaptureFixture[str]) -> Mapping[str, Any]:
    capsys.readouterr()
    assert main(["show", str(path), "--json"]) == 0
    content: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    return {name: value for name, value in content.items() if name != "path"}


def test_an_old_dump_and_a_new_one_show_the_same(
    old: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old_dump, new_dump = open_dump(old), open_dump(new)
    assert new_dump.plan == old_dump.plan
    assert any(dot.source for dot in old_dump.manifest.requested_dots)
    assert new_dump.manifest.requested_dots == old_dump.manifest.requested_dots
    assert new_dump.expectations == old_dump.expectations
    assert shown(new, capsys) == shown(old, capsys)
    assert differences(read_normal_form(old), read_normal_form(new), name="old") == []


def test_no_other_file_holds_a_line(new: Path) -> None:
    for file in new.iterdir():
        if file.name != SOURCE_LINES:
            content = file.read_bytes()
            assert b".py" not in content, file.name
            assert b"stack_frame_id" not in content, file.name


@pytest.mark.parametrize("directory", DIRECTORIES, ids=name_of)
def test_every_version_reads_the_same_without_frames_in_the_module(directory: Path) -> None:
    proto = proto_of(directory)
    stripped = without_frames(Part.PROTO, proto)
    lines = source_lines(proto, stripped)
    expected = read_proto(proto, where="proto")
    read = parse_proto(stripped, where="proto", lines=lines)
    assert read == expected
    assert chains(read) == chains(expected)
    assert SourceLines.from_bytes(lines.to_bytes(), where="lines") == lines
    texts = texts_of(directory)
    assert texts.hlo is not None
    text = without_frames(Part.HLO, texts.hlo.text.encode()).decode()
    without = replace(texts, hlo=SourceText("hlo", text), lines=lines)
    assert read_text(without) == read_text(texts)
    chains_of_text = chains(read_text(without))
    assert chains_of_text
    assert chains_of_text.items() <= chains(expected).items()


def chains(plan: Plan) -> dict[str, tuple[Frame, ...]]:
    """The call chain of each instruction that has one."""
    assert plan.module is not None
    return {name: plan.module.chains.chain(name) for name in plan.module.chains.frame_of}


def test_names_and_texts_that_look_like_frames_are_kept() -> None:
    line = '  %a = f32[] add(%b, %c), metadata={op_name="x stack_frame_id=1 }" stack_frame_id=7}\n'
    kept = '  %a = f32[] add(%b, %c), metadata={op_name="x stack_frame_id=1 }"}\n'
    assert without_frames(Part.HLO, line.encode()) == kept.encode()
    alone = b"  %a = f32[] add(%b, %c), metadata={stack_frame_id=7}\n"
    assert without_frames(Part.HLO, alone) == alone.replace(b"stack_frame_id=7", b"")
    config = b'  %a = f32[] custom-call(), backend_config="stack_frame_id=7"\n'
    assert without_frames(Part.HLO, config) == config


def test_a_name_of_two_instructions_has_no_line() -> None:
    proto = proto_of(DIRECTORIES[0])
    message = HloProto.FromString(proto)
    instructions = [i for c in message.hlo_module.computations for i in c.instructions]
    first = next(i for i in instructions if i.metadata.stack_frame_id)
    other = next(
        i
        for i in instructions
        if i.metadata.stack_frame_id not in (0, first.metadata.stack_frame_id)
    )
    other.name = first.name
    assert first.name not in source_lines(message.SerializeToString(), b"").frame_of


def test_moved_lines_are_written_without_the_rest(new: Path) -> None:
    manifest = read_manifest(new)
    files = {name: read_file(new, name) for name in manifest.files}
    times = {path.name: path.stat().st_mtime_ns for path in new.iterdir()}
    lines = SourceLines.from_bytes(files[SOURCE_LINES], where="lines")
    moved = replace(
        lines, locations=tuple(place._replace(line=place.line + 3) for place in lines.locations)
    )
    sources = instruction_sources(new)
    write_lines(new, {**files, SOURCE_LINES: moved.to_bytes()})
    changed = {path.name for path in new.iterdir() if path.stat().st_mtime_ns != times[path.name]}
    assert changed == {SOURCE_LINES}
    assert instruction_sources(new) == {
        name: replace(source, line=source.line + 3) for name, source in sources.items()
    }


def instruction_sources(folder: Path) -> dict[str, SourceLine]:
    """The lines of instructions that have one."""
    sources = {
        name: instruction.source
        for name, instruction in open_dump(folder).plan.instructions.items()
    }
    assert any(sources.values())
    return {name: source for name, source in sources.items() if source is not None}


def test_files_of_tools_have_the_lines(old: Path, new: Path) -> None:
    assert read_path(one(new, MODULE)).module == open_dump(old).plan.module


def edited(content: str) -> str:
    return content.replace(".py", ".xy", 1)


def of_another_module(content: str) -> str:
    lines = SourceLines.from_bytes(content.encode(), where="lines")
    return replace(lines, module_sha256="0" * 64).to_bytes().decode()


def with_unknown_location(content: str) -> str:
    lines = SourceLines.from_bytes(content.encode(), where="lines")
    return replace(lines, frames=((99_999, 0), *lines.frames[1:])).to_bytes().decode()


def with_text_as_line(content: str) -> str:
    lines = SourceLines.from_bytes(content.encode(), where="lines")
    place: Any = FrameLocation("a.py", "f", "7", 0)  # type: ignore[arg-type]
    return replace(lines, locations=(place, *lines.locations[1:])).to_bytes().decode()


def with_fewer_dots(content: str) -> str:
    lines = SourceLines.from_bytes(content.encode(), where="lines")
    return replace(lines, requested_dots=()).to_bytes().decode()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edited, "SHA-256"),
        (of_another_module, "another"),
        (with_unknown_location, "known locations"),
        (with_text_as_line, "expected an integer"),
        (with_fewer_dots, "requested dots"),
        (lambda content: content[:-40], "line 1|line \\d+"),
        (lambda _: '{"schema_version": 2}', "schema_version 1, found 2"),
        (lambda _: "[]", "expected an object"),
    ],
)
def test_damaged_lines_are_refused(new: Path, damage: Any, message: str) -> None:
    path = new / SOURCE_LINES
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(DumpError, match=rf"(?s){message}.*fix: "):
        open_dump(new)


def test_missing_lines_are_refused(new: Path) -> None:
    (new / SOURCE_LINES).unlink()
    with pytest.raises(DumpError, match=rf"{SOURCE_LINES}.*fix: "):
        open_dump(new)


@pytest.mark.parametrize("directory", DIRECTORIES, ids=name_of)
def test_taking_frames_out_of_a_module_keeps_every_other_byte(directory: Path) -> None:
    proto = proto_of(directory)
    message = HloProto.FromString(proto)
    message.hlo_module.ClearField("stack_frame_index")
    for computation in message.hlo_module.computations:
        for instruction in computation.instructions:
            instruction.metadata.ClearField("stack_frame_id")
            if not instruction.metadata.ByteSize():
                instruction.ClearField("metadata")
    taken_out = without_frames(Part.PROTO, proto)
    assert len(taken_out) < len(proto)
    # Python writes fields that its schema lacks last.
    given = HloProto.FromString(taken_out)
    for computation in given.hlo_module.computations:
        for instruction in computation.instructions:
            if not instruction.metadata.ByteSize():
                instruction.ClearField("metadata")
    assert in_number_order(given.SerializeToString(), HloProto) == in_number_order(
        message.SerializeToString(), HloProto
    )
