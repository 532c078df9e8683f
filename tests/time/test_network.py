"""Networks: names, descriptions, and collectives laid over them, compared with sums by hand."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.gpu.records import read_record
from tests.shared.dumps import ROOT
from tests.shared.small_hlo import plan_of_text
from xlapipe.cli import main
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.tuning import Tuned
from xlapipe.devices.targets.device import device_of_target
from xlapipe.devices.targets.network import (
    Network,
    network_named,
    network_stated,
    networks,
    usual_network,
)
from xlapipe.dump.autotune_lock import LOCK
from xlapipe.errors import NetworkError
from xlapipe.expect import StepTimeAtMost
from xlapipe.inductor.open_path import open_path
from xlapipe.plans.collectives import Collective
from xlapipe.project_file import stated_by_command
from xlapipe.time.collectives.collective_times import measured_curves, seconds_among
from xlapipe.time.collectives.exchange import exchange_of
from xlapipe.time.collectives.layout import layout_of, least_seconds, leaving_bytes, size_of
from xlapipe.time.cost.step_cost import step_cost
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.predict.predict import predict

MB = 1_000_000
H100 = device_of_target("h100_sxm")


def collective(kind: str, groups: str, operand: int, result: int) -> Collective:
    """A collective of bytes."""
    where = "source_target_pairs" if kind == "collective-permute" else "replica_groups"
    more = {"all-gather": ", dimensions={0}", "all-to-all": ", dimensions={0}"}.get(kind, "")
    if kind in ("all-reduce", "reduce-scatter"):
        more = ", to_apply=add" + ", dimensions={0}" * (kind == "reduce-scatter")
    text = (
        "HloModule step, is_scheduled=true\n"
        "add {\n  a = u8[] parameter(0)\n  b = u8[] parameter(1)\n"
        "  ROOT c = u8[] add(a, b)\n}\n"
        f"ENTRY main {{\n  x = u8[{operand}]{{0}} parameter(0)\n"
        f"  ROOT y = u8[{result}]{{0}} {kind}(x), {where}={groups}{more}\n}}\n"
    )
    (found,) = plan_of_text(text).collectives or ()
    return found


# Groups of a job on 8 hosts with 8 GPUs: all, and one GPU of each host, eight of them at once.
_ALL, _RAILS = "[1,64]<=[64]", "[8,8]<=[8,8]T(1,0)"


@pytest.mark.parametrize(
    ("kind", "topology", "groups", "operand", "result", "network", "seconds"),
    [
        # 2 × 7/8 × 400 MB over one NIC of 50 GB/s.
        ("all-reduce", "8x1", "[1,8]<=[8]", 400 * MB, 400 * MB, "hgx-400g", 0.014),
        # The same in eight groups at once, each with its own NIC.
        ("all-reduce", "8x8", _RAILS, 400 * MB, 400 * MB, "hgx-400g", 0.014),
        # Two GPUs share a NIC of 25 GB/s: 2 × 7/8 × 400 MB at 12.5 GB/s.
        ("all-reduce", "8x8", _RAILS, 400 * MB, 400 * MB, "a3", 0.056),
        # Alone, the group has the NIC of 25 GB/s for itself.
        ("all-reduce", "8x1", "[1,8]<=[8]", 400 * MB, 400 * MB, "a3", 0.028),
        # 2 × 63/64 × 640 MB over the 8 NICs of a host.
        ("all-reduce", "8x8", _ALL, 640 * MB, 640 * MB, "hgx-400g", 0.00315),
        # 15/16 × 320 MB over 8 NICs of 25 GB/s.
        ("all-gather", "2x8", "[1,16]<=[16]", 20 * MB, 320 * MB, "dgx-a100", 0.0015),
        ("reduce-scatter", "2x8", "[1,16]<=[16]", 320 * MB, 20 * MB, "dgx-a100", 0.0015),
        # Each of 8 GPUs sends 8/16 of 160 MB to the other host, over 8 NICs of 25 GB/s.
        ("all-to-all", "2x8", "[1,16]<=[16]", 160 * MB, 160 * MB, "dgx-a100", 0.0032),
        # One pair between hosts, one NIC of 50 GB/s; the pair within a host is not slower.
        ("collective-permute", "2x8", "{{0,8},{1,2}}", 100 * MB, 100 * MB, "hgx-400g", 0.002),
        # Four NICs of 12.5 GB/s for 8 GPUs that all send 100 MB.
        (
            *("collective-permute", "2x8"),
            "{{0,8},{1,9},{2,10},{3,11},{4,12},{5,13},{6,14},{7,15}}",
            *(100 * MB, 100 * MB, "efa-p4d", 0.016),
        ),
    ],
)
def test_a_collective_between_hosts_costs_what_its_nics_cost(
    kind: str,
    topology: str,
    groups: str,
    operand: int,
    result: int,
    network: str,
    seconds: float,
) -> None:
    found, over = collective(kind, groups, operand, result), network_named(network)
    layout, size = layout_of(found, topology, over), size_of(found)
    assert layout is not None and layout.nic_rate is not None and size is not None
    assert leaving_bytes(kind, size, layout) / layout.nic_rate == pytest.approx(seconds)
    assert H100 is not None
    exchange = exchange_of(found, topology, H100, over)
    assert exchange is not None
    assert seconds <= exchange.seconds < 1.2 * seconds + 100e-6
    assert 0 < least_seconds(found, topology, over) <= seconds * 1.0001
    assert exchange.basis == "datasheet"


def test_all_reduces_over_eight_hosts_take_at_least_their_bytes_over_the_slowest_link() -> None:
    assert H100 is not None
    for network in networks().values():
        if network.gpus_per_domain > 8:
            continue
        found = collective("all-reduce", "[1,8]<=[8]", 64 * MB, 64 * MB)
        exchange = exchange_of(found, "8x1", H100, network)
        slowest = max(1.0, network.nics_per_gpu) * network.nic_bytes_per_second
        assert exchange is not None
        assert exchange.seconds >= 2 * 7 / 8 * 64 * MB / slowest


def test_a_ring_waits_at_every_gpu_and_an_all_reduce_may_use_a_tree() -> None:
    """As NCCL reckons: LL128 over 224 steps of NVLink and 31 of the network, or a tree's 14, 10."""
    assert H100 is not None
    over = network_named("hgx-400g")
    gathered = exchange_of(collective("all-gather", "[1,256]<=[256]", 4, 1024), "32x8", H100, over)
    summed = exchange_of(collective("all-reduce", "[1,256]<=[256]", 1024, 1024), "32x8", H100, over)
    assert gathered is not None and summed is not None
    assert gathered.seconds == pytest.approx(224 * 1.9e-6 + 31 * 4e-6, rel=0.05)
    assert summed.seconds == pytest.approx(14 * 1.2e-6 + 10 * 8.5e-6, rel=0.2)
    assert "224 steps within domains, 31 between them" in gathered.parts[1][1]


