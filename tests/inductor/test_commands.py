"""`show`, `report` and `check` on dumps of Inductor, as people run them."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import xlapipe
from tests.inductor import written
from tests.inductor.test_wrapper import folder_of
from tests.shared.dumps import DATA
from xlapipe.cli import main
from xlapipe.errors import XlapipeError
from xlapipe.inductor.reader import read_inductor


@pytest.fixture
def ir(tmp_path: Path) -> Path:
    path = tmp_path / "dump.txt.gz"
    path.write_bytes(gzip.compress(written.IR_FUSED.encode()))
    return path


def test_show_prints_totals_findings_and_how_exact(
    ir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(ir), "--all"]) == 0
    printed = capsys.readouterr().out
    assert "derived from IR, not exact" in printed
    assert re.search(r"own_peak_bytes +576\n", printed)
    assert "duplicate stores: 1, 128 B" in printed
    assert "reads of memory that nothing wrote: 1, 64 B" in printed
    assert "calls that hide bytes: 1" in printed


DUMPS = (*sorted(Path(__file__).parent.glob("data/torch-*")),)


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.name)
def test_each_graph_is_one_screen(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for plan in read_inductor(dump).plans:
        assert main(["show", str(dump), "--module", plan.graph]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert f"{plan.graph}, {plan.kind} graph: exact, from wrapper code" in lines
        assert f"held at the peak: {plan.totals.own_peak_bytes:,} B" in "\n".join(lines)
        assert len(lines) < 40
        assert lines[-1].startswith("Next: xlapipe show ")


def test_tables_on_a_terminal_do_not_break_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (dump,) = [path for path in DUMPS if path.name.endswith("loop")]
    (plan,) = read_inductor(dump).plans
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["show", str(dump), "--all"]) == 0
    printed = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    names = {value.name for held in plan.held_at_peak for value in held.values[:3]}
    assert all(name in printed for name in names)
    assert max(map(len, printed.splitlines())) <= 60


def test_several_graphs_are_listed_the_largest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path)
    assert main(["show", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    peaks = [plan.totals.own_peak_bytes for plan in read_inductor(folder).plans]
    listed = [line.split()[0] for line in lines if ": exact" in line]
    assert listed == [f"{peak:,}" for peak in sorted(peaks)[::-1]]
    name = lines[-1].split()[-1]
    assert main(["show", str(folder), "--module", name]) == 0
    assert f"{name}, " in capsys.readouterr().out


def test_names_and_unknown_graphs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path)
    assert main(["show", str(folder), "--module", "nosuch"]) == 2
    assert "fix: name one of" in " ".join(capsys.readouterr().err.split())
    assert main(["show", str(folder), "buf3"]) == 2
    assert "fix: --all prints every value" in " ".join(capsys.readouterr().err.split())


def test_show_json(ir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--json", str(ir)]) == 0
    figures = json.loads(capsys.readouterr().out)
    totals = figures["totals"]
    assert totals["own_peak_bytes"] == 576
    assert totals["output_bytes"] == 320
    assert totals["argument_bytes"] is None
    assert totals["unknown_allocations"] == 1
    assert figures["own_peak"]["lower_bound"]
    assert figures["exact"] is False
    assert [finding["kind"] for finding in figures["findings"]] == [
        "duplicate_store",
        "uninitialised_read",
        "never_read",
    ]
    assert figures["graphs"][0]["totals"] == totals


def test_show_json_of_several_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--json", str(folder_of(tmp_path))]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [graph["kind"] for graph in figures["graphs"]] == ["forward", "backward"]
    # 512 B of the forward graph, then the gradient of 512 B while the saved relu is still there.
    assert figures["totals"]["own_peak_bytes"] == 1024
    assert figures["totals"]["end_bytes"] == 512 + 256
    assert figures["totals"]["output_bytes"] == 256 + 512
    (gemm,) = figures["graphs"][0]["gemms"]
    assert gemm["backend"] == "cublas"
    assert gemm["source"] == "net.py:7"


def test_report_as_a_page(tmp_path: Path, ir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    assert main(["report", "--out", str(page), str(ir)]) == 0
    html = page.read_text()
    assert "held at the peak: 576 B" in html
    assert "duplicate stores: 1, 128 B" in html
    assert "<script" not in html
    assert "Content-Security-Policy" in html


def test_report_of_three_dumps_of_two_compilers_is_refused(
    ir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(ir), str(ir), str(DATA / "jaxlib-0.9.2" / "step")]) == 2
    assert "expected dumps of one compiler" in capsys.readouterr().err


def test_diff_names_the_commands_that_read_inductor(
    ir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(ir), str(ir)]) == 2
    assert "found one of torch Inductor" in capsys.readouterr().err


def test_reading_imports_neither_jax_nor_torch(ir: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from xlapipe.cli import main; "
        f"main(['show', {str(ir)!r}]); main(['check', {str(ir)!r}]); "
        f"main(['report', '--out', {str(tmp_path / 'r.html')!r}, {str(ir)!r}]); "
        "assert not {'jax', 'jaxlib', 'torch', 'numpy'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_read_gives_the_figures_of_show(ir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = xlapipe.read(ir)
    assert isinstance(plan, xlapipe.GraphsPlan)
    assert main(["show", "--json", str(ir)]) == 0
    assert plan.figures == json.loads(capsys.readouterr().out)
    peak = plan.figures["totals"]["own_peak_bytes"]
    assert repr(plan) == f"<plan of 1 graph of torch Inductor: own peak {peak:,} B>"
    assert plan.table("graphs")[0]["graph"] == plan.graphs[0].graph
    assert plan.check()
    assert plan._repr_html_().startswith("<iframe")
    with pytest.raises(XlapipeError, match="no table 'peak'; fix: choose one of"):
        plan.table("peak")
