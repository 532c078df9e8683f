"""What `xlapipe diff` states about two small programs that differ in one thing."""

# Sentences stay whole.
# ruff: noqa: E501

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.shared.small_hlo import Place, plan_of_text
from xlapipe.diff import compare
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
    return Program(
        replace(plan, allocations=allocations, header_aliases=aliases),
        "cublas",
        (
            ArgumentLeaf("x", (8,), "float32", 32, True, 0),
            ArgumentLeaf("w", (8, 8), "float32", 256, False, 1),
        ),
        (
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


@pytest.mark.parametrize(
    ("b", "forwards", "backwards"),
    [
        pytest.param(
            changed(('"selected_algorithm":"3"', '"selected_algorithm":"4"')),
            ["dot at step.py:13 (layer/up) algorithm 3 → 4"],
            ["dot at step.py:13 (layer/up) algorithm 4 → 3"],
            id="another algorithm",
        ),
        pytest.param(
            changed(('"selected_algorithm":"3",', "")),
            ["dot at step.py:13 (layer/up) algorithm 3 → none"],
            ["dot at step.py:13 (layer/up) algorithm none → 3"],
            id="no algorithm",
        ),
        pytest.param(
            changed(('"epilogue":"DEFAULT"', '"epilogue":"BIAS"')),
            ["dot at step.py:13 (layer/up) epilogue DEFAULT → BIAS"],
            ["dot at step.py:13 (layer/up) epilogue BIAS → DEFAULT"],
            id="another epilogue",
        ),
        pytest.param(
            changed(('"damax_output":false', '"damax_output":true')),
            ["dot at step.py:13 (layer/up) damax_output False → True"],
            ["dot at step.py:13 (layer/up) damax_output True → False"],
            id="a flag",
        ),
        pytest.param(
            changed((',"damax_output":false', "")), [], [], id="a default that is written"
        ),
        pytest.param(
            changed(
                (
                    '"epilogue":"DEFAULT"',
                    '"epilogue":"DEFAULT","kind":"_UNSET","type":"F_UNKNOWN","size":"0","scale":[],"name":""',
                )
            ),
            [],
            [],
            id="an algorithm that is unset",
        ),
        pytest.param(
            changed(('"rhs_contracting_dimensions":["0"]', '"rhs_contracting_dimensions":["1"]')),
            ["dot at step.py:13 (layer/up) rhs_contracting_dimensions [0] → [1]"],
            ["dot at step.py:13 (layer/up) rhs_contracting_dimensions [1] → [0]"],
            id="other dimensions",
        ),
        pytest.param(
            changed(('"__cublas$gemm"', '"__cublas$lt$matmul"')),
            ["dot at step.py:13 (layer/up) went from cublas to cublaslt"],
            ["dot at step.py:13 (layer/up) went from cublaslt to cublas"],
            id="another backend",
        ),
        pytest.param(
            changed(
                (
                    f"({MATRIX}, s8[64]{{0}}) custom-call",
                    "(f32[4,8,8]{2,1,0}, s8[64]{0}) custom-call",
                )
            ),
            [
                "+768 B temp: dot at step.py:13 (layer/up) became split-K 4, f32[8,8] → f32[4,8,8]",
                "-64 B temp: the workspace of dot at step.py:13 (layer/up) (s8[64]); in B it shares more memory with other values",
                "dot at step.py:13 (layer/up) became split-K 4, f32[8,8] → f32[4,8,8]",
            ],
            [
                "-768 B temp: dot at step.py:13 (layer/up) is no longer split-K 4, f32[4,8,8] → f32[8,8]",
                "+64 B temp: the workspace of dot at step.py:13 (layer/up) (s8[64]); in B it shares less memory with other values",
                "dot at step.py:13 (layer/up) is no longer split-K 4, f32[4,8,8] → f32[8,8]",
            ],
            id="split-K",
        ),
        pytest.param(
            changed(
                (f"({MATRIX}, s8[64]{{0}}) custom-call", "(f32[8,8]{0,1}, s8[64]{0}) custom-call")
            ),
            ["dot at step.py:13 (layer/up) layout f32[8,8]{1,0} → f32[8,8]{0,1}"],
            ["dot at step.py:13 (layer/up) layout f32[8,8]{0,1} → f32[8,8]{1,0}"],
            id="another layout",
        ),
        pytest.param(
            changed(
                (f"%w = {MATRIX}", "%w = f32[4,8]{1,0}"),
                (f"({MATRIX}, s8[64]{{0}}) custom-call", "(f32[4,4]{1,0}, s8[64]{0}) custom-call"),
                ('"rhs_contracting_dimensions":["0"]', '"rhs_contracting_dimensions":["1"]'),
            ),
            [
                "argument w f32[8,8] → w f32[4,8]",
                "-128 B argument w: 256 B → 128 B",
                "dot at step.py:13 (layer/up) f32[8,8] → f32[4,4]",
            ],
            [
                "argument w f32[4,8] → w f32[8,8]",
                "+128 B argument w: 128 B → 256 B",
                "dot at step.py:13 (layer/up) f32[4,4] → f32[8,8]",
            ],
            id="a smaller product",
        ),
        pytest.param(
            changed(('"num_warps":"4"', '"num_warps":"8"')),
            ["fusion exp at step.py:16 (layer) num_warps 4 → 8"],
            ["fusion exp at step.py:16 (layer) num_warps 8 → 4"],
            id="warps",
        ),
        pytest.param(
            changed(('{"sizes":["8"]}', '{"sizes":["4"]},{"sizes":["2"]}')),
            ["fusion exp at step.py:16 (layer) tiles [8] → [4] [2]"],
            ["fusion exp at step.py:16 (layer) tiles [4] [2] → [8]"],
            id="tiles",
        ),
        pytest.param(
            changed(('"kind":"__triton"', '"kind":"__other"')),
            ["fusion exp at step.py:16 (layer) emitter __triton → __other"],
            ["fusion exp at step.py:16 (layer) emitter __other → __triton"],
            id="another emitter",
        ),
        pytest.param(
            changed((KIND_CONFIG, "{}")),
            ["fusion exp at step.py:16 (layer) emitter __triton → XLA's own"],
            ["fusion exp at step.py:16 (layer) emitter XLA's own → __triton"],
            id="XLA's own emitter",
        ),
        pytest.param(
            changed(("kind=kLoop", "kind=kInput")),
            ["fusion neg at step.py:15 (layer) fusion kind kLoop → kInput"],
            ["fusion neg at step.py:15 (layer) fusion kind kInput → kLoop"],
            id="another kind",
        ),
        pytest.param(
            changed((f"ROOT %n = {ROW} negate(%y)", f"ROOT %n = {ROW} tanh(%y)")),
            ["fusion neg at step.py:15 (layer) now also does tanh and no longer does negate"],
            ["fusion neg at step.py:15 (layer) now also does negate and no longer does tanh"],
            id="another body",
        ),
        pytest.param(
            changed(
                (
                    f"ROOT %n = {ROW} negate(%y)",
                    f"%m = {ROW} negate(%y)\n  ROOT %n = {ROW} negate(%m)",
                )
            ),
            ["fusion neg at step.py:15 (layer) now also does negate"],
            ["fusion neg at step.py:15 (layer) no longer does negate"],
            id="a larger body",
        ),
        pytest.param(
            changed(
                (
                    f"ROOT %n = {ROW} negate(%y)",
                    f"%m = {ROW} tanh(%y)\n  %k = {ROW} tanh(%m)\n  ROOT %n = {ROW} negate(%k)",
                )
            ),
            ["fusion neg at step.py:15 (layer) now also does 2 tanh"],
            ["fusion neg at step.py:15 (layer) no longer does 2 tanh"],
            id="two operations more",
        ),
        pytest.param(
            changed(("replica_groups={{0,1}}", "replica_groups={{0,1},{2,3}}")),
            ["all-reduce at step.py:12 devices {0,1} → {0,1},{2,3}"],
            ["all-reduce at step.py:12 devices {0,1},{2,3} → {0,1}"],
            id="other devices",
        ),
        pytest.param(
            changed(("add(%turned, %x)", "add(%x, %turned)")),
            ["add at step.py:22 reads different values"],
            ["add at step.py:22 reads different values"],
            id="swapped operands",
        ),
        pytest.param(
            changed(("add(%turned, %x)", "multiply(%turned, %x)")),
            ["multiply at step.py:22 opcode add → multiply"],
            ["add at step.py:22 opcode multiply → add"],
            id="another opcode",
        ),
        pytest.param(
            changed(("reverse(%tile)", "copy(%tile)")),
            ["copy: copy at step.py:17 opcode reverse → copy"],
            ["copy: reverse at step.py:17 opcode copy → reverse"],
            id="a copy",
        ),
        pytest.param(
            changed(("tuple(%out, %tile)", "tuple(%tile, %out)")),
            [
                "-32 B output out[1]: 32 B, only in A",
                "+32 B output outputs without a name in the HLO: 32 B, only in B",
                "output out[0] is computed by fusion exp at step.py:16 (layer), in A by add at step.py:22",
                "output out[1] is computed by add at step.py:22, in A by fusion exp at step.py:16 (layer)",
                "allocations: 1 value moved from out[1] to outputs without a name in the HLO, largest 32 B",
            ],
            [
                "+32 B output out[1]: 32 B, only in B",
                "-32 B output outputs without a name in the HLO: 32 B, only in A",
                "output out[0] is computed by add at step.py:22, in A by fusion exp at step.py:16 (layer)",
                "output out[1] is computed by fusion exp at step.py:16 (layer), in A by add at step.py:22",
                "allocations: 1 value moved from outputs without a name in the HLO to out[1], largest 32 B",
            ],
            id="swapped outputs",
        ),
        pytest.param(
            changed((TURNED, ""), ("add(%turned", "add(%tile")),
            ["removed: copy: reverse at step.py:17 writes f32[8], 32 B"],
            ["added: copy: reverse at step.py:17 writes f32[8], 32 B"],
            id="without a copy",
        ),
        pytest.param(
            changed(
                (
                    OUT,
                    f"  %more = {ROW} negate(%turned), {named('neg', 18)}\n  %out = {ROW} add(%more, %x)",
                )
            ),
            ["added: negate at step.py:18 writes f32[8], 32 B"],
            ["removed: negate at step.py:18 writes f32[8], 32 B"],
            id="an instruction more",
        ),
        pytest.param(
            changed(
                (
                    OUT,
                    f"  %more = {ROW} fusion(%turned), kind=kLoop, calls=%loops, {named('layer/tail/neg', 18)}\n  %out = {ROW} add(%more, %x)",
                )
            ),
            ["added: fusion neg at step.py:18 (layer/tail) writes f32[8], 32 B"],
            ["removed: fusion neg at step.py:18 (layer/tail) writes f32[8], 32 B"],
            id="a fusion more",
        ),
        pytest.param(
            changed(
                (
                    OUT,
                    f"  %more = {ROW} all-reduce(%turned), replica_groups={{{{0,1}}}}, to_apply=%add, {named('layer/psum', 18)}\n  %out = {ROW} add(%more, %x)",
                )
            ),
            ["added: all-reduce at step.py:18 (layer) writes f32[8], 32 B"],
            ["removed: all-reduce at step.py:18 (layer) writes f32[8], 32 B"],
            id="a collective more",
        ),
        pytest.param(
            changed(
                (
                    f"%sum = {ROW} all-reduce(%x), {ARGUMENTS_OF_SUM}",
                    f"%start = {ROW} all-reduce-start(%x), {ARGUMENTS_OF_SUM}\n  %sum = {ROW} all-reduce-done(%start)",
                )
            ),
            [
                "all-reduce-start at step.py:12 opcode all-reduce → all-reduce-start, waiting synchronous → asynchronous"
            ],
            [
                "all-reduce at step.py:12 opcode all-reduce-start → all-reduce, waiting asynchronous → synchronous"
            ],
            id="asynchronous",
        ),
        pytest.param(
            program(TEXT.replace(GEMM + SUM, SUM + GEMM)),
            ["schedule: 1 of 6 instructions run in a different order"],
            ["schedule: 1 of 6 instructions run in a different order"],
            id="another order",
        ),
        pytest.param(
            program(TEXT.replace(GEMM + SUM + LOOP, SUM + LOOP + GEMM)),
            ["schedule: 1 of 6 instructions run in a different order"],
            ["schedule: 1 of 6 instructions run in a different order"],
            id="two places later",
        ),
        pytest.param(
            program(
                TEXT.replace(
                    f"({MATRIX}, s8[64]{{0}}) custom-call(%w, %w)", f"{MATRIX} custom-call(%w, %w)"
                ),
                memory={**WITHOUT_GEMM, "gemm": (3, 0)},
                alive={**ALIVE, "gemm": (2, 2)},
            ),
            [
                "-64 B temp: only in A: the workspace of dot at step.py:13 (layer/up) (s8[64])",
                "dot at step.py:13 (layer/up) changed",
            ],
            [
                "+64 B temp: only in B: the workspace of dot at step.py:13 (layer/up) (s8[64]; changed)",
                "dot at step.py:13 (layer/up) changed",
            ],
            id="no workspace",
        ),
        pytest.param(
            program(
                TEXT.replace(
                    GEMM,
                    f"  %gemm = {MATRIX} fusion(%w), kind=kLoop, calls=%loops, {named('layer/up/dot_general', 13)}\n",
                ),
                memory={**WITHOUT_GEMM, "gemm": (3, 0)},
                alive={**ALIVE, "gemm": (2, 2)},
            ),
            [
                "-64 B temp: only in A: the workspace of dot at step.py:13 (layer/up) (s8[64])",
                "dot at step.py:13 (layer/up) kind gemm → fusion, opcode custom-call → fusion, fusion kind none → kLoop, custom call target __cublas$gemm → none",
            ],
            [
                "+64 B temp: only in B: the workspace of dot at step.py:13 (layer/up) (s8[64]; kind fusion → gemm, opcode fusion → custom-call, fusion kind kLoop → none, custom call target none → __cublas$gemm)",
                "dot at step.py:13 (layer/up) kind fusion → gemm, opcode fusion → custom-call, fusion kind kLoop → none, custom call target none → __cublas$gemm",
            ],
            id="a product that became a fusion",
        ),
        pytest.param(
            program(memory={**MEMORY, "gemm{0}": (3, 64), "gemm{1}": (3, 0)}),
            ["offsets: 2 values at a different offset in temp, largest 256 B"],
            ["offsets: 2 values at a different offset in temp, largest 256 B"],
            id="elements at other offsets",
        ),
        pytest.param(
            in_color_1("loop"),
            [
                "+32 B temp (color 1): fusion neg at step.py:15 (layer) (f32[8]); in B it is in temp (color 1)",
                "allocations: 1 value moved from temp to temp (color 1), largest 32 B",
            ],
            [
                "-32 B temp (color 1): fusion neg at step.py:15 (layer) (f32[8]); in B it is in temp",
                "allocations: 1 value moved from temp (color 1) to temp, largest 32 B",
            ],
            id="a value in another memory space",
        ),
        pytest.param(
            UNALIASED,
            [
                "+32 B output out[0] has a separate allocation; in A it reuses x",
                "alias lost: out[0] no longer reuses x",
            ],
            [
                "-32 B output out[0] reuses x; in A it has a separate allocation",
                "alias gained: out[0] reuses x",
            ],
            id="no alias",
        ),
        pytest.param(
            with_plan(UNALIASED, buffer_donors=((0, ()),)),
            [
                "+32 B output out[0] has a separate allocation; in A it reuses x",
                "alias lost: out[0] no longer reuses x; x is donated but not aliased",
            ],
            [
                "-32 B output out[0] reuses x; in A it has a separate allocation",
                "alias gained: out[0] reuses x",
            ],
            id="only a donor",
        ),
        pytest.param(
            with_plan(buffer_donors=((1, ()),)),
            ["donation: w is donated but not aliased"],
            ["donation: w is no longer donated"],
            id="another donor",
        ),
        pytest.param(
            with_plan(header_aliases=(InputOutputAlias(0, (0,), must_alias=True),)),
            ["alias: x is reused by out[0] (must-alias), in A by out[0] (may-alias)"],
            ["alias: x is reused by out[0] (may-alias), in A by out[0] (must-alias)"],
            id="a must-alias",
        ),
        pytest.param(
            with_plan(header_aliases=(InputOutputAlias(0, (1,)),)),
            [
                "-32 B output out[1] reuses x; in A it has a separate allocation",
                "+32 B output outputs without a name in the HLO: 32 B, only in B",
                "alias: x is reused by out[1], in A by out[0]",
                "allocations: 1 value moved from out[1] to outputs without a name in the HLO, largest 32 B",
            ],
            [
                "+32 B output out[1] has a separate allocation; in A it reuses x",
                "-32 B output outputs without a name in the HLO: 32 B, only in A",
                "alias: x is reused by out[0], in A by out[1]",
                "allocations: 1 value moved from outputs without a name in the HLO to out[1], largest 32 B",
            ],
            id="another alias",
        ),
        pytest.param(
            program(memory={**MEMORY, "loop": (3, 1000)}, alive=None),
            [
                "+712 B temp: 320 B → 1,032 B; without live ranges in both dumps, its contents are not compared",
                "offsets: 1 value at a different offset in temp, largest 32 B",
            ],
            [
                "-712 B temp: 1,032 B → 320 B; without live ranges in both dumps, its contents are not compared",
                "offsets: 1 value at a different offset in temp, largest 32 B",
            ],
            id="no live ranges",
        ),
        pytest.param(
            program(memory={**MEMORY, "loop": (3, 96)}),
            ["offsets: 1 value at a different offset in temp, largest 32 B"],
            ["offsets: 1 value at a different offset in temp, largest 32 B"],
            id="another offset",
        ),
        pytest.param(
            program(memory={**MEMORY, "loop": (3, 1000)}),
            [
                "+712 B temp: packing: the arenas lay out their values differently (unused at the peak: 0 B in A, 712 B in B)",
                "offsets: 1 value at a different offset in temp, largest 32 B",
            ],
            [
                "-712 B temp: packing: the arenas lay out their values differently (unused at the peak: 712 B in A, 0 B in B)",
                "offsets: 1 value at a different offset in temp, largest 32 B",
            ],
            id="packing",
        ),
        pytest.param(
            program(memory={**MEMORY, "loop": 5}),
            [
                "+32 B temp: packing: the arenas lay out their values differently (unused at the peak: 0 B in A, 32 B in B)",
                "offsets: 1 value at a different offset in temp, largest 32 B",
            ],
            [
                "-32 B temp: packing: the arenas lay out their values differently (unused at the peak: 32 B in A, 0 B in B)",
                "offsets: 1 value at a different offset in temp, largest 32 B",
            ],
            id="an allocation more",
        ),
        pytest.param(
            program(memory={**MEMORY, "loop": (3, 320)}, alive={**ALIVE, "loop": (2, 5)}),
            [
                "+32 B temp: fusion neg at step.py:15 (layer) (f32[8]); at the compared position alive only in B",
                "offsets: 1 value at a different offset in temp, largest 32 B",
            ],
            [
                "-32 B temp: fusion neg at step.py:15 (layer) (f32[8]); at the compared position alive only in A",
                "offsets: 1 value at a different offset in temp, largest 32 B",
            ],
            id="alive for longer",
        ),
        pytest.param(
            program(
                memory={**MEMORY, "loop": (3, 400), "turned": (3, 432)},
                alive={**ALIVE, "gemm{0}": (2, 4), "gemm{1}": (2, 4), "turned": (4, 7)},
            ),
            [
                "+256 B temp: dot at step.py:13 (layer/up) (f32[8,8]); at the compared position alive only in B",
                "-256 B temp: peak moved: A peaks at dot at step.py:13 (layer/up) (largest value f32[8,8]), B at fusion neg at step.py:15 (layer)",
                "+80 B temp: packing: the arenas lay out their values differently (unused at the peak: 0 B in A, 80 B in B)",
                "+64 B temp: the workspace of dot at step.py:13 (layer/up) (s8[64]); at the compared position alive only in B",
                "-32 B temp: all-reduce at step.py:12 (f32[8]); in B it shares more memory with other values",
                "+32 B temp: reverse at step.py:17 (f32[8]); at the compared position alive only in B",
                "offsets: 2 values at a different offset in temp, largest 32 B",
            ],
            [
                "-256 B temp: dot at step.py:13 (layer/up) (f32[8,8]); at the compared position alive only in A",
                "+256 B temp: peak moved: A peaks at fusion neg at step.py:15 (layer), B at dot at step.py:13 (layer/up) (largest value f32[8,8])",
                "-80 B temp: packing: the arenas lay out their values differently (unused at the peak: 80 B in A, 0 B in B)",
                "-64 B temp: the workspace of dot at step.py:13 (layer/up) (s8[64]); at the compared position alive only in A",
                "+32 B temp: all-reduce at step.py:12 (f32[8]); in B it shares less memory with other values",
                "-32 B temp: reverse at step.py:17 (f32[8]); at the compared position alive only in A",
                "offsets: 2 values at a different offset in temp, largest 32 B",
            ],
            id="a peak elsewhere",
        ),
        pytest.param(
            with_thunks(("kKernel", ""), ("kGemm", "")),
            ["thunks: 0 → 1 kGemm", "thunks: 2 → 1 kKernel"],
            ["thunks: 1 → 0 kGemm", "thunks: 1 → 2 kKernel"],
            id="thunks",
        ),
        pytest.param(
            with_thunks(
                ("kKernel", "k1 grid: 1, threads: 2"), ("kKernel", "k2 grid: 1, threads: 4")
            ),
            ["thunks: 1 kKernel with a different grid, threads or shared memory"],
            ["thunks: 1 kKernel with a different grid, threads or shared memory"],
            id="another launch",
        ),
        pytest.param(
            with_thunks(
                ("kKernel", "k1 grid: 1, threads: 2"), ("kKernel", "k9 grid: 2,  threads: 2")
            ),
            [],
            [],
            id="another name",
        ),
        pytest.param(
            replace(A, arguments=(A.arguments[0], replace(A.arguments[1], donated=True))),
            ["argument w f32[8,8]: donated in B, not in A"],
            ["argument w f32[8,8]: donated in A, not in B"],
            id="donated",
        ),
        pytest.param(
            with_more(AllocationKind.CONSTANT),
            ["+32 B constant : 32 B, only in B"],
            ["-32 B constant : 32 B, only in A"],
            id="a constant",
        ),
        pytest.param(
            with_more(AllocationKind.THREAD_LOCAL),
            ["+32 B thread-local: scalars inside fusions, 32 B, only in B"],
            ["-32 B thread-local: scalars inside fusions, 32 B, only in A"],
            id="thread-local",
        ),
        pytest.param(
            with_more(AllocationKind.PREALLOCATED_TEMP, color=5),
            ["host memory: 0 B → 32 B (+32 B), beside the device's"],
            ["host memory: 32 B → 0 B (-32 B), beside the device's"],
            id="on the host",
        ),
        pytest.param(
            with_more(AllocationKind.PREALLOCATED_TEMP, color=1),
            [
                "+32 B temp (color 1): packing: the arenas lay out their values differently (unused at the peak: 0 B in A, 32 B in B)"
            ],
            [
                "-32 B temp (color 1): packing: the arenas lay out their values differently (unused at the peak: 32 B in A, 0 B in B)"
            ],
            id="another color",
        ),
    ],
)
def test_one_change_is_stated_in_both_directions(
    b: Program, forwards: list[str], backwards: list[str]
) -> None:
    a = A if b.plan.thunks is None else THUNKS
    assert sentences(a, b) == forwards
    assert sentences(b, a) == backwards
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