def test_a_rack_of_72_is_one_domain() -> None:
    found = collective("all-reduce", "[1,72]<=[72]", MB, MB)
    for topology, domains in (("18x4", 1), ("9x8", 1), ("1x72", 1)):
        layout = layout_of(found, topology, network_named("gb200-nvl72"))
        assert layout is not None and layout.domains == domains
    apart = layout_of(found, "9x8", network_named("hgx-400g"))
    assert apart is not None and (apart.domains, apart.inside) == (9, 8)
    four = collective("all-reduce", "[1,8]<=[8]", MB, MB)
    half = layout_of(four, "2x4", network_named("hgx-400g"))
    assert half is not None and half.domains == 2


def test_measured_sizes_are_reproduced_and_numbers_between_lie_between() -> None:
    curves = measured_curves()["h200"]["all-reduce"]
    assert seconds_among(curves, 8, 134217728) == pytest.approx(curves[8].at(134217728))
    two, three, four = (seconds_among(curves, count, 1 << 27) for count in (2, 3, 4))
    assert two < three < four
    assert curves[8].at(1 << 31) == pytest.approx(4 * curves[8].at(1 << 29))


def test_every_row_names_a_gpu_and_a_known_link() -> None:
    for name in measured_curves():
        device = device_of_target(name)
        assert device is not None and device.link_bandwidth
        assert usual_network(name) is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hgx400", "expected one of hgx-400g, "),
        ("{gpus_per_domain = 0, nic_bytes_per_second = 5e9}", "gpus_per_domain: expected"),
        ("{gpus_per_domain = 8}", "nic_bytes_per_second: expected a value, found none"),
        ("{gpus_per_domain = 8, nic_bytes = 5e9}", "found 'nic_bytes'"),
        ("{gpus_per_domain = 8, nic_bytes_per_second = nan}", "nic_bytes_per_second"),
        ("{gpus_per_domain", "expected a table of TOML"),
        ("", "unknown network ''"),
    ],
)
def test_an_unknown_or_damaged_network_is_refused(text: str, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        network_named(text)


def test_a_project_states_its_network(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.xlapipe]\nnetwork = "dgx-a100"\n')
    assert network_stated(tmp_path) == networks()["dgx-a100"]
    lock = ROOT / f"hlo_dumps/qwen3-decode/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}" / LOCK
    for tuning in (Tuned.NONE, lock):
        (job,) = jobs_of(["qwen3-decode"], CompileSettings(tuning=tuning, project=tmp_path))
        assert job.network == networks()["dgx-a100"]
    with stated_by_command("network", "efa"):
        assert network_stated(tmp_path) == networks()["efa"]
    file.write_text(
        "[tool.xlapipe]\nnetwork = {gpus_per_domain = 4, nic_bytes_per_second = 25e9}\n"
    )
    assert network_stated(tmp_path) == Network(4, 25e9)
    few = "{gpus_per_domain = 4, nic_bytes_per_second = 25e9, nics_per_gpu = 1e-300}"
    for value, message in (
        ('"x"', "unknown network 'x'"),
        ("3", "expected"),
        ("{}", "found none"),
        (few, "nics_per_gpu: expected a number >= 0.001"),
    ):
        file.write_text(f"[tool.xlapipe]\nnetwork = {value}\n")
        with pytest.raises(
            NetworkError, match=f"pyproject.toml: tool.xlapipe.network: .*{message}"
        ):
            network_stated(tmp_path)


def test_every_curve_of_the_table_has_a_time_of_each_size() -> None:
    kinds = (own for of_gpu in measured_curves().values() for own in of_gpu.values())
    for curve in (curve for own in kinds for curve in own.values()):
        assert len(curve.sizes) == len(curve.seconds) and min(curve.seconds) > 0
        assert list(curve.sizes) == sorted(set(curve.sizes))


def test_a_network_with_other_links_replaces_those_of_the_gpu() -> None:
    assert H100 is not None
    found = collective("all-reduce", "[1,8]<=[8]", 64 * MB, 64 * MB)
    own = exchange_of(found, "1x8", H100, network_named("hgx-400g"))
    pcie = exchange_of(found, "1x8", H100, network_named("pcie5"))
    half = replace(network_named("hgx-400g"), link_bytes_per_second=225e9)
    slower = exchange_of(found, "1x8", H100, half)
    assert own is not None and pcie is not None and slower is not None
    assert (own.basis, pcie.basis, slower.basis) == ("table", "datasheet", "datasheet")
    assert own.seconds < slower.seconds < pcie.seconds


FSDP = ROOT / f"hlo_dumps/fsdp-mlp/h100_sxm-1x4-auto-tuned-jax{GOLDEN_JAXLIB}"


def test_a_finding_about_time_states_the_network() -> None:
    program = open_path(FSDP)
    finding = StepTimeAtMost(seconds=1.0).check(program)
    assert finding.holds
    assert finding.measured.endswith("network hgx-400g (assumed)")
    with stated_by_command("network", "efa"):
        assert StepTimeAtMost(seconds=1.0).check(program).measured.endswith("network efa")


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", FSDP, "--time"),
        ("diff", FSDP, FSDP.with_name(FSDP.name.replace("1x4", "1x2"))),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_screen_with_a_time_takes_and_states_a_network(
    arguments: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*map(str, arguments), "--network", "{gpus_per_domain = 2, nic_bytes_per_second = 1e9}"])
    assert re.search(r"network.* as stated", capsys.readouterr().out)
    main([*map(str, arguments), "--network", "pcie"])
    assert re.search(r"network.* pcie", capsys.readouterr().out)
    main(list(map(str, arguments)))  # what one command stated, the next one does not have
    assert re.search(r"network.* hgx-400g.*assumed", capsys.readouterr().out)


