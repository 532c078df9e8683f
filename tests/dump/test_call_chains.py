"""Call chains of instructions, from protobuf and from text."""

from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.dump.dump import open_dump, read_file
from xlapipe.dump.readers.hlo_text import parse_hlo
from xlapipe.dump.readers.source_lines import read_source_lines
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.plans.call_chains import CallChains, Frame

DUMP = Path(__file__).parents[2] / "hlo_dumps" / "qwen3-decode" / f"h200-cublas-jax{GOLDEN_JAXLIB}"


@pytest.fixture(scope="module")
def plan():
    return open_dump(DUMP).plan


def test_text_and_protobuf_give_the_same_chains(plan) -> None:
    text = read_file(DUMP, "after_optimizations.txt").decode()
    lines = read_source_lines(DUMP / "source_lines.json")
    from_text = parse_hlo(SourceText("hlo.txt", text), lines).module
    with_chain = [name for name in plan.instructions if plan.module.chains.chain(name)]
    assert len(with_chain) > 20
    for name in with_chain:
        assert from_text.chains.chain(name) == plan.module.chains.chain(name)


def test_the_source_line_of_an_instruction_is_the_innermost_own_frame_of_its_chain(plan) -> None:
    compared = 0
    for name, instruction in plan.instructions.items():
        own = [frame for frame in plan.module.chains.chain(name) if frame.is_own_code]
        if own:
            assert str(own[0]) == str(instruction.source)
            compared += 1
    assert compared > 20


def test_frames_name_their_functions(plan) -> None:
    frames = plan.module.chains.frames
    assert all(frame.function for frame in frames)


def test_a_chain_begins_at_the_innermost_frame_and_a_cycle_of_frames_ends() -> None:
    frames = (Frame("a.py", 1, 2, "f"), Frame("b.py", 2, 0, "g"), Frame("c.py", 3, 3, "h"))
    chains = CallChains(frames, {"add": 1, "loop": 3, "damaged": 9})
    assert [str(frame) for frame in chains.chain("add")] == ["a.py:1", "b.py:2"]
    assert chains.chain("damaged") == chains.chain("unknown") == ()
    assert len(chains.chain("loop")) == 3


def test_an_instruction_without_a_line_has_a_nearest_one_with_a_chain(plan) -> None:
    without = [name for name, item in plan.instructions.items() if item.source is None]
    nearest = [plan.nearest_traced(name) for name in without]
    assert any(nearest)
    for name, traced in zip(without, nearest, strict=True):
        if traced is not None:
            assert plan.nearest_source(name) == plan.instructions[traced].source
