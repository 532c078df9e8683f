"""What `xlapipe diff` states about two small programs that differ in one thing."""

# Sentences stay whole.
# ruff: noqa: E501

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shared.programs import program_of, with_facts
from tests.shared.sections import sections
from tests.shared.small_hlo import Place, plan_of_text
from xlapipe.differences import compare
from xlapipe.plans import AllocationKind, InputOutputAlias, Thunk
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program

ROW, MATRIX = "f32[8]{0}", "f32[8,8]{1,0}"
GEMM_CONFIG = (
    '{"gemm_backend_config":{"selected_algorithm":"3","dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]},"epilogue":"DEFAULT",'
    '"damax_output":false}}'
)
KIND_CONFIG = (
    '{"fusion_backend_config":{"kind":"__triton","block_level_fusion_config":'
    '{"num_warps":"4","output_tiles":[{"sizes":["8"]}]}}}'
)


def named(op_name: str, line: int) -> str:
    return f'metadata={{op_name="jit(step)/{op_name}" source_file="step.py" source_line={line}}}'


TEXT = f"""HloModule m, is_scheduled=true

%loops (y: f32[8]) -> f32[8] {{
  %y = {ROW} parameter(0)
  ROOT %n = {ROW} negate(%y)
}}

%tiles (z: f32[8]) -> f32[8] {{
  %z = {ROW} parameter(0)
  ROOT %e = {ROW} exponential(%z)
}}

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[8], w: f32[8,8]) -> (f32[8], f32[8]) {{
  %x = {ROW} parameter(0)
  %w = {MATRIX} parameter(1)
  %gemm = ({MATRIX}, s8[64]{{0}}) custom-call(%w, %w), custom_call_target="__cublas$gemm", \
{named("layer/up/dot_general", 13)}, backend_config={GEMM_CONFIG}
  %sum = {ROW} all-reduce(%x), replica_groups={{{{0,1}}}}, to_apply=%add, {named("psum", 12)}
  %loop = {ROW} fusion(%sum), kind=kLoop, calls=%loops, {named("layer/neg", 15)}
  %tile = {ROW} fusion(%loop), kind=kCustom, calls=%tiles, {named("layer/exp", 16)}, \
backend_config={KIND_CONFIG}
  %turned = {ROW} reverse(%tile), dimensions={{0}}, {named("rev", 17)}
  %out = {ROW} add(%turned, %x), {named("add", 22)}
  ROOT %results = ({ROW}, {ROW}) tuple(%out, %tile)
}}
"""
MEMORY: Mapping[str, Place] = {
    "x": 0, "out": 0, "w": 1, "tile": 2,
    "gemm{0}": (3, 0), "gemm{1}": (3, 256), "sum": (3, 0), "loop": (3, 32), "turned": (3, 64), "more": (3, 128),
}  # fmt: skip
ALIVE = {
    "x": (0, 8), "w": (0, 9), "gemm{0}": (2, 2), "gemm{1}": (2, 2), "sum": (3, 4), "loop": (4, 5),
    "tile": (5, 9), "turned": (6, 7), "more": (7, 8), "out": (7, 9),
}  # fmt: skip
KINDS = {
    0: (AllocationKind.PARAMETER, AllocationKind.MAYBE_LIVE_OUT),
    1: (AllocationKind.PARAMETER,),
    2: (AllocationKind.MAYBE_LIVE_OUT,),
    4: (AllocationKind.MAYBE_LIVE_OUT,),
}


