"""Profiles calls through jax's profiler, and reads from its trace the kernels of one device."""

from collections.abc import Callable
from dataclasses import dataclass

import jax

from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.dump.readers.profile_trace import call_intervals, kernel_events
from xlapipe.errors import XlapipeError
from xlapipe.plans.kernel_event import CallInterval, KernelEvent

_TRACE = "*.xplane.pb"
_CALL = "xlapipe call"
# Annotations, but none of the events of XLA's runtime, which would slow down the host.
_ANNOTATIONS = 1


@dataclass(frozen=True)
class Profile:
    """Kernels of one device, and the calls on the host."""

    events: list[KernelEvent]
    calls: list[CallInterval]


def annotated_call() -> jax.profiler.TraceAnnotation:
    """A context manager that marks a call in the profile."""
    return jax.profiler.TraceAnnotation(_CALL)


def profile_calls(call: Callable[[], None], repeat: int, *, device: int) -> Profile:
    """Kernels of `repeat` calls on one device, and the calls.

    Args:
      call: runs a step and waits for it, within `annotated_call`.
      device: position among this process's GPUs.

    Raises:
      XlapipeError: the profiler wrote no kernels.
    """
    with scratch_folder() as folder:
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = _ANNOTATIONS
        options.python_tracer_level = 0
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            for _ in range(repeat):
                call()
        finally:
            jax.profiler.stop_trace()
        paths = sorted(folder.rglob(_TRACE), key=lambda path: path.stat().st_mtime)
        content = paths[-1].read_bytes() if paths else b""
    events = kernel_events(content, device)
    if not events:
        raise XlapipeError(
            "the profiler of jax wrote no kernels; fix: check that no other profiler is attached "
            "to the GPU, and that CUPTI is installed (`pip install 'jax[cuda13]'`)"
        )
    return Profile(events, call_intervals(content, _CALL))
