"""`choose` over meshes that an argument of the workload names: examples/meshes."""

import pytest

from tests.shared.dumps import ROOT
from xlapipe.cli import main
from xlapipe.compile.make_jobs import CompileSettings
from xlapipe.compile.tuning import Tuned
from xlapipe.project_file import stated_by_command
from xlapipe.search.choosing.choose import choose
from xlapipe.search.choosing.rows import front
from xlapipe.search.rows import Row, SearchSettings

pytestmark = pytest.mark.jax

WIDTH, BATCH, LENGTH, VOCABULARY, EXPERTS = 256, 8, 128, 32_768, 8
SIZES = f"layers=1, width={WIDTH}, batch={BATCH}, length={LENGTH}"


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples/meshes")


def rows_of(workload: str, topology: str = "1x2", **vary: tuple[str, ...]) -> list[Row]:
    settings = CompileSettings(topology=topology, tuning=Tuned.NONE)
    choice = choose(workload, vary, search=SearchSettings(compile=settings, at_once=1))
    assert not choice.failed
    return list(choice.rows)


def state_bytes(whole: int, split: int, parts: int) -> int:
    """Weights and two moments in float32 on one device."""
    return 3 * 4 * (whole + split // parts)


@pytest.mark.slow
def test_meshes_of_a_gpt_are_one_front_whose_bytes_are_those_by_hand() -> None:
    rows = rows_of(f"workloads:gpt({SIZES})", mesh=("data", "fsdp", "tensor"))
    split = VOCABULARY * WIDTH + 12 * WIDTH**2
    tokens = BATCH * (LENGTH + 1) * 4
    expected = {
        "data": state_bytes(2 * WIDTH, split, 1) + tokens // 2,
        "fsdp": state_bytes(2 * WIDTH, split, 2) + tokens // 2,
        "tensor": state_bytes(2 * WIDTH, split, 2) + tokens,
    }
    by_mesh = {row.candidate.values["mesh"]: row for row in rows}
    assert by_mesh.keys() == expected.keys()
    for mesh, row in by_mesh.items():
        assert row.memory.argument_bytes == expected[mesh]
        assert row.devices == 2
        predicted = row.memory.predicted
        assert predicted is not None and predicted.step_seconds is not None
        assert predicted.network_name == "hgx-400g (assumed)"
    times = [row.seconds_per_item or 0.0 for row in front(rows)]
    sizes = [row.memory.total_bytes for row in front(rows)]
    assert times == sorted(times)
    assert sizes == sorted(sizes, reverse=True)
    # The form with all weights on each GPU needs the most, and one that splits them the least.
    assert by_mesh["data"].memory.total_bytes == max(row.memory.total_bytes for row in rows)
    assert front(rows)[-1].candidate.values["mesh"] != "data"


@pytest.mark.slow
def test_blocks_that_are_computed_again_take_less_memory_and_more_time() -> None:
    rows = rows_of(f"workloads:gpt({SIZES}, mesh='fsdp')", remat=("none", "products", "block"))
    by_form = {row.candidate.values["remat"]: row for row in rows}
    sizes = [by_form[name].memory.temp_bytes for name in ("none", "products", "block")]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3
    assert (by_form["none"].seconds_per_item or 0.0) < (by_form["block"].seconds_per_item or 0.0)


@pytest.mark.slow
def test_a_slower_network_changes_only_the_times_of_forms_that_use_it() -> None:
    workload = f"workloads:gpt({SIZES}, mesh='data')"
    (usual,) = rows_of(workload, "2x2")
    with stated_by_command("network", "{gpus_per_domain = 2, nic_bytes_per_second = 1e9}"):
        (slow,) = rows_of(workload, "2x2")
    gradients = 4 * (VOCABULARY * WIDTH + 12 * WIDTH**2 + 2 * WIDTH)
    assert usual.devices == slow.devices == 4
    assert usual.memory.total_bytes == slow.memory.total_bytes
    # A ring between two domains sends at least what one of them has over its two NICs.
    assert (slow.seconds_per_item or 0.0) > gradients / 2e9 > (usual.seconds_per_item or 0.0)


@pytest.mark.slow
def test_experts_are_split_over_the_mesh() -> None:
    rows = rows_of(f"workloads:moe({SIZES})", "1x4", mesh=("data", "tensor", "2x2"))
    whole = 2 * WIDTH + WIDTH * EXPERTS
    split = VOCABULARY * WIDTH + 4 * WIDTH**2 + EXPERTS * 4 * WIDTH**2
    tokens = BATCH * (LENGTH + 1) * 4
    expected = {
        "data": state_bytes(whole, split, 1) + tokens // 4,
        "tensor": state_bytes(whole, split, 4) + tokens,
        "2x2": state_bytes(whole, split, 4) + tokens // 2,
    }
    found = {row.candidate.values["mesh"]: row.memory.argument_bytes for row in rows}
    assert found == expected


def test_a_mesh_of_another_number_of_devices_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["choose", "workloads:gpt", "--vary", "mesh='3x3'", "--topology", "1x4"]) == 2
    assert "expected data, fsdp, tensor, or DxM with 4 devices" in capsys.readouterr().err
