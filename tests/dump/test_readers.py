"""Both readers on real dumps: they return the same plan, with what was compiled."""

import dataclasses
import re
from pathlib import Path

import pytest

from tests.shared.dumps import DATA, DIRECTORIES, as_own_layout, name_of, one, proto_of, texts_of
from xlapipe.dump.readers import read_path, read_proto, read_text
from xlapipe.dump.readers.hlo_proto import HloProto
from xlapipe.plans import AllocationKind, InputOutputAlias, Plan

GPU = [path for path in DIRECTORIES if path.name != "cpu"]
STEPS = [path for path in DIRECTORIES if path.name in ("step", "cpu")]


def for_each(directories: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("directory", directories, ids=name_of)


def test_dumps_of_every_layout_are_present() -> None:
    assert {name_of(path) for path in DIRECTORIES} == {
        *(f"jaxlib-{version}/step" for version in ("0.9.2", "0.10.2", "0.11.2", "0.12.0.1")),
        *(f"jaxlib-{version}/sharded" for version in ("0.9.2", "0.10.2", "0.11.2", "0.12.0.1")),
        "jaxlib-0.4.30/cpu",
        "jaxlib-0.9.2/cpu",
    }


@for_each(DIRECTORIES)
def test_proto_and_text_give_the_same_plan(directory: Path) -> None:
    from_proto = read_path(one(directory, "*.hlo.pb.gz"))
    from_text = read_path(one(directory, "*buffer-assignment.txt.gz"))
    for field in dataclasses.fields(Plan):
        assert getattr(from_proto, field.name) == getattr(from_text, field.name), field.name
    assert from_proto == from_text == read_text(texts_of(directory))
    assert from_proto.module is not None
    assert from_text.module is not None
    assert list(from_proto.module.computations) == list(from_text.module.computations)


@for_each(DIRECTORIES)
def test_a_directory_is_read_through_its_proto(directory: Path) -> None:
    plan = read_path(directory)
    assert plan == read_path(one(directory, "*.hlo.pb.gz"))
    from_proto_only = read_proto(proto_of(directory), where="proto")
    assert from_proto_only == dataclasses.replace(
        plan, total_bytes_used=None, live_ranges=None, thunks=None
    )


@for_each(DIRECTORIES)
def test_file_names_of_xlapipe_are_read_alike(directory: Path, tmp_path: Path) -> None:
    own = as_own_layout(directory, tmp_path / "dump")
    plan = read_path(directory)
    assert read_path(own) == plan
    assert read_path(own / "buffer-assignment.txt.gz") == plan
    (own / "after_optimizations.hlo.pb.gz").unlink()
    assert read_path(own) == plan


@for_each(DIRECTORIES)
def test_the_total_is_that_of_xla(directory: Path) -> None:
    plan = read_path(directory)
    assert plan.total_bytes_used is not None
    assert plan.totals.total_allocation_bytes == plan.total_bytes_used


@for_each(DIRECTORIES)
def test_serialising_again_keeps_unknown_fields(directory: Path) -> None:
    data = proto_of(directory)
    proto = HloProto.FromString(data)
    again = proto.SerializeToString(deterministic=True)
    assert len(again) == len(data)
    assert HloProto.FromString(again) == proto
    # Some of their fields (a constant's booleans, a dot's batch dimensions) are not in the .proto.
    kinds = {i.opcode for c in proto.hlo_module.computations for i in c.instructions}
    assert {"constant", "dot"} <= kinds


@for_each(STEPS)
def test_parameters_and_aliases_of_the_step(directory: Path) -> None:
    plan = read_path(directory)
    assert plan.module is not None
    assert plan.module.name == "jit_step"
    assert plan.module.complete
    assert plan.header_aliases == (InputOutputAlias(1, (3,)),)
    assert plan.buffer_donors == ()
    assert plan.aliases == plan.header_aliases
    parameters = {a.parameter_number: a.size_bytes for a in plan.allocations if a.is_a(
        AllocationKind.PARAMETER)}  # fmt: skip
    assert parameters == {0: 64 * 64 * 4, 1: 4 * 32 * 64 * 4, 2: 32 * 64 * 4, 3: 4}
    (cache,) = (a for a in plan.allocations if a.parameter_number == 1)
    assert cache.kinds == (AllocationKind.PARAMETER, AllocationKind.MAYBE_LIVE_OUT)
    # The output tuple has a long shape, which is printed with /*index=5*/.
    shapes = [value.shape.text for a in plan.allocations for value in a.values]
    assert any(shape.count("f32[32,64]{1,0}") >= 9 and "/*" not in shape for shape in shapes)


@for_each(STEPS)
def test_names_scopes_and_sources(directory: Path) -> None:
    plan = read_path(directory)
    assert plan.module is not None
    scopes = {i.op_name for _, i in plan.module.instructions() if i.op_name}
    assert any('loop "quoted" {x}, calls=%none/while' in scope for scope in scopes)
    sources = {i.source.file for _, i in plan.module.instructions() if i.source}
    assert sources == {"model.py"}
    loops = [i for _, i in plan.module.instructions() if i.opcode == "while"]
    body, condition = loops[0].called_computations
    assert plan.module.computations[condition].instructions[-1].shape.text == "pred[]"
    assert plan.module.computations[body].root != plan.module.computations[condition].root


@for_each(DIRECTORIES)
def test_operands_and_called_computations_exist(directory: Path) -> None:
    module = read_path(directory).module
    assert module is not None
    assert module.entry in module.computations
    for computation, instruction in module.instructions():
        assert all(operand in computation.by_name for operand in instruction.operands)
        assert all(called in module.computations for called in instruction.called_computations)
        assert (instruction.parameter_number is None) == (instruction.opcode != "parameter")
        assert (instruction.fusion_kind is None) == (instruction.opcode != "fusion")
        if instruction.opcode == "get-tuple-element":
            assert computation.root == instruction.name
        assert not re.fullmatch(r"(fusion|reduce-scatter|all-to-all)-(start|done)",
                                instruction.opcode)  # fmt: skip
    for computation in module.computations.values():
        assert computation.root in computation.by_name


@for_each(DIRECTORIES)
def test_live_ranges(directory: Path) -> None:
    plan = read_path(directory)
    live = plan.live_ranges
    assert live is not None
    assert len(set(live.schedule)) == len(live.schedule)
    assert live.live_range_peak_position is not None
    assert 0 <= live.live_range_peak_position <= len(live.schedule)
    named = {entry.name for entry in live.ranges}
    arenas = [a for a in plan.allocations if a.is_a(AllocationKind.PREALLOCATED_TEMP)]
    values = {value.name for a in arenas for value in a.values}
    assert values
    assert values <= named


@for_each(GPU)
def test_thunks(directory: Path) -> None:
    plan = read_path(directory)
    assert plan.thunks is not None
    assert plan.thunk_counts is not None
    kernel = "kKernel" if "0.9.2" in name_of(directory) else "kCustomKernel"
    assert plan.thunk_counts[kernel] >= 8
    if directory.name == "step":
        assert plan.thunk_counts["kWhile"] == plan.thunk_counts["kConditional"] == 1
        loop = next(at for at, thunk in enumerate(plan.thunks) if thunk.kind == "kWhile")
        assert plan.thunks[loop + 1].depth == plan.thunks[loop].depth + 1
        assert "compare" in plan.thunks[loop + 1].detail
    else:
        assert any("ReduceScatter" in kind for kind in plan.thunk_counts)


def test_a_command_buffer_nests() -> None:
    """The sequence after XLA's thunk passes, which has command buffers, is preferred."""
    plan = read_path(DATA / "jaxlib-0.12.0.1" / "step")
    assert plan.thunks is not None
    buffers = [at for at, thunk in enumerate(plan.thunks) if thunk.kind == "kCommandBuffer"]
    assert buffers
    assert plan.thunks[buffers[0] + 1].depth == plan.thunks[buffers[0]].depth + 1


@pytest.mark.parametrize(("version", "color"), [("0.11.2", 1), ("0.12.0.1", 7)])
def test_a_value_of_another_color_counts_once(version: str, color: int) -> None:
    directory = DATA / f"jaxlib-{version}" / "sharded"
    assert "reused by buffers of a different color" in texts_of(directory).assignment.text
    plan = read_path(directory)
    colors = {a.color for a in plan.allocations}
    assert color in colors
    names = [value.name for a in plan.allocations for value in a.values]
    assert len(names) == len(set(names))
    (arena,) = (
        a for a in plan.allocations
        if a.color == color and a.is_a(AllocationKind.PREALLOCATED_TEMP)
    )  # fmt: skip
    assert any(f":S({color})}}" in value.shape.text for value in arena.values)


@for_each(DIRECTORIES)
def test_used_values_replace_a_missing_hlo_text(directory: Path) -> None:
    texts = dataclasses.replace(texts_of(directory), hlo=None, thunks=None)
    plan, complete = read_text(texts), read_path(directory)
    assert plan.allocations == complete.allocations
    assert plan.header_aliases is None
    assert plan.thunks is None
    assert plan.module is not None
    assert not plan.module.complete
    assert plan.module.entry is None
    aliased = {alias.parameter_number for alias in complete.aliases}
    assert {alias.parameter_number for alias in plan.aliases} == aliased
    for name, instruction in plan.instructions.items():
        known = complete.instructions.get(name)
        if known is not None:
            assert instruction.shape == known.shape
            assert instruction.backend_config == known.backend_config
            assert instruction.op_name == known.op_name
            assert instruction.custom_call_target == known.custom_call_target
