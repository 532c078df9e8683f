"""Targets: the catalogue, each target of which compiles, files, and errors."""

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.devices.platforms.textproto import TextProtoError, parse
from xlapipe.devices.targets import catalogue as catalogue_module
from xlapipe.devices.targets.catalogue import catalogue, resolved_name, target_named
from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.target_config import target_attached, target_from_file
from xlapipe.errors import TargetError

pytestmark = pytest.mark.jax

DEVICE_CONFIG = Path(catalogue_module.__file__).parent / "h200_device.txtpb"
SUPPORTED = [row.name for row in catalogue() if row.unsupported is None]
UNSUPPORTED = [row.name for row in catalogue() if row.unsupported is not None]


def test_gpus_of_the_catalogue() -> None:
    assert [
        "a100_pcie_80",
        "a100_sxm_40",
        "a100_sxm_80",
        "a6000",
        "h100_pcie",
        "h100_sxm",
        "h200",
        "b200",
        "b300",
        "gb200",
        "gb300",
        "rtx6000pro",
        *("h100_sxm_mig", "b200_mig"),
        *("a10", "gh200", "l4", "l40s", "rtx4090", "rtx5090", "t4"),
        *("mi250", "mi300a", "mi300x", "mi325x", "mi350x", "mi355x"),
    ] == SUPPORTED
    assert UNSUPPORTED == ["v100", "p100"]


@pytest.mark.parametrize("name", ["h200", "mi300x", "t4"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clock_rate_ghz", "-1.98"),
        ("clock_rate_ghz", "0"),
        ("memory_bandwidth", "-5"),
        ("memory_bandwidth", "1e300"),
        ("l2_cache_size", "-1"),
        ("shared_memory_per_core", "-1"),
        ("core_count", "99999999"),
    ],
)
def test_numbers_that_no_gpu_has(tmp_path: Path, name: str, field: str, value: str) -> None:
    """Figures were "inf µs" and negative seconds."""
    text, path = target_named(name).config_text, tmp_path / "mine.txtpb"
    path.write_text(text)
    assert target_from_file(path).compute_capability
    assert re.search(rf"\b{field}:", text)
    path.write_text(re.sub(rf"\b{field}: \S+", f"{field}: {value}", text))
    with pytest.raises(TargetError, match=rf"expected \S+ to \S+ for `{field}`, found|positive"):
        target_from_file(path)


# A data-center GPU of each generation is compiled by `make test`, the others by `make test-slow`.
COMPILED_FIRST = {"a100_sxm_80", "b200", "h200", "t4"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in COMPILED_FIRST else pytest.mark.slow)
        for name in SUPPORTED
        if target_named(name).platform == "cuda"  # the others: tests/amd
    ],
)
def test_small_step_compiles(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(STEPS)
    code = main(["dump", "small_step:small_step", "--target", name, "--out", str(tmp_path)])
    assert (code, capfd.readouterr().err) == (0, "")
    (plan,) = tmp_path.glob(f"small-step/{name}-*/plan.txt")
    assert plan.stat().st_size > 0


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_gpu_is_rejected_with_the_reason(name: str) -> None:
    with pytest.raises(TargetError, match=rf"{name}.*ptxas of CUDA 13 no longer.*sm_\d0.*h200"):
        target_named(name)


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_config_has_the_figures_of_the_row(name: str) -> None:
    target, row = target_named(name), {row.name: row for row in catalogue()}[name]
    config = parse(target.config_text)
    device = config["gpu_device_info"]
    assert isinstance(device, dict)
    assert row.device_info.items() <= device.items()
    assert config["runtime_version"] == {"major": 7 if target.platform == "rocm" else 13}
    assert config["device_description_str"] == target.description
    assert target.source == "catalogue"


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("gb20", "gb200"),
        ("", "use one of a100_pcie_80"),
        ("tpu v5", r"v5e \(Google TPU v5e\) or v5p"),
        ("quadro", "use one of a100_pcie_80"),
        ("l40", "nearest known, l40s "),
        ("h20", "h200"),
        ("mi300", r"mi300a .* or mi300x "),
        ("AMD Instinct MI325", "mi325x"),
    ],
)
def test_an_unknown_name_is_rejected_with_similar_names(name: str, offered: str) -> None:
    with pytest.raises(TargetError, match=f"unknown target '{name}'.*{offered}") as raised:
        target_named(name)
    assert "xlapipe device capture --out FILE" in str(raised.value)
    assert "TPU" not in str(raised.value) or "v5" in name


