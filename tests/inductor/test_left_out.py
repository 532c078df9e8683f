"""What is not understood costs that part, not the file: it is listed with its line."""

import gzip
import re
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tests.inductor import written
from xlapipe.errors import DumpError
from xlapipe.inductor.inductor_plan import InductorPlan
from xlapipe.inductor.reader import read_inductor

LAYOUT = "buf1.layout = FixedLayout('cuda:0', torch.float32, size=[4, 16], stride=[16, 1])"


def plan_of(path: Path, text: str) -> InductorPlan:
    path.write_text(text)
    (plan,) = read_inductor(path).plans
    return plan


@pytest.mark.parametrize(
    "layout",
    [
        "FutureLayout('cuda:0', torch.float32, size=[4, 16], blocks=[2])",
        "FixedLayout('cuda:0', torch.float32, size=[4, 16], stride=[1])",
        "FixedLayout('cuda:0', torch.float32, size=[4, -16], stride=[16, 1])",
        "Paged(…)",
    ],
)
def test_a_layout_that_is_not_understood(tmp_path: Path, layout: str) -> None:
    assert LAYOUT in written.IR_2_6
    whole = plan_of(tmp_path / "whole.txt", written.IR_2_6)
    text = written.IR_2_6.replace(LAYOUT, f"buf1.layout = {layout}")
    plan = plan_of(tmp_path / "ir.txt", text)
    line = 1 + text[: text.index(layout)].count("\n")
    assert plan.notes[0].startswith(f"left out: {tmp_path / 'ir.txt'}:{line}: expected ")
    # No figure pretends to know its bytes.
    assert plan.totals.unknown_allocations > whole.totals.unknown_allocations == 0
    assert len(plan.kernels) == len(whole.kernels)


def test_a_mutation_has_the_memory_of_its_target(tmp_path: Path) -> None:
    """torch 2.11 prints one stride for a mutation of two dimensions (ResNet-50's backward)."""
    mutation = "MutationLayoutSHOULDREMOVE('cuda:0', torch.float32, size=[16, 2048], stride=[1])"
    text = written.IR_2_6.replace(LAYOUT, f"buf1.layout = {mutation}")
    plan = plan_of(tmp_path / "ir.txt", text)
    assert not any(note.startswith("left out") for note in plan.notes)


def test_a_line_of_a_node_that_is_not_understood(tmp_path: Path) -> None:
    text = written.IR_2_6.replace("op0.writes", "a line of a later torch\nop0.writes", 1)
    plan = plan_of(tmp_path / "ir.txt", text)
    assert plan.notes[0].endswith("expected a line of node op0, found 'a line of a later torch'")
    assert plan.totals == plan_of(tmp_path / "whole.txt", written.IR_2_6).totals


def test_a_damaged_graph_does_not_hide_the_others(tmp_path: Path, inductor: Path) -> None:
    folder = tmp_path / "mlp"
    shutil.copytree(inductor / "mlp", folder)
    for path in folder.glob("backward0/*"):
        path.unlink()
    (folder / "backward0/output_code.py").write_text("def call(args):\n    x = (\n")
    whole = read_inductor(inductor / "mlp")
    (plan,) = read_inductor(folder).plans
    assert plan.notes[0].startswith("a graph was left out: ")
    assert "backward0/output_code.py:" in plan.notes[0]
    # What is saved for it is what only the backward graph shows.
    assert plan.totals == replace(whole.plans[0].totals, saved_bytes=None)
    shutil.rmtree(folder / "forward0")
    with pytest.raises(DumpError, match=r"backward0/output_code\.py"):
        read_inductor(folder)


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("match arg0_1:\n    case held:\n        pass", "Match"),
        ("class Later:\n    pass", "ClassDef"),
        ("async def later():\n    pass", "AsyncFunctionDef"),
        ("later.kept = arg0_1", "Attribute"),
    ],
)
def test_a_statement_that_is_not_understood(
    tmp_path: Path, inductor: Path, statement: str, kind: str
) -> None:
    code = gzip.decompress((inductor / "spectral/inference0/output_code.py.gz").read_bytes())
    text = code.decode()
    whole = plan_of(tmp_path / "output_code.py", text)
    match = re.search(r"( +)args\.clear\(\)\n", text)
    assert match is not None
    lines = textwrap.indent(statement, match[1])
    text = f"{text[: match.end()]}{lines}\n{text[match.end() :]}"
    plan = plan_of(tmp_path / "output_code.py", text)
    line = 1 + text[: match.end()].count("\n")
    (note,) = (note for note in plan.notes if note.startswith("left out"))
    assert f"output_code.py:{line}: expected a " in note
    assert note.endswith(f", found {kind}")
    # No figure pretends to know what it holds.
    assert plan.totals.unknown_allocations == whole.totals.unknown_allocations + 1
    assert len(plan.kernels) == len(whole.kernels)
