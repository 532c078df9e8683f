"""The sentence of one change, as every output prints it."""

# Sentences stay whole.
# ruff: noqa: E501

from dataclasses import replace

import pytest

from xlapipe.differences import Difference
from xlapipe.differences.changes import (
    Action,
    AliasChange,
    Aspect,
    BytesChange,
    Change,
    ComparedValue,
    InstructionCategory,
    InstructionChange,
    LeafChange,
    MemoryRole,
    OperationName,
    PlacementChange,
    SlackReason,
)
from xlapipe.differences.sentences import account_sentences, change_sentences, leaf_sentences
from xlapipe.plans import SourceLine, Totals
from xlapipe.report.difference import difference_lines

DOT = OperationName("dot", "mlp/up", SourceLine("step.py", 13))
ADD = OperationName("add", "", None)
VALUE = ComparedValue("add.1", "f32[8]{0}", 32, 32, "temp", alive=True)
WORKSPACE = replace(VALUE, name="gemm.1{1}", shape="s8[64]{0}")
TABLE = replace(VALUE, name="tuple.1{}", shape="(f32[8]{0}, f32[8]{0})")
SPLIT = InstructionChange(
    what=InstructionCategory.GEMM,
    action=Action.CHANGED,
    subject=DOT,
    shape="f32[4,8,8]{2,1,0}",
    a="gemm.1",
    b="gemm.2",
    a_bytes=256,
    b_bytes=1024,
    aspects=(Aspect("split-K", "1", "4"), Aspect("shape", "f32[8,8]{1,0}", "f32[4,8,8]{2,1,0}")),
)


def value(a: ComparedValue | None, b: ComparedValue | None, **fields: object) -> BytesChange:
    """A line about a value of 32 B in A, or of 64 B in B."""
    line = BytesChange(
        place=MemoryRole.TEMP, a_bytes=32, b_bytes=64, a_held=a, b_held=b, subject=DOT
    )
    return replace(line, **fields)  # type: ignore[arg-type]


def slack(
    reason: SlackReason, a_bytes: int = 32, b_bytes: int = 64, **fields: object
) -> BytesChange:
    line = BytesChange(place=MemoryRole.TEMP, a_bytes=a_bytes, b_bytes=b_bytes, room=reason)
    return replace(line, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (value(VALUE, None), "only in A: dot at step.py:13 (mlp/up) (f32[8])"),
        (value(None, VALUE), "only in B: dot at step.py:13 (mlp/up) (f32[8])"),
        (value(VALUE, None, subject=None), "only in A: a value (f32[8])"),
        (value(None, VALUE, subject=ADD), "only in B: add (f32[8])"),
        (value(TABLE, None), "only in A: the pointer table of dot at step.py:13 (mlp/up)"),
        (value(None, TABLE), "only in B: the pointer table of dot at step.py:13 (mlp/up)"),
        (
            value(TABLE, replace(TABLE, shape="(f32[8]{0})", size_bytes=8)),
            "the pointer table of dot at step.py:13 (mlp/up) changed size ((f32[8], f32[8]) → (f32[8]))",
        ),
        (
            value(WORKSPACE, None),
            "only in A: the workspace of dot at step.py:13 (mlp/up) (s8[64])",
        ),
        # The second result of another type, or the first of bytes, is not a workspace.
        (
            value(replace(WORKSPACE, shape="f32[8]{0}"), None),
            "only in A: dot at step.py:13 (mlp/up) (f32[8])",
        ),
        (
            value(replace(WORKSPACE, name="gemm.1{0}"), None),
            "only in A: dot at step.py:13 (mlp/up) (s8[64])",
        ),
        # Why a product's value is new.
        (
            value(None, VALUE, change=SPLIT),
            "only in B: dot at step.py:13 (mlp/up) (f32[8]; became split-K 4, f32[8,8] → f32[4,8,8])",
        ),
        (
            value(None, VALUE, change=replace(SPLIT, what=InstructionCategory.FUSION)),
            "only in B: dot at step.py:13 (mlp/up) (f32[8])",
        ),
        (
            value(None, VALUE, change=replace(SPLIT, action=Action.ADDED, aspects=())),
            "only in B: dot at step.py:13 (mlp/up) (f32[8])",
        ),
        (
            value(VALUE, replace(VALUE, shape="f32[16]{0}", size_bytes=64)),
            "dot at step.py:13 (mlp/up) changed size (f32[8] → f32[16])",
        ),
        (
            value(VALUE, replace(VALUE, shape="f32[16]{0}", size_bytes=64), change=SPLIT),
            "dot at step.py:13 (mlp/up) became split-K 4, f32[8,8] → f32[4,8,8] (f32[8] → f32[16])",
        ),
        (
            value(VALUE, replace(VALUE, size_bytes=64, place="out[0]")),
            "dot at step.py:13 (mlp/up) changed size (f32[8] → f32[8]); in B it is in the allocation of out[0]",
        ),
        (
            value(replace(VALUE, place="x"), VALUE),
            "dot at step.py:13 (mlp/up) (f32[8]); in A it is in the allocation of x",
        ),
        (
            value(replace(VALUE, place="temp (color 1)"), replace(VALUE, place="x")),
            "dot at step.py:13 (mlp/up) (f32[8]); in B it is in the allocation of x",
        ),
        (
            value(VALUE, replace(VALUE, place="temp (color 1)")),
            "dot at step.py:13 (mlp/up) (f32[8]); in B it is in temp (color 1)",
        ),
        (
            value(VALUE, replace(VALUE, held_bytes=0)),
            "dot at step.py:13 (mlp/up) (f32[8]); in B it shares more memory with other values",
        ),
        (
            value(VALUE, replace(VALUE, held_bytes=64)),
            "dot at step.py:13 (mlp/up) (f32[8]); in B it shares less memory with other values",
        ),
        (
            value(replace(VALUE, alive=False), VALUE),
            "dot at step.py:13 (mlp/up) (f32[8]); at the compared position alive only in B",
        ),
        (
            slack(SlackReason.ELSEWHERE, 64, 0, moment=DOT, fullest=ADD, fullest_value="f32[8]{0}"),
            "peak moved: A peaks at add (largest value f32[8]), B at dot at step.py:13 (mlp/up)",
        ),
        (
            slack(SlackReason.ELSEWHERE, 0, 64, moment=DOT),
            "peak moved: A peaks at dot at step.py:13 (mlp/up), B at the start of the schedule",
        ),
        (
            slack(SlackReason.UNKNOWN, 0, 64),
            "64 B, only in B; without live ranges in both dumps, its contents are not compared",
        ),
    ],
)  # fmt: skip
def test_a_line_of_temporary_memory(line: BytesChange, text: str) -> None:
    (sentence,) = account_sentences([line])
    assert sentence.text == f"temp: {text}"
    (sentence,) = account_sentences([replace(line, color=1)])
    assert sentence.text == f"temp (color 1): {text}"


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("f32[8]{0} s8[4]{0:S(5)}", "f32[8] s8[4]"),
        ("x" * 72, "x" * 72),
        ("x" * 73, "x" * 71 + "…"),
    ],
)
def test_long_shapes_are_cut(label: str, text: str) -> None:
    line = BytesChange(place=MemoryRole.CONSTANT, a_bytes=0, b_bytes=8, label=label)
    (sentence,) = account_sentences([line])
    assert sentence.text == f"constant {text}: 8 B, only in B"


