"""Each expectation holds on a good plan, and fails on a broken one, reporting where."""

import json
from dataclasses import MISSING, dataclass, fields, replace
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from tests.shared.hlo_objects import instruction, logical_buffer
from tests.shared.programs import program_of
from xlapipe import expect
from xlapipe.errors import DumpError
from xlapipe.expect import Expectation, Finding, Violation
from xlapipe.plans import (
    AllocationKind,
    BufferAllocation,
    Computation,
    HloModule,
    InputOutputAlias,
    Instruction,
    Plan,
    SourceLine,
)
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program, RequestedDot, matches

CACHE = "bf16[8,128]{1,0}"
LINE = SourceLine("step.py", 7)
TRITON = '{"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}'


def allocation(index: int, size: int, *kinds: AllocationKind, **fields: Any) -> BufferAllocation:
    return BufferAllocation(index, size, kinds, **fields)


def module(*entry: Instruction, **fused: tuple[Instruction, ...]) -> HloModule:
    computations = {name: Computation(name, body, body[-1].name) for name, body in fused.items()}
    computations["main"] = Computation("main", entry, entry[-1].name)
    return HloModule("jit_step", computations, "main")


def step(*, aliased: bool, copied: bool = False) -> Program:
    """`step(w, cache)`: a gemm on cuBLASLt, and a cache that is updated in place, or copied."""
    live, parameter = AllocationKind.MAYBE_LIVE_OUT, AllocationKind.PARAMETER
    value = logical_buffer("update", 0, 2048, CACHE)
    cache = logical_buffer("cache", 0, 2048, CACHE)
    allocations = [
        allocation(0, 4096, parameter, parameter_number=0),
        allocation(
            1,
            2048,
            *((parameter, live) if aliased else (parameter,)),
            parameter_number=1,
            values=(cache, value) if aliased else (cache,),
        ),
        allocation(
            2,
            1000,
            AllocationKind.PREALLOCATED_TEMP,
            values=(logical_buffer("gemm{0}", 0, 1000, "f32[1,250]{1,0}"),),
        ),
    ]
    entry = [
        instruction("w", "parameter", "bf16[16,128]{1,0}", parameter_number=0),
        instruction("cache", "parameter", CACHE, parameter_number=1),
        instruction(
            "gemm",
            "custom-call",
            "(f32[1,250]{1,0}, s8[64]{0})",
            ("w", "cache"),
            custom_call_target="__cublas$lt$matmul",
            op_name="jit(step)/layers_0/up/dot_general",
            source=LINE,
        ),
        instruction("update", "dynamic-update-slice", CACHE, ("cache", "gemm"), source=LINE),
    ]
    if copied:
        entry.insert(3, instruction("copy.1", "copy", CACHE, ("cache",), source=LINE))
        entry[4] = entry[4]._replace(operands=("copy.1", "gemm"))
    if copied or not aliased:
        name = "copy.1" if copied else "update"
        other = logical_buffer(name, 0, 2048, CACHE)
        allocations.append(allocation(3, 2048, live, values=(other,)))
    plan = Plan(
        tuple(allocations),
        module=module(*entry),
        header_aliases=(InputOutputAlias(1, ()),) if aliased else (),
    )
    return program_of(
        plan,
        gemm_policy="cublas",
        arguments=(
            ArgumentLeaf("w", (16, 128), "bfloat16", 4096, False, 0),
            ArgumentLeaf("cache", (8, 128), "bfloat16", 2048, True, 1),
            ArgumentLeaf("unused", (3,), "bfloat16", 6, True, None),
        ),
        outputs=(OutputLeaf("out", (8, 128), "bfloat16", 2048, 0),),
        requested_dots=(RequestedDot("jit(step)/layers_0/up/dot_general", "f32[1,250]", LINE),),
    )


GOOD, LOST, COPIED = step(aliased=True), step(aliased=False), step(aliased=True, copied=True)


def violations(expectation: Expectation, program: Program) -> tuple[Violation, ...]:
    return expectation.check(program).violations


@pytest.mark.parametrize(
    ("expectation", "broken"),
    [
        (
            expect.AllocationsAre(
                ((4096, ("parameter",)), (2048, ("parameter", "maybe-live-out")))
            ),
            LOST,
        ),
        (expect.Aliased("cache"), LOST),
        (expect.NoAllocationAbove(1500, ("w", "cache", "out")), COPIED),
        (expect.NoCopyAbove(2047), COPIED),
        (expect.NoCopyAbove(2047), LOST),
        (expect.BeyondAtMost(1000), LOST),
        (expect.TotalWithin(4096 + 2048 + 1000, 1e-4), LOST),
    ],
)
def test_holds_on_the_good_step_and_fails_on_a_broken_one(
    expectation: Expectation, broken: Program
) -> None:
    assert violations(expectation, GOOD) == ()
    reported = violations(expectation, broken)
    assert reported
    assert all(violation.expected and violation.found for violation in reported)


