"""TPU targets, grids of chips, and the options that a TPU refuses."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from xlapipe.cli import main
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.tuning import Tuned
from xlapipe.devices.platforms import TPU
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.devices.targets.chip_grid import ChipGrid
from xlapipe.devices.targets.topology import parse_topology, topology_of_devices
from xlapipe.devices.targets.tpu_catalogue import tpu_catalogue
from xlapipe.errors import XlapipeError
from xlapipe.registry import WorkloadReference

REFERENCE = WorkloadReference("step", "step:workload")
GIB = 2**30
ROOT = Path(__file__).resolve().parents[2]


def grid(text: str, target: str = "v6e") -> ChipGrid:
    config = target_named(target).config_text
    topology = parse_topology(text, platform="tpu", config_text=config)
    assert isinstance(topology, ChipGrid)
    return topology


def default_grid(count: int, target: str) -> str:
    config = target_named(target).config_text
    return str(topology_of_devices(count, platform="tpu", config_text=config))


def test_tpus_of_the_catalogue() -> None:
    assert list(tpu_catalogue()) == ["v4", "v5e", "v5p", "v6e", "tpu7x"]
    assert {target_named(name).platform for name in tpu_catalogue()} == {"tpu"}


def test_the_compiler_sees_less_than_the_whole_memory() -> None:
    v6e = tpu_catalogue()["v6e"]
    assert 32 * GIB - v6e.usable_bytes("0.0.42.1") == 772 * 2**20
    assert 32 * GIB - v6e.usable_bytes("0.0.48.1") == 776 * 2**20
    assert v6e.usable_bytes("9.9") == v6e.usable_bytes(None) == v6e.usable_bytes("0.0.48.1")
    assert 16 * GIB - tpu_catalogue()["v5e"].usable_bytes(None) == 258 * 2**20


def test_figures_of_a_device() -> None:
    figures = TPU.device_figures(target_named("v5p").config_text)
    assert (figures.device_kind, figures.core_count, figures.platform) == ("TPU v5", 2, "tpu")
    assert figures.compute_capability is None


@pytest.mark.parametrize(
    ("target", "text", "devices", "hosts"),
    [("v6e", "1x1", 1, 1), ("v6e", "2x4", 8, 2), ("v5p", "2x2x4", 16, 4), ("tpu7x", "2x2x1", 8, 1)],
)
def test_a_grid_is_read_and_written(target: str, text: str, devices: int, hosts: int) -> None:
    topology = grid(text, target)
    assert (str(topology), topology.device_count, topology.hosts) == (text, devices, hosts)
    assert topology.hosts * topology.gpus == devices


@pytest.mark.parametrize(
    ("target", "count", "text"),
    [
        ("v6e", 1, "1x1"),
        ("v6e", 4, "2x2"),
        ("v5e", 8, "2x4"),
        ("v5e", 256, "16x16"),
        ("v5p", 4, "2x2x1"),
        ("v5p", 16, "2x2x4"),
        ("v4", 32, "2x4x4"),
        ("v5p", 64, "4x4x4"),
        ("tpu7x", 1, "1x1x1"),
        ("tpu7x", 2, "1x1x1"),
        ("tpu7x", 8, "2x2x1"),
    ],
)
def test_the_default_grid_is_near_a_square_or_a_cube(target: str, count: int, text: str) -> None:
    assert default_grid(count, target) == text


@pytest.mark.parametrize(("target", "count"), [("v6e", 2), ("v6e", 6), ("tpu7x", 3), ("v5p", 12)])
def test_other_numbers_of_chips_need_a_topology(target: str, count: int) -> None:
    with pytest.raises(XlapipeError, match=r"no default grid; fix: pass --topology"):
        default_grid(count, target)


@pytest.mark.parametrize("text", ["1x2", "2x3", "6x5", "1x4"])
def test_chips_that_do_not_fill_hosts_are_refused(text: str) -> None:
    with pytest.raises(XlapipeError, match=f"topology {text}: the chips do not fill hosts of 2x2"):
        grid(text)


@pytest.mark.parametrize(
    "text", ["", "4", "v6e-4", "2x2x2", "0x2", "2X2", "4x4_twisted", "4x4-0slices", "2slices"]
)
def test_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(XlapipeError, match="expected a grid of chips with 2 dimensions"):
        grid(text)


def test_a_million_chips_are_refused() -> None:
    with pytest.raises(XlapipeError, match="at most 65,536 devices, found 1,048,576"):
        grid("1024x1024")


def test_libtpu_is_asked_for_hosts_that_fit_the_grid() -> None:
    config = target_named("v4").config_text
    assert TPU.topology_arguments(config, None) == {
        "topology_name": "v4:1x1x1",
        "chips_per_host_bounds": [1, 1, 1],
        "chip_config_name": "megacore",
    }
    assert TPU.topology_arguments(target_named("v5e").config_text, "4x4") == {
        "topology_name": "v5e:4x4",
        "chips_per_host_bounds": [2, 2, 1],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": ("cublas",)}, "--gemm cublas is for NVIDIA GPUs, and target v6e is a TPU"),
        ({"policies": ("auto", "triton")}, "fix: leave --gemm out"),
        ({"topology": "1x2"}, "do not fill hosts"),
        ({"tuning": Tuned.TUNE}, "fix: leave --tuning out"),
    ],
)
def test_options_of_gpus_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(XlapipeError, match=message):
        jobs_of([REFERENCE], CompileSettings(target="v6e", **options))  # type: ignore[arg-type]


def test_an_autotune_lock_is_refused() -> None:
    (lock,) = (ROOT / "hlo_dumps/qwen3-decode").glob("h100_sxm-auto-tuned-*/autotune_lock.json")
    with pytest.raises(XlapipeError, match="TPU, whose plans need no autotune results; fix: leave"):
        jobs_of([REFERENCE], CompileSettings(target="v6e", tuning=lock))


@pytest.mark.parametrize(("name", "hint"), [("v6", "v6e"), ("v5", "v5e"), ("v7x", "tpu7x")])
def test_an_unknown_tpu_gets_a_hint(name: str, hint: str) -> None:
    with pytest.raises(XlapipeError, match=f"unknown target '{name}'.*fix: use .*{hint}"):
        target_named(name)


@pytest.mark.parametrize(
    ("target", "text", "devices", "hosts"),
    [
        ("v6e", "2x4-2slices", 16, 4),
        ("v5e", "1x1-3slices", 3, 3),
        ("tpu7x", "2x2x1-2slices", 16, 2),
    ],
)
def test_several_slices(target: str, text: str, devices: int, hosts: int) -> None:
    topology = grid(text, target)
    assert (str(topology), topology.device_count, topology.hosts) == (text, devices, hosts)
    assert not topology.is_single_chip


def test_one_slice_is_written_without_its_number() -> None:
    assert str(grid("4x4-1slices")) == "4x4"


def test_libtpu_gets_the_number_of_slices() -> None:
    arguments = TPU.topology_arguments(target_named("v5p").config_text, "2x2x4-8slices")
    assert arguments == {
        "topology_name": "v5p:2x2x4",
        "chips_per_host_bounds": [2, 2, 1],
        "num_slices": 8,
    }


LOCK = next((ROOT / "hlo_dumps/qwen3-decode").glob("h100_sxm-auto-tuned-*/autotune_lock.json"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--target", "v6e", "--topology", "1x2"], "the chips do not fill hosts of 2x2 chips"),
        (["--target", "v5e", "--topology", "2x2x2"], "expected a grid of chips with 2 dimensions"),
        (["--target", "v5p", "--topology", "4x4"], "expected a grid of chips with 3 dimensions"),
        (["--target", "v6e", "--topology", "8x8-0slices"], "fix: write e.g. 4x4 for 16 chips"),
        (["--target", "v5"], "unknown target 'v5'"),
        (["--target", "v6e", "--tuning", str(LOCK)], "fix: leave --tuning out"),
        (["--target", "v6e", "--tuning", "tune"], "fix: leave --tuning out"),
        (["--target", "v6e", "--gemm", "cublas"], "fix: leave --gemm out"),
    ],
)
def test_bad_options_are_one_error_and_exit_code_2(
    options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", "tests.tpu.steps:donated", *options]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("error:") == 1
    assert captured.out == ""


@pytest.mark.skipif(find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_libtpu_the_error_names_what_to_install(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["dump", "tests.tpu.steps:donated", "--target", "v6e"]) == 2
    error = capsys.readouterr().err
    assert "libtpu: not installed, expected" in error
    assert "fix:" in error
    assert "pip install 'libtpu'" in error