def changed(*aspects: Aspect, **fields: object) -> InstructionChange:
    return replace(SPLIT, aspects=aspects, **fields)  # type: ignore[arg-type]


WITH_WORKSPACE, LESS = "(f32[8,8]{1,0}, s8[64]{0})", "(f32[8,8]{1,0}, s8[32]{0})"
FUSION = InstructionCategory.FUSION


@pytest.mark.parametrize(
    ("change", "text"),
    [
        # A product's workspace is no part of its result.
        (changed(Aspect("shape", WITH_WORKSPACE, LESS)), "changed"),
        (changed(Aspect("shape", "f32[8,8]{1,0}", "f32[8,8]{0,1}")), "changed"),
        (changed(Aspect("shape", WITH_WORKSPACE, "f32[4,8]{1,0}")), "f32[8,8] → f32[4,8]"),
        (
            changed(Aspect("layout", WITH_WORKSPACE, "(f32[8,8]{0,1}, s8[64]{0})")),
            "layout f32[8,8]{1,0} → f32[8,8]{0,1}",
        ),
        (
            changed(Aspect("shape", WITH_WORKSPACE, LESS), what=FUSION),
            "shape (f32[8,8], s8[64]) → (f32[8,8], s8[32])",
        ),
        (
            changed(Aspect("layout", "f32[8,8]{1,0}", "f32[8,8]{0,1}"), what=FUSION),
            "layout f32[8,8]{1,0} → f32[8,8]{0,1}",
        ),
        (changed(Aspect("body", "", ""), what=FUSION), "does the same operations in a different form"),
        (changed(Aspect("operands", "a", "b"), what=FUSION), "reads different values"),
        (changed(what=FUSION), "changed"),
    ],
)  # fmt: skip
def test_a_changed_instruction(change: InstructionChange, text: str) -> None:
    (sentence,) = change_sentences([change])
    assert sentence.text == f"dot at step.py:13 (mlp/up) {text}"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            replace(SPLIT, action=Action.REMOVED, shape=WITH_WORKSPACE, b=None, b_bytes=None, aspects=()),
            "removed: dot at step.py:13 (mlp/up) writes f32[8,8], 256 B",
        ),
        (
            replace(SPLIT, action=Action.ADDED, what=InstructionCategory.COPY, a=None, b_bytes=None, a_bytes=None),
            "added: copy: dot at step.py:13 (mlp/up) writes f32[4,8,8], 0 B",
        ),
        (AliasChange("x", "out[0]", None), "alias lost: out[0] no longer reuses x"),
        (AliasChange("x", None, "out[0]"), "alias gained: out[0] reuses x"),
        (AliasChange("x", None, None, b_donor=True), "donation: x is donated but not aliased"),
        (AliasChange("x", None, None, a_donor=True), "donation: x is no longer donated"),
    ],
)  # fmt: skip
def test_other_changes(change: Change, text: str) -> None:
    (sentence,) = change_sentences([change])
    assert sentence.text == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (LeafChange("argument", "x f32[8]", None), "argument x f32[8]: only in A"),
        (LeafChange("output", None, "out f32[8]"), "output out f32[8]: only in B"),
        (LeafChange("output", "out f32[8]", "y f32[4]"), "output out f32[8] → y f32[4]"),
    ],
)
def test_an_argument_or_output_that_differs(change: LeafChange, text: str) -> None:
    (sentence,) = leaf_sentences([change])
    assert sentence.text == text