@pytest.mark.parametrize(
    ("holds", "fails"),
    [
        (expect.AllocationOf("w", 4096), expect.AllocationOf("w", 4095)),
        (expect.AllocationOf("out", 2048), expect.AllocationOf("out", 2)),
        (expect.ParameterBytes(6144), expect.ParameterBytes(6143)),
        (expect.TempAtMost(1000), expect.TempAtMost(999)),
        (expect.BeyondAtMost(1000), expect.BeyondAtMost(999)),
        (expect.NoValueOfShape((249,)), expect.NoValueOfShape((250,))),
        (expect.NoValueAbove(2048), expect.NoValueAbove(999)),
        (expect.NoValueAbove(0, "pred"), expect.NoValueAbove(999, "bf16")),
        (expect.LeavesTotal("w", 4096), expect.LeavesTotal("w", 4097)),
        (expect.LeavesTotal("cache", 2048), expect.LeavesTotal("kache", 2048)),
        (expect.ConvolutionCount(0), expect.ConvolutionCount(1)),
        (expect.NoAllocationAbove(4096), expect.NoAllocationAbove(4095)),
        (expect.NotAliased("w"), expect.NotAliased("cache")),
        (expect.GemmCount(1, ("cublaslt",)), expect.GemmCount(1, ("triton",))),
        (expect.GemmCount(0, ("reduce",)), expect.GemmCount(2)),
        (expect.FusionCount(0, "kLoop"), expect.FusionCount(1, "kLoop")),
        (
            expect.MatmulsAccounted((expect.Matmul("layers_0/up", backends=("cublaslt",)),)),
            expect.MatmulsAccounted((expect.Matmul("layers_0/up", backends=("triton",)),)),
        ),
        (
            expect.MatmulsAccounted((expect.Matmul("layers_0/up"),)),
            expect.MatmulsAccounted((expect.Matmul("layers_0/down"),)),
        ),
        (
            expect.MatmulsAccounted((expect.Matmul("layers_0"),)),
            expect.MatmulsAccounted((expect.Matmul("layers_0", count=2),)),
        ),
    ],
)
def test_one_byte_or_one_gemm_off_fails(holds: Expectation, fails: Expectation) -> None:
    assert violations(holds, GOOD) == ()
    assert violations(fails, GOOD) != ()


def test_convolutions_are_counted_by_scope_also_of_gradients() -> None:
    calls = tuple(
        instruction(
            f"conv.{number}",
            "custom-call",
            "bf16[2,4,4,8]{3,2,1,0}",
            custom_call_target=target,
            op_name=op_name,
        )
        for number, (target, op_name) in enumerate(
            (
                ("__cudnn$convForward", "jit(step)/first/conv_general_dilated"),
                ("__cudnn$convForward", "jit(step)/transpose(jvp(first))/conv_general_dilated"),
                ("__cudnn$convBackwardFilter", "jit(step)/dkernel/conv_general_dilated"),
                ("__cublas$lt$matmul", "jit(step)/first/dot_general"),
            )
        )
    )
    program = Program(Plan((), module=module(*calls)))
    assert violations(expect.ConvolutionCount(3), program) == ()
    assert violations(expect.ConvolutionCount(2, "first"), program) == ()
    assert violations(expect.ConvolutionCount(1, "dkernel"), program) == ()
    (violation,) = violations(expect.ConvolutionCount(2, "dkernel"), program)
    assert "1 convBackwardFilter, 2 convForward" in violation.found


def test_a_name_without_a_leaf_fails() -> None:
    for expectation in (expect.Aliased("kache"), expect.AllocationOf("kache", 1)):
        (violation,) = violations(expectation, GOOD)
        assert "cache" in violation.found


def test_an_expectation_applies_under_its_policy_only() -> None:
    never = expect.GemmCount(99, under="triton")
    assert expect.check_all((never,), GOOD) == ()
    assert not expect.check_all((replace(never, under="cublas"),), GOOD)[0].holds


UP = "jit(step)/up/dot_general"