def program(
    text: str = TEXT,
    memory: Mapping[str, Place] = MEMORY,
    alive: Mapping[str, tuple[int, int]] | None = ALIVE,
    aliased: bool = True,
) -> Program:
    """`step(x, w)`, which writes its first result over `x`."""
    defined = {
        name: place for name, place in memory.items() if f"%{name.partition('{')[0]} =" in text
    }
    ranges = {name: alive[name] for name in defined if name in alive} if alive is not None else None
    plan = plan_of_text(text, defined, ranges)
    kinds = KINDS if aliased else KINDS | {0: KINDS[1]}
    allocations = tuple(
        replace(
            allocation,
            kinds=kinds.get(allocation.index, (AllocationKind.PREALLOCATED_TEMP,)),
            parameter_number=allocation.index if allocation.index < 2 else None,
        )
        for allocation in plan.allocations
    )
    aliases = (InputOutputAlias(0, (0,)),) if aliased else ()
    return program_of(
        replace(plan, allocations=allocations, header_aliases=aliases),
        gemm_policy="cublas",
        arguments=(
            ArgumentLeaf("x", (8,), "float32", 32, True, 0),
            ArgumentLeaf("w", (8, 8), "float32", 256, False, 1),
        ),
        outputs=(
            OutputLeaf("out[0]", (8,), "float32", 32, 0),
            OutputLeaf("out[1]", (8,), "float32", 32, 1),
        ),
    )


def changed(*replacements: tuple[str, str]) -> Program:
    text = TEXT
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    return program(text)


A = program()


def sentences(a: Program, b: Program) -> list[str]:
    return [
        ("" if sentence.delta_bytes is None else f"{sentence.delta_bytes:+,} B ") + sentence.text
        for sentence in compare(a, b).sentences()
    ]


def with_plan(program: Program = A, **fields: object) -> Program:
    return replace(program, plan=replace(program.plan, **fields))  # type: ignore[arg-type]


def with_thunks(*details: tuple[str, str]) -> Program:
    return with_plan(thunks=tuple(Thunk(kind, 0, detail) for kind, detail in details))


def with_more(kind: AllocationKind, color: int = 0) -> Program:
    """32 bytes more."""
    more = replace(A.plan.allocations[2], index=4, color=color, kinds=(kind,), values=())
    return with_plan(allocations=(*A.plan.allocations, more))


def in_color_1(name: str) -> Program:
    """A program in which a value is in another memory space of the device."""
    moved = program(memory={**MEMORY, name: 5})
    allocations = (
        replace(allocation, color=int(allocation.index == 5))
        for allocation in moved.plan.allocations
    )
    return with_plan(moved, allocations=tuple(allocations))


ARGUMENTS_OF_SUM = f"replica_groups={{{{0,1}}}}, to_apply=%add, {named('psum', 12)}"
THUNKS = with_thunks(("kKernel", "k1 grid: 1, threads: 2"), ("kKernel", "k2 grid: 2, threads: 2"))
WITHOUT_GEMM = {name: place for name, place in MEMORY.items() if not name.startswith("gemm")}
GEMM, SUM, LOOP = TEXT.splitlines(keepends=True)[21:24]
UNALIASED = program(memory={**MEMORY, "out": 4}, aliased=False)
TURNED = f"%turned = {ROW} reverse(%tile), dimensions={{0}}, {named('rev', 17)}\n  "
OUT = f"  %out = {ROW} add(%turned, %x)"