@pytest.mark.parametrize("command", ["check", "choose", "diff", "report", "show"])
def test_an_unknown_network_is_refused_by_every_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(FSDP), "--network", "efs"]) == 2
    assert "expected one of hgx-400g, " in capsys.readouterr().err


def test_collectives_that_ran_alone_on_two_h100s_took_what_the_table_says() -> None:
    record = ROOT / "tests/gpu/time_zoo/records/two_h100.tar.xz"
    _, profiles = read_record(record, "tensor_parallel_forward")
    (profile,) = profiles
    cost, calibration = step_cost(profile.plan, H100), shipped_calibration("h100_sxm")
    assert cost is not None and calibration is not None
    measured = {kernel.name: kernel.seconds for kernel in profile.times.measured}
    prediction = predict(profile.plan, cost, calibration)
    names = {item.instruction for item in profile.plan.collectives or ()}
    exchanged = [item for item in prediction.kernels if item.name in names]
    assert len(exchanged) == 3
    for kernel in exchanged:
        assert kernel.launch.basis == "table"
        assert kernel.seconds == pytest.approx(measured[kernel.name], rel=0.05)


@pytest.mark.parametrize("name", ["data_parallel_step", "sharded_parameters_step"])
def test_kernels_beside_a_collective_take_longer_than_alone_and_less_than_one_by_one(
    name: str,
) -> None:
    record = ROOT / "tests/gpu/time_zoo/records/two_h100.tar.xz"
    _, (profile,) = read_record(record, name)
    cost, calibration = step_cost(profile.plan, H100), shipped_calibration("h100_sxm")
    assert cost is not None and calibration is not None
    prediction = predict(profile.plan, cost, calibration)
    assert prediction.span_seconds == pytest.approx(profile.times.span_seconds, rel=0.05)
    assert prediction.span_seconds < 0.9 * prediction.kernel_seconds
