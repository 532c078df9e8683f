"""Read kernels of a GPU and calls on the host from a trace of jax's profiler (`*.xplane.pb`)."""

from collections.abc import Iterator

from google.protobuf.message import DecodeError

from xlapipe.dump.readers.hlo_proto import XEvent, XPlane, XSpace
from xlapipe.errors import DumpError
from xlapipe.time.profiles.joined_profile import CallInterval, KernelEvent

_DEVICE = "/device:GPU:"
_HOST = "/host:CPU"
# Other lines repeat the streams' events in another form.
_STREAM = "Stream"
# What XLA launched has one of them; copies of inputs to the device have none.
_LAUNCHED = ("hlo_op", "hlo_module")


def kernel_events(content: bytes, device: int = 0) -> list[KernelEvent]:
    """Kernels and copies of XLA programs on one device, in the order of their start."""
    space = _read(content)
    planes = [plane for plane in space.planes if plane.name.startswith(_DEVICE)]
    planes.sort(key=lambda plane: int(plane.name.removeprefix(_DEVICE).split()[0]))
    if device >= len(planes):
        return []
    return sorted(_events(planes[device]), key=lambda event: event.start_ns)


def call_intervals(content: bytes, annotation: str) -> list[CallInterval]:
    """The intervals of an annotation (`jax.profiler.TraceAnnotation`) on the host, by start."""
    intervals = [
        CallInterval(start_ns, start_ns + event.duration_ps / 1000)
        for plane in _read(content).planes
        if plane.name == _HOST
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name == annotation
        for start_ns in [line.timestamp_ns + event.offset_ps / 1000]
    ]
    return sorted(intervals, key=lambda interval: interval.start_ns)


def _read(content: bytes) -> XSpace:
    try:
        return XSpace.FromString(content)
    except DecodeError:
        raise DumpError(
            "profile: expected an .xplane.pb of jax's profiler, found other bytes; "
            "fix: profile again"
        ) from None


def _events(plane: XPlane) -> Iterator[KernelEvent]:
    names = {key: metadata.name for key, metadata in plane.stat_metadata.items()}
    for line in plane.lines:
        if not line.name.startswith(_STREAM):
            continue
        for event in line.events:
            stats = _stats(event, names)
            if stats.keys().isdisjoint(_LAUNCHED):
                continue
            yield KernelEvent(
                name=plane.event_metadata[event.metadata_id].name,
                hlo_op=stats.get("hlo_op"),
                start_ns=line.timestamp_ns + event.offset_ps / 1000,
                duration_ns=event.duration_ps / 1000,
            )


def _stats(event: XEvent, names: dict[int, str]) -> dict[str, str]:
    """Stats of an event that are texts, by name; a text may be a reference to a name."""
    return {
        names[stat.metadata_id]: stat.str_value or names.get(stat.ref_value, "")
        for stat in event.stats
        if stat.metadata_id in names
    }