CHANGED: Mapping[str, Program] = {
    "another algorithm": changed(('"selected_algorithm":"3"', '"selected_algorithm":"4"')),
    "no algorithm": changed(('"selected_algorithm":"3",', "")),
    "another epilogue": changed(('"epilogue":"DEFAULT"', '"epilogue":"BIAS"')),
    "a flag": changed(('"damax_output":false', '"damax_output":true')),
    "a default that is written": changed((',"damax_output":false', "")),
    "an algorithm that is unset": changed(
        (
            '"epilogue":"DEFAULT"',
            '"epilogue":"DEFAULT","kind":"_UNSET","type":"F_UNKNOWN","size":"0","scale":[],"name":""',
        )
    ),
    "other dimensions": changed(
        ('"rhs_contracting_dimensions":["0"]', '"rhs_contracting_dimensions":["1"]')
    ),
    "another backend": changed(('"__cublas$gemm"', '"__cublas$lt$matmul"')),
    "split-K": changed(
        (
            f"({MATRIX}, s8[64]{{0}}) custom-call",
            "(f32[4,8,8]{2,1,0}, s8[64]{0}) custom-call",
        )
    ),
    "another layout": changed(
        (f"({MATRIX}, s8[64]{{0}}) custom-call", "(f32[8,8]{0,1}, s8[64]{0}) custom-call")
    ),
    "a smaller product": changed(
        (f"%w = {MATRIX}", "%w = f32[4,8]{1,0}"),
        (f"({MATRIX}, s8[64]{{0}}) custom-call", "(f32[4,4]{1,0}, s8[64]{0}) custom-call"),
        ('"rhs_contracting_dimensions":["0"]', '"rhs_contracting_dimensions":["1"]'),
    ),
    "warps": changed(('"num_warps":"4"', '"num_warps":"8"')),
    "tiles": changed(('{"sizes":["8"]}', '{"sizes":["4"]},{"sizes":["2"]}')),
    "another emitter": changed(('"kind":"__triton"', '"kind":"__other"')),
    "XLA's own emitter": changed((KIND_CONFIG, "{}")),
    "another kind": changed(("kind=kLoop", "kind=kInput")),
    "another body": changed((f"ROOT %n = {ROW} negate(%y)", f"ROOT %n = {ROW} tanh(%y)")),
    "a larger body": changed(
        (
            f"ROOT %n = {ROW} negate(%y)",
            f"%m = {ROW} negate(%y)\n  ROOT %n = {ROW} negate(%m)",
        )
    ),
    "two operations more": changed(
        (
            f"ROOT %n = {ROW} negate(%y)",
            f"%m = {ROW} tanh(%y)\n  %k = {ROW} tanh(%m)\n  ROOT %n = {ROW} negate(%k)",
        )
    ),
    "other devices": changed(("replica_groups={{0,1}}", "replica_groups={{0,1},{2,3}}")),
    "swapped operands": changed(("add(%turned, %x)", "add(%x, %turned)")),
    "another opcode": changed(("add(%turned, %x)", "multiply(%turned, %x)")),
    "a copy": changed(("reverse(%tile)", "copy(%tile)")),
    "swapped outputs": changed(("tuple(%out, %tile)", "tuple(%tile, %out)")),
    "without a copy": changed((TURNED, ""), ("add(%turned", "add(%tile")),
    "an instruction more": changed(
        (
            OUT,
            f"  %more = {ROW} negate(%turned), {named('neg', 18)}\n  %out = {ROW} add(%more, %x)",
        )
    ),
    "a fusion more": changed(
        (
            OUT,
            f"  %more = {ROW} fusion(%turned), kind=kLoop, calls=%loops, {named('layer/tail/neg', 18)}\n  %out = {ROW} add(%more, %x)",
        )
    ),
    "a collective more": changed(
        (
            OUT,
            f"  %more = {ROW} all-reduce(%turned), replica_groups={{{{0,1}}}}, to_apply=%add, {named('layer/psum', 18)}\n  %out = {ROW} add(%more, %x)",
        )
    ),
    "asynchronous": changed(
        (
            f"%sum = {ROW} all-reduce(%x), {ARGUMENTS_OF_SUM}",
            f"%start = {ROW} all-reduce-start(%x), {ARGUMENTS_OF_SUM}\n  %sum = {ROW} all-reduce-done(%start)",
        )
    ),
    "another order": program(TEXT.replace(GEMM + SUM, SUM + GEMM)),
    "two places later": program(TEXT.replace(GEMM + SUM + LOOP, SUM + LOOP + GEMM)),
    "no workspace": program(
        TEXT.replace(
            f"({MATRIX}, s8[64]{{0}}) custom-call(%w, %w)", f"{MATRIX} custom-call(%w, %w)"
        ),
        memory={**WITHOUT_GEMM, "gemm": (3, 0)},
        alive={**ALIVE, "gemm": (2, 2)},
    ),
    "a product that became a fusion": program(
        TEXT.replace(
            GEMM,
            f"  %gemm = {MATRIX} fusion(%w), kind=kLoop, calls=%loops, {named('layer/up/dot_general', 13)}\n",
        ),
        memory={**WITHOUT_GEMM, "gemm": (3, 0)},
        alive={**ALIVE, "gemm": (2, 2)},
    ),
    "elements at other offsets": program(memory={**MEMORY, "gemm{0}": (3, 64), "gemm{1}": (3, 0)}),
    "a value in another memory space": in_color_1("loop"),
    "no alias": UNALIASED,
    "only a donor": with_plan(UNALIASED, buffer_donors=((0, ()),)),
    "another donor": with_plan(buffer_donors=((1, ()),)),
    "another alias": with_plan(header_aliases=(InputOutputAlias(0, (1,)),)),
    "no live ranges": program(memory={**MEMORY, "loop": (3, 1000)}, alive=None),
    "another offset": program(memory={**MEMORY, "loop": (3, 96)}),
    "packing": program(memory={**MEMORY, "loop": (3, 1000)}),
    "an allocation more": program(memory={**MEMORY, "loop": 5}),
    "alive for longer": program(
        memory={**MEMORY, "loop": (3, 320)}, alive={**ALIVE, "loop": (2, 5)}
    ),
    "a peak elsewhere": program(
        memory={**MEMORY, "loop": (3, 400), "turned": (3, 432)},
        alive={**ALIVE, "gemm{0}": (2, 4), "gemm{1}": (2, 4), "turned": (4, 7)},
    ),
    "thunks": with_thunks(("kKernel", ""), ("kGemm", "")),
    "another launch": with_thunks(
        ("kKernel", "k1 grid: 1, threads: 2"), ("kKernel", "k2 grid: 1, threads: 4")
    ),
    "another name": with_thunks(
        ("kKernel", "k1 grid: 1, threads: 2"), ("kKernel", "k9 grid: 2,  threads: 2")
    ),
    "donated": with_facts(A, arguments=(A.arguments[0], replace(A.arguments[1], donated=True))),
    "a constant": with_more(AllocationKind.CONSTANT),
    "thread-local": with_more(AllocationKind.THREAD_LOCAL),
    "on the host": with_more(AllocationKind.PREALLOCATED_TEMP, color=5),
    "another color": with_more(AllocationKind.PREALLOCATED_TEMP, color=1),
}
STATED = sections(Path(__file__).with_name("changes.txt"))