@pytest.mark.parametrize(
    ("name", "meant", "others"),
    [
        ("H200", "h200", ()),
        ("NVIDIA H200", "h200", ()),
        ("h100", "h100_sxm", ("h100_pcie",)),
        ("H100-80GB", "h100_sxm", ("h100_pcie",)),
        ("h100sxm5", "h100_sxm", ()),
        ("h100 pcie", "h100_pcie", ()),
        ("a100", "a100_sxm_80", ("a100_pcie_80", "a100_sxm_40")),
        ("A100-SXM4-40GB", "a100_sxm_40", ()),
        ("a100-pcie", "a100_pcie_80", ()),
        ("RTX A6000", "a6000", ()),
        ("rtx pro 6000", "rtx6000pro", ()),
        ("4090", "rtx4090", ()),
        ("GeForce RTX 5090", "rtx5090", ()),
        ("L40S-48GB", "l40s", ()),
        ("A10-24g", "a10", ()),
        ("Tesla T4", "t4", ()),
        ("H100 MIG 1g.10gb", "h100_sxm_mig", ()),
        ("b200 mig", "b200_mig", ()),
        ("TPU v5e", "v5e", ()),
        ("v5litepod", "v5e", ()),
        ("trillium", "v6e", ()),
    ],
)
def test_names_as_people_write_them(name: str, meant: str, others: tuple[str, ...]) -> None:
    target = resolved_name(name)
    assert (target.name, target.others) == (meant, others)
    assert target_named(name).name == meant


