"""Plans that are compiled here are those that an H200 and an H100 recorded."""

import gzip
import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.gpu.fidelity.record import Outcome, compare

JAXLIB = "0.11.2"
pytestmark = pytest.mark.skipif(
    version("jaxlib") != JAXLIB, reason=f"the records are of jaxlib {JAXLIB}"
)

HERE = Path(__file__).parent
RECORDS = {path.stem: path for path in (HERE / "h100.json", HERE / "h200.json")}
# CUB's scratch, values computed again at the memory limit, names of a loop.
FEW = {
    "h200": ("sort(dtype='float32', shape=(64, 32000))", "scan_gradient"),
    "h100": (
        *("sort(dtype='int32', shape=(1048576,))", "memory_limit(gib=60)", "sort_on_cub"),
        "special_functions",
    ),
}
MANY = (
    *("argsort(dtype='bfloat16', shape=(100000,))", "memory_limit(gib=104)"),
    *("attention_train", "mlp_train(layers=4)", "lstm", "top_p", "unique_large"),
    *("conv_train(dtype='float32')", "conv_train(dtype='bfloat16')", "fft", "qr", "cholesky"),
    *("offloaded_activations", "debug_print_in_scan", "median_of_rows", "small_kernels"),
    *("ragged_dot_gradient", "gemm(dtype='bfloat16', m=16, n=4096, k=1024)", "hessian"),
    *("sort_pairs(key='uint16', value='bfloat16', n=200000)", "quantile_large", "vmap"),
)
CUDNN = "cudnn_attention_train(n=2, t=512, h=8, d=64)"
# XLA orders the outputs of fusions, or a schedule, by the numbers of instructions, which are others
# without a device unless the module is given a client's.
NUMBERED = {"attention_train(remat=True)", "binary_operations", "special_functions"}


def outcomes(device: str, names: tuple[str, ...], scratch: Path) -> list[Outcome]:
    """In the order of `names`; the compiles end in another."""
    by_name = {it.name: it for it in compare(RECORDS[device], names, scratch=scratch)}
    return [by_name[name] for name in names]


def test_h200(tmp_path: Path) -> None:
    names = FEW["h200"]
    assert outcomes("h200", names, tmp_path) == [Outcome(name, "equal") for name in names]


@pytest.mark.slow
def test_h100(tmp_path: Path) -> None:
    names = FEW["h100"]
    assert outcomes("h100", names, tmp_path) == [Outcome(name, "equal") for name in names]


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_programs_of_every_kind(tmp_path: Path) -> None:
    found = outcomes("h200", MANY, tmp_path)
    assert [it for it in found if it.state != "equal"] == []


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", RECORDS)
def test_programs_that_depend_on_the_numbers_of_instructions(tmp_path: Path, device: str) -> None:
    names = tuple(sorted(NUMBERED))
    assert outcomes(device, names, tmp_path) == [Outcome(name, "equal") for name in names]


@pytest.mark.slow
def test_what_differs_is_labelled(tmp_path: Path) -> None:
    (attention,) = outcomes("h200", (CUDNN,), tmp_path / "recorded")
    assert attention.state == "equal", "with the workspaces and the results of the record"

    path = tmp_path / RECORDS["h200"].name
    record = json.loads(RECORDS["h200"].read_text(encoding="utf-8"))
    del record["programs"][CUDNN]["workspaces"]
    path.write_text(json.dumps(record), encoding="utf-8")
    for results in HERE.glob("h200_results_*"):
        text = gzip.decompress(results.read_bytes())
        (tmp_path / results.name).write_bytes(gzip.compress(text.partition(b"entries")[0]))
    (attention,) = compare(path, [CUDNN], scratch=tmp_path / "without")
    assert attention.state == "labelled"
    assert attention.why.startswith("no workspace: ")
    assert attention.why.endswith("; partly tuned")


@pytest.mark.parametrize("device", RECORDS)
def test_record_states_its_origin(device: str) -> None:
    record = json.loads(RECORDS[device].read_text(encoding="utf-8"))
    assert record["driver"]
    assert record["versions"]["jaxlib"] == JAXLIB
    assert len(record["programs"]) >= 240
    assert {*FEW[device], *NUMBERED} <= set(record["programs"])
    assert device.upper() in record["device"]
