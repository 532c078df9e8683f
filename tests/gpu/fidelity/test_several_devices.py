"""Plans over several devices that are compiled here are those that two and four H200s recorded."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.gpu.fidelity.record import Outcome, compare
from xlapipe.cli import main
from xlapipe.dump.dump import open_dump

pytestmark = pytest.mark.skipif(
    version("jaxlib") != "0.11.2", reason="two and four H200s recorded plans of jaxlib 0.11.2"
)
HERE = Path(__file__).parent
RECORD, RECORD_OF_FOUR = HERE / "h200_x2.json", HERE / "h200_x4.json"
SMALL_SUM = "collective(kind='psum', dtype='float32', rows=8)"
# XLA's kernel, combined sums, gathers in a loop, gemms that were tuned.
FEW = (
    *(SMALL_SUM, "several_sums(count=4, rows=64)", "sharded_weights(layers=4, width=1024)"),
    "data_parallel(layers=3, width=1024)",
)
# A sum over pairs of devices, and the gradient of a scan.
FEW_OF_FOUR = ("of_pairs(dtype='float32', rows=8)", "square_scan(layers=8, width=512)")


def not_equal(record: Path, names: tuple[str, ...], scratch: Path) -> list[Outcome]:
    return [it for it in compare(record, names, scratch=scratch) if it.state != "equal"]


@pytest.mark.slow
@pytest.mark.parametrize(("record", "names"), [(RECORD, FEW), (RECORD_OF_FOUR, FEW_OF_FOUR)])
def test_programs_of_each_kind(tmp_path: Path, record: Path, names: tuple[str, ...]) -> None:
    assert not_equal(record, names, tmp_path) == []


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("record", [RECORD, RECORD_OF_FOUR])
def test_every_program(tmp_path: Path, record: Path) -> None:
    assert not_equal(record, (), tmp_path) == []


@pytest.mark.slow
def test_a_small_sum_is_xlas_kernel_for_a_gpu_of_the_catalogue_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA takes its own kernel where the target's configuration has links between GPUs."""
    monkeypatch.chdir(HERE)
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))["programs"][SMALL_SUM]
    temp_bytes = {}
    for target in ("h200", "h100_pcie"):
        out = tmp_path / target
        assert (
            main(["dump", f"two_devices:{SMALL_SUM}", "--target", target, "--out", str(out)]) == 0
        )
        (folder,) = out.glob("*/*")
        temp_bytes[target] = open_dump(folder).plan.totals.temp_bytes
    assert temp_bytes == {"h200": recorded["temp_bytes"], "h100_pcie": 0}


@pytest.mark.parametrize(
    ("path", "listed", "few"),
    [(RECORD, "two_devices.txt", FEW), (RECORD_OF_FOUR, "four_devices.txt", FEW_OF_FOUR)],
)
def test_record_states_its_origin(path: Path, listed: str, few: tuple[str, ...]) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["device"] == "NVIDIA H200"
    assert "active_links: 18" in record["target_config"]
    names = (HERE / listed).read_text(encoding="utf-8").splitlines()
    assert set(record["programs"]) == set(names)
    assert set(few) <= set(names)