def test_a_command_states_which_target_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    dump = next((STEPS.parents[1] / "hlo_dumps/fsdp-mlp").glob("h200-*"))
    assert main(["show", str(dump), "--time", "--target", "H100"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "xlapipe: target H100 is h100_sxm; others: h100_pcie\n"


def test_file_of_a_device() -> None:
    target = target_from_file(DEVICE_CONFIG)
    assert target == Target(
        name="h200_device",
        description="NVIDIA H200",
        config_text=DEVICE_CONFIG.read_text(encoding="utf-8"),
        compute_capability="9.0",
        device_memory_bytes=150_109_880_320,
        source="file",
    )


def test_attached_device_is_named_after_itself() -> None:
    target = target_attached(DEVICE_CONFIG.read_text(encoding="utf-8"))
    assert (target.name, target.source) == ("h200_attached", "attached")


def test_every_config_of_the_catalogue_can_be_read_from_a_file(tmp_path: Path) -> None:
    for name in SUPPORTED:
        file = tmp_path / f"{name}_copy.txtpb"
        file.write_text(target_named(name).config_text, encoding="utf-8")
        target = target_from_file(file)
        assert target.config_text == target_named(name).config_text
        assert target.compute_capability == target_named(name).compute_capability


def test_grid_limits_are_needed(tmp_path: Path) -> None:
    """Without them XLA divides by zero."""
    text = target_named("h200").config_text
    file = tmp_path / "mine.txtpb"
    file.write_text("".join(it for it in text.splitlines(True) if "block_dim_limit_y" not in it))
    with pytest.raises(TargetError, match="`block_dim_limit_y`, found nothing; fix: set this"):
        target_from_file(file)


AMD_CONFIG = target_named("mi300x").config_text.encode()


def test_the_configuration_of_an_amd_gpu(tmp_path: Path) -> None:
    file = tmp_path / "mine.txtpb"
    file.write_bytes(AMD_CONFIG)
    target = target_from_file(file)
    assert (target.platform, target.compute_capability) == ("rocm", "gfx942")
    assert target.device_memory_bytes == 206_158_430_208
    assert target_attached(AMD_CONFIG.decode()).name == "mi300x_attached"


def _edited(old: str, new: str) -> bytes:
    text = target_named("h200").config_text
    assert old in text
    return text.replace(old, new).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no `gpu_device_info"),
        (b"\xff\xfe\x00", "line 1: unexpected character"),
        (b"hello", "line 1: expected `:`"),
        (b'platform_name: "CUDA"\n', "no `gpu_device_info"),
        (b"gpu_device_info {\n core_count: 1\n", "line 3: the text ends before `}`"),
        (b"gpu_device_info: 3", "no `gpu_device_info"),
        (b"gpu_device_info { core_count: 1 }", "no `cuda_compute_capability"),
        (b"a {" * 100, "nested more than"),
        (_edited("major: 9", "major: 7"), "expected sm_75 or newer, found sm_70"),
        (_edited("major: 9", "major: -9"), "positive whole number for `major`"),
        (_edited("core_count: 132", "core_count: many"), "number for `core_count`, found 'many'"),
        (_edited("core_count: 132", ""), "number for `core_count`, found nothing"),
        (_edited("threads_per_warp: 32", "threads_per_warp: 0"), "number for `threads_per_warp`"),
        (_edited("device_memory_size", "device_memory_sizes"), "for `device_memory_size`"),
        (_edited('"CUDA"', '"ROCM"'), "found no `rocm_compute_capability {"),
        (_edited('"CUDA"', '"SYCL"'), "for platform 'CUDA' or 'ROCM', found 'SYCL'"),
        (
            _edited("cuda_compute_capability", "rocm_compute_capability"),
            "\"ROCM\" beside rocm_compute_capability, found 'CUDA'",
        ),
        (AMD_CONFIG.replace(b"gfx942", b"sm_90"), 'expected `gcn_arch_name: "gfx…"`, found'),
    ],
)
def test_a_bad_file_is_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "mine.txtpb"
    file.write_bytes(content)
    with pytest.raises(TargetError, match=f"(?s)mine.txtpb: .*{message}"):
        target_from_file(file)


def test_an_unreadable_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="expected a file or directory, found none"):
        target_from_file(tmp_path / "absent.txtpb")
    with pytest.raises(TargetError, match="expected a file, found a directory"):
        target_from_file(tmp_path)
    with pytest.raises(TargetError, match="expected a readable file"):
        target_from_file("a\0b")


def test_an_endless_file_is_rejected(tmp_path: Path) -> None:
    link = tmp_path / "mine.txtpb"
    link.symlink_to("/dev/zero")
    with pytest.raises(TargetError, match="expected a file, found a special file"):
        target_from_file(link)


def test_a_file_name_must_be_a_valid_and_new_folder_name(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="rename the file"):
        target_from_file(shutil.copy(DEVICE_CONFIG, tmp_path / "my gpu.txtpb"))
    with pytest.raises(TargetError, match=r"found 'h200'.*h200_device\.txtpb"):
        target_from_file(shutil.copy(DEVICE_CONFIG, tmp_path / "h200.txtpb"))


def test_textproto_values() -> None:
    text = """
    # a comment
    a: 1, b: -2.5; c: "x y" 'zA'
    d { e: TRUE_ISH f: true } g: [1, 2,
    3] h: []
    """
    assert parse(text) == {
        "a": 1,
        "b": -2.5,
        "c": "x yzA",
        "d": {"e": "TRUE_ISH", "f": True},
        "g": 3,
        "h": "",
    }


@settings(deadline=None)  # must not fail on a busy machine
@given(st.text(alphabet="ab1 .-:{}<>[],;\"'\\\n#x7", max_size=60))
def test_any_textproto_parses_or_is_an_error_with_a_line(text: str) -> None:
    try:
        parse(text)
    except TextProtoError as error:
        assert str(error).startswith("line ")