def gemv(*, split_k: bool, multiplied: str | None = UP) -> Program:
    """A dot as multiply and reduce in two fusions, or a split-K gemm with a sum of its partials."""
    dot = UP
    product = (
        instruction("p0", "parameter", "f32[4,8]{1,0}", parameter_number=0),
        instruction("m", "multiply", "f32[4,8]{1,0}", ("p0", "p0"), op_name=multiplied),
        instruction("c", "convert", "bf16[4,8]{1,0}", ("m",)),
    )
    gemm = (
        instruction("p0", "parameter", "f32[4,8]{1,0}", parameter_number=0),
        instruction("d", "dot", "f32[4,8]{1,0}", ("p0", "p0"), op_name=dot),
    )
    total = (
        instruction("q0", "parameter", "bf16[4,8]{1,0}", parameter_number=0),
        instruction("zero", "constant", "f32[]"),
        instruction("r", "reduce", "f32[8]{0}", ("q0", "zero"), op_name=dot),
    )
    config = TRITON if split_k else ""
    kind = "kCustom" if split_k else "kLoop"
    first = instruction(
        "f", "fusion", "f32[4,8]{1,0}", ("x",), None, ("first",), kind, backend_config=config
    )
    entry = (
        instruction("x", "parameter", "f32[4,8]{1,0}", parameter_number=0),
        first,
        instruction("g", "fusion", "f32[8]{0}", ("f",), None, ("total",), "kInput"),
    )
    hlo = module(*entry, first=gemm if split_k else product, total=total)
    return Program(Plan((), module=hlo))


@pytest.mark.parametrize("multiplied", [UP, None])
def test_a_dot_as_reduction_counts_once_and_the_sum_of_split_k_does_not_count(
    multiplied: str | None,
) -> None:
    found = gemv(split_k=False, multiplied=multiplied).plan.gemms
    assert [(g.instruction, g.backend) for g in found] == [("g", "reduce")]
    assert gemv(split_k=False, multiplied="jit(step)/norm/mul").plan.gemms == ()
    assert [(g.instruction, g.backend) for g in gemv(split_k=True).plan.gemms] == [("f", "triton")]


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("cache", "cache", True),
        ("cache", "cache[0]['k']", True),
        ("cache", "cached", False),
        ("cache[*]['k']", "cache[12]['k']", True),
        ("cache[*]['k']", "cache[12]['v']", False),
        ("*", "anything", True),
        ("params.layers", "params.layers.kernel", True),
        ("out[1]", "out[10]", False),
    ],
)
def test_name_patterns(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected


@pytest.mark.parametrize(
    "expectation",
    [
        expect.Aliased("cache", because="in place"),
        expect.AllocationsAre(((4096, ("parameter",)),), first=2),
        expect.MatmulsAccounted((expect.Matmul("up", 2, ("reduce",), 1),), under="cublas"),
        expect.TotalWithin(10, 1e-4),
        expect.FusionCount(4, backend_kind="__triton"),
        expect.CollectiveBytes(2, ("all-gather", "all-reduce"), operands=True),
        expect.FastAccumulation(()),
        expect.Donated("params", copies_up_to_bytes=16, because="small ones"),
    ],
)
def test_json_round_trip(expectation: Expectation) -> None:
    data = json.loads(json.dumps(expect.expectation_to_json(expectation)))
    assert expect.expectation_from_json(data, where="manifest.json") == expectation


def sample(annotation: Any) -> Any:
    """A value of a type that expectations have: text, a number, or a sequence of them."""
    if annotation in (int, float, str, bool):
        return annotation(1)
    arguments = get_args(annotation)
    if not arguments:
        return ()
    if get_origin(annotation) in (Union, UnionType):
        return sample(arguments[0])
    return (sample(arguments[0]),) if isinstance(arguments[0], type) else ()


EXPECTATIONS = [
    cls
    for cls in vars(expect).values()
    if isinstance(cls, type) and issubclass(cls, Expectation) and cls is not Expectation
]


@pytest.mark.parametrize("cls", EXPECTATIONS, ids=lambda cls: cls.__name__)
def test_every_expectation_of_xlapipe_can_be_recorded(cls: type[Expectation]) -> None:
    required = [field.name for field in fields(cls) if field.default is MISSING]
    hints = get_type_hints(cls)
    samples = {"bound": "memory", "matmuls": (expect.Matmul("dot", 1),)}
    values: dict[str, Any] = {name: samples.get(name, sample(hints[name])) for name in required}
    expectation = cls(**values)
    data = expect.expectation_to_json(expectation)
    assert data is not None
    assert expect.expectation_from_json(data, where="manifest.json") == expectation


def test_an_expectation_of_a_user_is_not_recorded() -> None:
    @dataclass(frozen=True)
    class Aliased(Expectation):
        def check(self, program: Program) -> Finding:
            return self.finding("checked")

    assert expect.expectation_to_json(Aliased()) is None


@pytest.mark.parametrize(
    "data", [None, 3, "x", [], {}, {"expect": "Nothing"}, {"expect": "Aliased", "size": 1}]
)
def test_json_of_another_form_is_rejected(data: Any) -> None:
    with pytest.raises(DumpError, match=r"manifest\.json"):
        expect.expectation_from_json(data, where="manifest.json")
