"""A plan states what it lacks of the device's, and no bound of its memory then holds."""

from dataclasses import replace

import pytest

from tests.shared.hlo_objects import instruction
from tests.shared.sample_records import MANIFEST
from xlapipe.dump.manifest import Manifest
from xlapipe.expect import BeyondAtMost, Expectation, TempAtMost, TotalWithin
from xlapipe.plans import (
    AllocationKind,
    BufferAllocation,
    Computation,
    HloModule,
    Instruction,
    Plan,
    SourceLine,
)
from xlapipe.plans.missing_memory import MissingKind, missing_lines
from xlapipe.plans.program import Program
from xlapipe.plans.shapes import shape_of
from xlapipe.report.memory_spaces import host_lines
from xlapipe.report.records import plain_data

LINE = SourceLine("step.py", 7)
CALL = instruction(
    "attention",
    "custom-call",
    "(bf16[2,64]{1,0}, u8[0]{0})",
    custom_call_target="__cudnn$fmhaSoftmax",
    source=LINE,
)


def sort(*arrays: str, operands: int = 1) -> Instruction:
    shape = arrays[0] if len(arrays) == 1 else f"({', '.join(arrays)})"
    return instruction("sort.1", "sort", shape, tuple("xyz"[:operands]), source=LINE)


def plan(*instructions: Instruction, sorts_undecided: bool = True) -> Plan:
    computation = Computation("main", instructions, instructions[-1].name)
    temp = BufferAllocation(0, 4096, (AllocationKind.PREALLOCATED_TEMP,))
    module = HloModule("m", {"main": computation}, "main")
    return Plan((temp,), module=module, sorts_undecided=sorts_undecided)


def test_a_sort_that_the_device_may_give_to_cub() -> None:
    large = plan(sort("f32[64,32000]{1,0}"))
    (missing,) = large.missing_memory
    assert (missing.kind, missing.instruction, missing.source) == (
        MissingKind.SORT,
        "sort.1",
        LINE,
    )
    assert missing.about_bytes == 2 * 64 * 32_000 * 4  # 16,384,516 B on an H200
    assert list(missing_lines(large.missing_memory)) == [
        "1 sort that XLA may give to CUB on the device: the plan lacks CUB's scratch in temp, "
        "about 16,384,000 B",
        "  sort.1: step.py:7",
    ]
    assert set(missing_lines(large.missing_memory)) <= set(host_lines(large))
    assert plain_data(large.missing_memory) == [
        {
            "kind": "sort",
            "instruction": "sort.1",
            "about_bytes": 16_384_000,
            "source": "step.py:7",
        }
    ]


def test_a_sort_of_two_operands_has_its_keys_beside_it() -> None:
    (missing,) = plan(sort("f32[16385]{0}", "s32[16385]{0}", operands=2)).missing_memory
    assert missing.about_bytes == 2 * 16_385 * 4


def test_a_call_of_unknown_workspace_has_no_estimate() -> None:
    attention = plan(CALL, CALL._replace(name="again", source=None))
    assert list(missing_lines(attention.missing_memory)) == [
        "2 cuDNN calls without workspace: cuDNN states its size only on a GPU, where temp is "
        "larger by it",
        "  attention: step.py:7",
        "  again: source line unknown",
    ]
    assert list(missing_lines(())) == []


def test_a_convolution_that_no_autotune_result_gave_an_algorithm() -> None:
    config = (
        '{"cudnn_conv_backend_config":{"algorithm":{"algo_id":"%s","is_cudnn_frontend":false}}}'
    )
    call = instruction("conv", "custom-call", "(f32[8]{0}, u8[0]{0})", source=LINE)
    call = call._replace(custom_call_target="__cudnn$convForward")
    untuned = plan(call._replace(backend_config=config % "-1"))
    assert [it.name for it in untuned.untuned_calls] == ["conv"]
    assert list(host_lines(untuned)) == [
        "1 convolution of cuDNN without an algorithm: temp lacks the workspaces, which autotune "
        "results of the GPU state (--tuning)"
    ]
    tuned = plan(call._replace(backend_config=config % "45"))
    assert tuned.untuned_calls == ()
    assert list(host_lines(tuned)) == []


@pytest.mark.parametrize(
    "complete",
    [
        plan(sort("f32[64,32000]{1,0}"), sorts_undecided=False),
        plan(sort("f32[16384]{0}")),
        plan(sort("f32[99999]{0}", "s32[99999]{0}", "s32[99999]{0}", operands=3)),
        plan(CALL._replace(shape=shape_of("(bf16[2,64]{1,0}, u8[256]{0})"))),
    ],
    ids=["decided", "small", "three operands", "with workspace"],
)
def test_a_plan_that_lacks_nothing(complete: Plan) -> None:
    assert complete.missing_memory == ()
    assert TempAtMost(4096).check(Program(complete)).holds


@pytest.mark.parametrize(
    "bound", [TempAtMost(4096), TotalWithin(4096, 0.01), BeyondAtMost(4096)], ids=str
)
@pytest.mark.parametrize("lacking", [sort("s32[99999]{0}", "s32[99999]{0}", operands=2), CALL])
def test_no_bound_holds_where_memory_is_missing(bound: Expectation, lacking: Instruction) -> None:
    assert bound.check(Program(plan(sort("f32[8]{0}")))).holds
    (violation,) = bound.check(Program(plan(lacking))).violations
    assert violation.found.endswith("The bound is undecided")
    assert violation.source == LINE


def test_a_bound_that_fails_without_it_fails_as_ever() -> None:
    (violation,) = TempAtMost(4095).check(Program(plan(CALL))).violations
    assert "1 B too many" in violation.found


def test_manifest_lists_patches_only_where_there_are_any() -> None:
    assert not {"xla_patches", "without_xla_patches"} & MANIFEST.to_json().keys()
    patched = replace(MANIFEST, xla_patches=("instruction-order",), without_xla_patches=("x",))
    assert Manifest.from_json(patched.to_json(), where="manifest.json") == patched
    assert "patches of XLA that were switched off: x" in patched.notes


def test_manifest_states_it_only_where_it_is_so() -> None:
    assert "sorts_undecided" not in MANIFEST.to_json()
    undecided = replace(MANIFEST, sorts_undecided=True)
    assert Manifest.from_json(undecided.to_json(), where="manifest.json") == undecided
