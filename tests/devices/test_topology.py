"""Parsing of topologies, and of the array sizes in shapes."""

import pytest

from xlapipe.devices.targets.topology import Topology
from xlapipe.errors import XlapipeError
from xlapipe.plans.shapes import shape_of


@pytest.mark.parametrize(
    ("text", "hosts", "gpus"), [("1x2", 1, 2), ("8x8", 8, 8), ("64x8", 64, 8), ("2x1", 2, 1)]
)
def test_a_topology_is_read_and_written(text: str, hosts: int, gpus: int) -> None:
    topology = Topology.parse(text)
    assert (topology.hosts, topology.gpus, topology.device_count) == (hosts, gpus, hosts * gpus)
    assert str(topology) == text


@pytest.mark.parametrize(
    "text", ["", "8", "8x", "x8", "0x8", "8x0", "8X8", "-1x8", "8x8x8", "8 x 8"]
)
def test_text_of_another_form_is_rejected(text: str) -> None:
    with pytest.raises(XlapipeError, match="expected HOSTSxGPUS"):
        Topology.parse(text)


def test_too_many_devices_are_rejected() -> None:
    with pytest.raises(XlapipeError, match="65,536 devices, found 999,998,000,001"):
        Topology.parse("999999x999999")


@pytest.mark.parametrize(("count", "text"), [(1, "1x1"), (3, "1x3"), (8, "1x8"), (64, "8x8")])
def test_devices_fill_hosts_of_eight(count: int, text: str) -> None:
    assert str(Topology.of_devices(count)) == text


def test_devices_that_do_not_fill_hosts_need_a_topology() -> None:
    with pytest.raises(XlapipeError, match="12 devices do not fill hosts of 8 GPUs"):
        Topology.of_devices(12)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ("f32[]", (4,)),
        ("bf16[128,1024]{1,0:T(8,128)}", (262144,)),
        ("(s32[2]{0}, (pred[3]{0}, u4[3]{0}), c64[1,1]{1,0}, token[])", (8, 3, 2, 8, 0)),
        ("f8e4m3fn[16,2]{1,0}", (32,)),
        ("f32[0,8]{1,0}", (0,)),
        ("()", ()),
    ],
)
def test_bytes_of_arrays(shape: str, sizes: tuple[int, ...]) -> None:
    assert tuple(array.size_bytes for array in shape_of(shape).arrays) == sizes