def test_instructions_that_only_read_other_values_do_not_bury_the_causes() -> None:
    readers = tuple(
        changed(Aspect("operands", "a", f"b{'x' * number}"), subject=replace(DOT, scope=scope))
        for number, scope in enumerate("abcdefghijklmnopqrstuvwxyz")
    )
    causes = tuple(
        changed(Aspect("num_warps", "2", str(number)), subject=replace(DOT, scope=f"s{scope}"))
        for number, scope in enumerate("abcdefghijklmnopqr", start=10)
    )
    totals = Totals(100, 0, 0, 100, 0, 0, 0)
    difference = Difference(
        a_name="a",
        b_name="b",
        a_totals=totals,
        b_totals=replace(totals, total_allocation_bytes=140, temp_bytes=140),
        context={},
        programs=(),
        account=(),
        changes=(*readers, *causes),
    )
    lines = [line.plain for line in difference_lines(difference)]
    assert lines[2].startswith("total 100 B → 140 B: +40 B")
    assert not any("reads different values" in line for line in lines)
    assert lines[-1] == ("  … and 3 more, 26 of instructions that only read other values (--all)")
    everything = [line.plain for line in difference_lines(difference, everything=True)]
    assert sum("reads different values" in line for line in everything) == 26
    assert sum("num_warps" in line for line in everything) == 18


def test_layers_that_differ_alike_are_one_sentence_and_growth_is_not_mixed_with_shrinkage() -> None:
    grown = [
        BytesChange(place=MemoryRole.ARGUMENT, a_bytes=8, b_bytes=16, label=f"layers[{number}].w")
        for number in (3, 12)
    ]
    shrunk = BytesChange(place=MemoryRole.ARGUMENT, a_bytes=16, b_bytes=8, label="layers[4].w")
    sentences = account_sentences([*grown, shrunk])
    assert [(sentence.text, sentence.delta_bytes, sentence.count) for sentence in sentences] == [
        ("2 × argument layers[*].w: 8 B → 16 B", 16, 2),
        ("argument layers[4].w: 16 B → 8 B", -8, 1),
    ]


@pytest.mark.parametrize(("leaves", "sentences"), [(4, 4), (5, 1)])
def test_many_leaves_of_an_argument_are_one_sentence_by_donation_and_aliases(
    leaves: int, sentences: int
) -> None:
    names = ["scale", "bias", "kernel", "embedding", "head"][:leaves]
    donated = leaf_sentences(
        LeafChange("argument", f"model['{name}'] f32[8], donated", f"model['{name}'] f32[8]", True)
        for name in names
    )
    outputs = account_sentences(
        BytesChange(
            place=MemoryRole.OUTPUT,
            a_bytes=0,
            b_bytes=32,
            label=f"out[0]['{name}']",
            a_alias=f"model['{name}']",
        )
        for name in names
    )
    aliases = change_sentences(
        AliasChange(f"model['{name}']", f"out[0]['{name}']", None) for name in names
    )
    moved = change_sentences(
        PlacementChange("temp", f"out[0]['{name}']", 2, 8 * size) for size, name in enumerate(names)
    )
    for group in (donated, outputs, aliases, moved):
        assert len(group) == sentences
        assert sum(sentence.count for sentence in group) == leaves
    assert sum(sentence.delta_bytes or 0 for sentence in outputs) == 32 * leaves
    if sentences == 1:
        assert donated[0].text == "5 × argument model[…]: donated in A, not in B"
        assert outputs[0].text == (
            "5 × output out[0][…] has a separate allocation; in A it reuses model[…]"
        )
        assert moved[0].text == "allocations: 10 values moved from temp to out[0][…], largest 32 B"
        assert aliases[0].text == "5 × alias lost: out[0][…] no longer reuses model[…]"
