"""Reads kernels and calls from a trace of jax's profiler."""

from pathlib import Path

import pytest
from google.protobuf import text_format

from xlapipe.dump.readers.hlo_proto import XSpace
from xlapipe.dump.readers.profile_trace import call_intervals, kernel_events
from xlapipe.errors import DumpError
from xlapipe.time.profiles.joined_profile import CallInterval

TRACE = Path(__file__).with_name("texts").joinpath("trace.txtpb").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def profile() -> bytes:
    return text_format.Parse(TRACE, XSpace()).SerializeToString()


def test_kernels_of_the_first_device_in_the_order_of_their_start(profile: bytes) -> None:
    events = [
        (event.name, event.hlo_op, event.start_ns, event.duration_ns)
        for event in kernel_events(profile)
    ]
    assert events == [
        ("loop_add_fusion", "loop_add_fusion", 3000, 1500),
        ("nvjet_tst_128x128", "command_buffer_1", 10_000, 3000),
    ]


def test_calls_are_the_intervals_of_an_annotation_on_the_host(profile: bytes) -> None:
    assert call_intervals(profile, "call") == [
        CallInterval(1500, 5500),
        CallInterval(9500, 12_500),
    ]
    assert call_intervals(profile, "loop_add_fusion") == []


def test_other_devices_are_separate(profile: bytes) -> None:
    assert [event.name for event in kernel_events(profile, device=1)] == ["other_device"]
    assert kernel_events(profile, device=2) == []


def test_other_bytes_are_refused() -> None:
    with pytest.raises(DumpError, match="fix: profile again"):
        kernel_events(b"\xff\xff not a trace")
