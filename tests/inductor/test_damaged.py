"""Damaged dumps: each is a DumpError that names the line, or a plan that passes its check."""

import random
import re
from pathlib import Path

import pytest

from tests.dump import mutate
from tests.inductor import test_control_flow, written
from xlapipe.errors import DumpError
from xlapipe.inductor.reader import read_inductor
from xlapipe.inductor.verify import verify

TEXTS = {
    "ir_post_fusion.txt": (written.IR_2_6, written.IR_FUSED),
    "output_code.py": (
        written.FORWARD,
        written.BACKWARD,
        written.POOL_AND_PARTITION,
        written.DYNAMIC,
        test_control_flow.WHILE,
    ),
    "run.log": (
        written.as_log(written.FORWARD, written.BACKWARD),
        written.as_torch_log(written.DYNAMIC),
        written.IR_FUSED,
    ),
}


def survives(path: Path, text: str) -> bool:
    """Whether a plan was read; fails for any exception but a DumpError with a line."""
    path.write_bytes(text.encode(errors="replace"))
    try:
        dump = read_inductor(path)
    except DumpError as error:
        message = str(error)
        assert re.match(rf"{re.escape(str(path))}:\d+: expected ", message), message
        assert "found" in message
        return False
    for plan in dump.plans:
        verify(plan)
    return True


def damage(tmp_path: Path, seeds: range) -> tuple[int, int]:
    """Plans and errors of as many damaged texts as there are seeds."""
    plans = 0
    for seed in seeds:
        chance = random.Random(seed)
        name = chance.choice(sorted(TEXTS))
        text = mutate.text(chance.choice(TEXTS[name]), chance)
        folder = tmp_path / name.partition(".")[0]  # a graph of its own, without siblings
        folder.mkdir(exist_ok=True)
        plans += survives(folder / name, text)
    return plans, len(seeds) - plans


def test_a_sample(tmp_path: Path) -> None:
    plans, errors = damage(tmp_path, range(600))
    assert plans > 50
    assert errors > 50


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand(tmp_path: Path, part: int) -> None:
    plans, errors = damage(tmp_path, range(1000 * (part + 1), 1000 * (part + 2)))
    assert plans > 100
    assert errors > 100


def test_the_reference_dumps(tmp_path: Path, seeds: Path) -> None:
    for name in ("002_0926b2a0123efc8b.txt", "004_11560de70615f418.txt"):
        text = (seeds / name).read_text()
        for seed in range(60):
            survives(tmp_path / "dump.txt", mutate.text(text, random.Random(seed)))


@pytest.mark.parametrize(
    "expression",
    ["(" * 300 + "1" + ")" * 300, "-" * 5000 + "1", "9" * 5000, "2**2**2**2**2**2**2", "[" * 5000],
)
def test_hostile_expressions(tmp_path: Path, expression: str) -> None:
    code = written.FORWARD.replace(
        "empty_strided_cuda((4, 16)", f"empty_strided_cuda(({expression}, 16)"
    )
    survives(tmp_path / "code.txt", code)
    ir = written.IR_2_6.replace("index0 = 8*p0 + p1", f"index0 = {expression}")
    survives(tmp_path / "ir.txt", ir)
    sized = written.IR_2_6.replace("size=[4, 8]", f"size=[{expression.replace('[', '(')}, 8]")
    survives(tmp_path / "ir.txt", sized)
