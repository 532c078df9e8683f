"""Reads kernels and calls from a trace of jax's profiler."""

import pytest
from google.protobuf import text_format

from xlapipe.dump.readers.hlo_proto import XSpace
from xlapipe.dump.readers.profile_trace import call_intervals, kernel_events
from xlapipe.errors import DumpError
from xlapipe.plans.kernel_event import CallInterval

TRACE = """
planes {
  name: "/host:CPU"
  lines {
    name: "python"
    timestamp_ns: 500
    events { metadata_id: 2 offset_ps: 9000000 duration_ps: 3000000 }
    events { metadata_id: 1 duration_ps: 5000 }
    events { metadata_id: 2 offset_ps: 1000000 duration_ps: 4000000 }
  }
  event_metadata { key: 1 value { name: "other" } }
  event_metadata { key: 2 value { name: "call" } }
}
planes {
  name: "/device:GPU:1"
  lines { name: "Stream #20" events { metadata_id: 1 duration_ps: 1000 stats { metadata_id: 1 ref_value: 3 } } }
  event_metadata { key: 1 value { name: "other_device" } }
  stat_metadata { key: 1 value { name: "hlo_op" } }
  stat_metadata { key: 3 value { name: "other.1" } }
}
planes {
  name: "/device:GPU:0"
  lines {
    name: "Stream #13(Compute)"
    timestamp_ns: 1000
    events { metadata_id: 2 offset_ps: 9000000 duration_ps: 3000000 stats { metadata_id: 1 ref_value: 4 } }
    events { metadata_id: 1 offset_ps: 2000000 duration_ps: 1500000 stats { metadata_id: 1 ref_value: 3 } }
  }
  lines {
    name: "Stream #14(MemcpyH2D)"
    timestamp_ns: 1000
    events { metadata_id: 3 offset_ps: 0 duration_ps: 4000000 }
  }
  lines {
    name: "XLA Ops"
    events { metadata_id: 1 offset_ps: 0 duration_ps: 4000000 stats { metadata_id: 1 ref_value: 3 } }
  }
  event_metadata { key: 1 value { name: "loop_add_fusion" } }
  event_metadata { key: 2 value { name: "nvjet_tst_128x128" } }
  event_metadata { key: 3 value { name: "MemcpyH2D" } }
  stat_metadata { key: 1 value { name: "hlo_op" } }
  stat_metadata { key: 3 value { name: "loop_add_fusion" } }
  stat_metadata { key: 4 value { name: "command_buffer_1" } }
}
"""  # noqa: E501


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
