"""Profiles calls through jax's profiler, and reads the kernels of one device from its trace."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from xlapipe.errors import XlapipeError
from xlapipe.plan.kernel_event import KernelEvent
from xlapipe.read.profile_trace import kernel_events

_TRACE = "*.xplane.pb"


def profile_calls(
    call: Callable[[], None], repeat: int, *, device: int, trace: Path | None
) -> list[KernelEvent]:
    """Kernels of `repeat` calls on one device.

    Args:
      call: runs a step and waits for it.
      device: position among this process's GPUs.
      trace: folder that keeps jax's trace; None to delete it.

    Raises:
      XlapipeError: the profiler wrote no kernels.
    """
    with _folder(trace) as folder:
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = 0
        options.python_tracer_level = 0
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            for _ in range(repeat):
                call()
        finally:
            jax.profiler.stop_trace()
        paths = sorted(folder.rglob(_TRACE), key=lambda path: path.stat().st_mtime)
        events = kernel_events(paths[-1].read_bytes(), device) if paths else []
    if not events:
        raise XlapipeError(
            "the profiler of jax wrote no kernels; fix: check that no other profiler is attached "
            "to the GPU, and that CUPTI is installed (`pip install 'jax[cuda13]'`)"
        )
    return events


@contextmanager
def _folder(trace: Path | None) -> Iterator[Path]:
    if trace is not None:
        trace.mkdir(parents=True, exist_ok=True)
        yield trace
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