@pytest.mark.parametrize(
    ("change", "stated"), list(zip(CHANGED, STATED, strict=True)), ids=list(CHANGED)
)
def test_one_change_is_stated_in_both_directions(
    change: str, stated: tuple[str, list[str]]
) -> None:
    b = CHANGED[change]
    a = A if b.plan.thunks is None else THUNKS
    lines = [f"> {text}" for text in sentences(a, b)] + [f"< {text}" for text in sentences(b, a)]
    assert (change, lines) == stated
    assert sentences(b, b) == []


@pytest.mark.parametrize(
    "field",
    [f"{side}_{name}" for side in ("lhs", "rhs") for name in ("batch_dimensions", "contracting_dimensions", "stride")],
)  # fmt: skip
def test_what_follows_from_the_shapes_of_a_product_is_not_stated_beside_them(field: str) -> None:
    a = changed(('"epilogue":"DEFAULT"', f'"{field}":"0"'))
    other = ('"epilogue":"DEFAULT"', f'"{field}":"64"')
    same_shape = changed(other)
    assert sentences(a, same_shape)[0].startswith(f"dot at step.py:13 (layer/up) {field} ")
    smaller = (f"({MATRIX}, s8[64]{{0}}) custom-call", "(f32[8,4]{1,0}, s8[64]{0}) custom-call")
    assert not any(field in text for text in sentences(a, changed(other, smaller)))
