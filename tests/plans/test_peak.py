"""The contents of memory at the peak, by name, by line and by arena, on a small program."""

from dataclasses import replace

from tests.conftest import GOLDEN_JAXLIB
from tests.differences.test_diff_changes import ALIVE, MEMORY, A, program, with_plan
from tests.shared.dumps import ROOT
from tests.shared.hlo_objects import instruction, logical_buffer
from tests.shared.programs import with_facts
from xlapipe.inductor.open_path import open_path
from xlapipe.plans import AllocationKind, BufferAllocation, Computation, HloModule, Plan
from xlapipe.plans.labels import labels_of, pattern_of
from xlapipe.plans.occupancy import Role
from xlapipe.plans.peak import peak_of
from xlapipe.plans.program import Program


def test_the_peak_is_at_the_product() -> None:
    peak = peak_of(A)
    assert (peak.position, peak.instruction) == (2, "gemm")
    assert peak.occupied_bytes == 32 + 256 + 256 + 64
    # The output's memory, which is not in use yet.
    assert peak.idle_bytes == 32
    assert [(value.label, value.counted_bytes, value.source) for value in peak.values] == [
        ("layer/up/dot_general", 256, "step.py:13"),
        ("w", 256, "step.py:13"),
        ("workspace of layer/up/dot_general", 64, "step.py:13"),
        ("x", 32, "step.py:12"),
    ]
    assert [(group.label, group.role) for group in peak.groups] == [
        ("w", Role.PARAMETER),
        ("layer/up/dot_general", Role.TEMP),
        ("workspace of layer/up/dot_general", Role.TEMP),
        ("x", Role.ALIAS),
    ]


def test_bytes_by_line_are_those_of_arguments_and_of_computed_values() -> None:
    rows = peak_of(A).by_source
    assert [
        (row.source, row.argument_bytes, row.made_bytes, row.values, row.total_bytes)
        for row in rows
    ] == [("step.py:13", 256, 256 + 64, 3, 576), ("step.py:12", 32, 0, 1, 32)]


def test_values_of_layers_are_one_group_if_one_line_makes_them() -> None:
    """Arguments are one group also if other lines read them."""
    leaves = (
        replace(A.arguments[0], path="layers[0]['w']"),
        replace(A.arguments[1], path="layers[1]['w']"),
    )
    plan = replace(
        A.plan,
        allocations=tuple(
            replace(allocation, kinds=(AllocationKind.PARAMETER,))
            if allocation.index < 2
            else allocation
            for allocation in A.plan.allocations
        ),
    )
    (group, *_) = peak_of(with_facts(A, plan=plan, arguments=leaves)).groups
    assert (group.label, group.counted_bytes) == ("layers[*]['w']", 288)
    assert set(group.sources) == {"step.py:12", "step.py:13"}


def test_an_arena_where_it_is_fullest() -> None:
    # After the peak, only the arena's last bytes are in use.
    moved = program(memory={**MEMORY, "turned": (3, 400)})
    assert [group.label for group in peak_of(moved).groups_in(moved.plan.allocations[3])] == [
        "layer/up/dot_general",
        "workspace of layer/up/dot_general",
    ]


def test_without_live_ranges_there_is_no_position() -> None:
    peak = peak_of(program(alive=None))
    assert (peak.position, peak.instruction) == (None, None)


def test_a_peak_after_the_last_instruction_has_none() -> None:
    ends = {"out": (9, 9), "tile": (9, 9)}
    peak = peak_of(program(alive=dict.fromkeys(ALIVE, (9, 9)) | ends))
    assert (peak.position, peak.instruction) == (9, None)


def test_labels_without_a_manifest() -> None:
    """JAX writes the path of an argument into the op_name of its parameter."""
    names = {"x": "x['a']", "w": "w"}
    module = A.plan.module
    assert module is not None and module.entry_computation is not None
    entry = module.entry_computation
    for op_names, expected in (
        (names, ["x['a']", "w"]),
        ({"x": "p", "w": "p"}, ["parameter 0", "parameter 1"]),
    ):
        instructions = tuple(
            line._replace(op_name=op_names.get(line.name, line.op_name))
            for line in entry.instructions
        )
        computations = {**module.computations, "main": replace(entry, instructions=instructions)}
        plan = replace(A.plan, module=replace(module, computations=computations))
        labels = labels_of(Program(plan))
        allocations = plan.allocations[:2]
        assert [labels.parameter(allocation) for allocation in allocations] == expected
    labels = labels_of(replace(A, plan=replace(A.plan, module=None)))
    assert labels.parameter(A.plan.allocations[0]) == "x"
    part = replace(A.plan.allocations[0], parameter_shape_index=(1, 0))
    assert labels_of(A).parameter(part) == "x{1,0}"


def test_labels_of_a_dump_with_the_buffer_assignment_alone() -> None:
    """Without an entry computation, parameters are known by their values."""
    parameter = instruction("p", "parameter", "f32[8]", parameter_number=0, op_name="x")
    other = instruction("q", "negate", "f32[8]", op_name="jit(step)/neg")
    module = HloModule("m", {"all": Computation("all", (parameter, other), "q")}, None)
    values = (logical_buffer("p", 0, 32, "f32[8]"), logical_buffer("q", 0, 32, "f32[8]"))
    allocation = BufferAllocation(0, 32, (AllocationKind.PARAMETER,), 0, values=values)
    labels = labels_of(Program(Plan((allocation,), module=module)))
    assert labels.parameter(allocation) == "x"
    assert labels.operation("q") == "neg"
    assert labels.operation("gone") == "gone"


def test_labels_of_outputs_and_pointer_tables() -> None:
    shared = with_plan(header_aliases=())
    labels = labels_of(shared)
    output = A.plan.allocations[2]
    assert labels.value(output, output.values[0], Role.OUTPUT) == "out[1]"
    assert labels.value(output, output.values[0], Role.TEMP) == "layer/exp"
    table = logical_buffer("gemm", 0, 16, "(f32[8,8], s8[64])")
    assert labels.value(A.plan.allocations[3], table, Role.TEMP) == "pointer table gemm"


def test_names_of_layers_have_one_pattern() -> None:
    assert pattern_of("p[3]['w2'].mu.4/x_5") == "p[*]['w2'].mu.*/x_*"


def test_a_peak_a_plan_and_a_program_are_short_in_a_notebook() -> None:
    """The fields of a real plan are megabytes of text."""
    program = open_path(ROOT / f"hlo_dumps/resnet50-train/h200-cublas-jax{GOLDEN_JAXLIB}")
    peak = peak_of(program)
    assert len(repr(peak)) < 400
    assert repr(program.plan) in repr(program) and len(repr(program)) < 200
