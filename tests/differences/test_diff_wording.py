"""The sentence of one change, as every output prints it."""

# Sentences stay whole.

from dataclasses import replace

import pytest

from xlapipe.differences import Difference
from xlapipe.differences.changes import (
    Action,
    AliasChange,
    Aspect,
    BytesChange,
    ComparedValue,
    InstructionCategory,
    InstructionChange,
    LeafChange,
    MemoryRole,
    OperationName,
    PlacementChange,
)
from xlapipe.differences.sentences import account_sentences, change_sentences, leaf_sentences
from xlapipe.plans import SourceLine, Totals
from xlapipe.report.difference import difference_lines

DOT = OperationName("dot", "mlp/up", SourceLine("step.py", 13))
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


def changed(*aspects: Aspect, **fields: object) -> InstructionChange:
    return replace(SPLIT, aspects=aspects, **fields)  # type: ignore[arg-type]


WITH_WORKSPACE, LESS = "(f32[8,8]{1,0}, s8[64]{0})", "(f32[8,8]{1,0}, s8[32]{0})"
FUSION = InstructionCategory.FUSION


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
