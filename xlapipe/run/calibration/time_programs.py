"""Compiles programs on the attached GPU, several at once, and then profiles them alone."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from xlapipe.compile.lowering.kernel_codes import kernel_codes
from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.dump.readers.profile_trace import call_intervals, kernel_events
from xlapipe.dump.run_record import run_record
from xlapipe.jax_private import get_topology_for_devices
from xlapipe.run.calibration.profiles import KEPT_FILES, TimedCalls, write_kernel_codes
from xlapipe.run.calibration.timed_program import TimedProgram
from xlapipe.run.run import profiled

_COMPILE_SECONDS = 420.0
_TOTAL_SECONDS = 560.0
_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin")
# Programs of one session of the profiler, at most, and bytes of their arguments.
_BATCH, _BATCH_BYTES = 24, 8 << 30
Report = Callable[[str], None]
Advance = Callable[[], None]


def time_programs(
    programs: Mapping[str, TimedProgram],
    folder: Path,
    *,
    compile_seconds: float,
    total_seconds: float,
    threads: int = 16,
    calls: int = 5,
    report: Report,
    advance: Advance = lambda: None,
) -> Iterator[tuple[str, TimedCalls]]:
    """Times programs; each has XLA's files in `folder`/NAME.

    Programs that fail, or are not compiled in time, are reported and left out.
    """
    started = time.perf_counter()
    executables: dict[str, Any] = {}
    pool = ThreadPoolExecutor(threads)
    futures = {
        pool.submit(_compiled, program, folder / name): name for name, program in programs.items()
    }
    try:
        for future in as_completed(futures, timeout=compile_seconds):
            name = futures[future]
            try:
                executables[name] = future.result()
                advance()
            except Exception as error:  # noqa: BLE001  # the other programs are timed nevertheless
                report(f"{name}: not compiled: {error!s:.300}")
    except TimeoutError:
        missing = [name for name in programs if name not in executables]
        report(f"not compiled in time: {', '.join(missing)}")
    # What still compiles would disturb what is timed. It may take longer than the limit, and leaves
    # as much time for the programs that are compiled as there would be otherwise.
    pool.shutdown(wait=True, cancel_futures=True)
    end = max(started + total_seconds, time.perf_counter() + total_seconds - compile_seconds)
    names = [name for name in programs if name in executables]
    while names:
        if time.perf_counter() > end:
            report(f"not timed for lack of time: {', '.join(names)}")
            return
        batch: dict[str, tuple[TimedProgram, Any]] = {}
        size_bytes = 0
        while names and len(batch) < _BATCH:
            leaves = jax.tree.leaves(programs[names[0]].structs())
            size_bytes += sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
            if batch and size_bytes > _BATCH_BYTES:
                break
            name = names.pop(0)
            batch[name] = programs[name], executables[name]
        for timed in _profiled(batch, calls, report):
            advance()
            yield timed


def _compiled(program: TimedProgram, folder: Path) -> Any:
    """The executable. Keeps XLA's files of the plan."""
    folder.mkdir(parents=True, exist_ok=True)
    with scratch_folder() as scratch:
        options = {
            "xla_dump_to": str(scratch),
            "xla_dump_hlo_as_proto": True,
            "xla_dump_hlo_as_text": False,
            **program.options,
        }
        traced = jax.jit(program.fn).trace(*program.structs())
        executable = traced.lower().compile(compiler_options=options)
        if codes := kernel_codes(traced.jaxpr):
            write_kernel_codes(folder, codes)
        for path in scratch.iterdir():
            if KEPT_FILES.search(path.name):
                (folder / path.name).write_bytes(path.read_bytes())
    return executable


def _profiled(
    batch: Mapping[str, tuple[TimedProgram, Any]], calls: int, report: Report
) -> Iterator[tuple[str, TimedCalls]]:
    """Profiles some programs in one session of the profiler."""
    walls: dict[str, tuple[float, ...]] = {}
    args_of: dict[str, list[Any]] = {}
    for name, (program, executable) in batch.items():
        try:
            args = args_of[name] = program.make_args()
            seconds = [_call(executable, args) for _ in range(3 + calls)]
        except Exception as error:  # noqa: BLE001  # the others are timed nevertheless
            report(f"{name}: failed: {error!s:.300}")
            args_of.pop(name, None)
            continue
        walls[name] = tuple(seconds[3:])
    with profiled() as profiles:
        for name, args in args_of.items():
            _, executable = batch[name]
            for _ in range(2):
                _call(executable, args)
            for _ in range(calls):
                with jax.profiler.TraceAnnotation(f"call of {name}"):
                    _call(executable, args)
    (content,) = profiles
    events = kernel_events(content)
    for name in args_of:
        intervals = call_intervals(content, f"call of {name}")
        if not intervals:
            report(f"{name}: the profile has no calls")
            continue
        begin, end = intervals[0].start_ns, intervals[-1].end_ns
        within = tuple(it for it in events if begin <= it.start_ns and it.end_ns <= end)
        yield name, TimedCalls(within, tuple(intervals), walls[name])


def _call(executable: Any, args: list[Any]) -> float:
    """Seconds of one call, until its outputs are ready."""
    started = time.perf_counter()
    jax.block_until_ready(executable(*args))
    return time.perf_counter() - started


def time_probes(
    programs: Mapping[str, TimedProgram],
    folder: Path,
    command: list[str],
    report: Report,
    advance: Advance = lambda: None,
) -> tuple[dict[str, Any], str, dict[str, TimedCalls]]:
    """Time programs on the attached GPU; takes at most ten minutes.

    Returns where the times are from, the GPU's configuration, and the calls by program.
    """
    timed = time_programs(
        programs,
        folder,
        compile_seconds=_COMPILE_SECONDS,
        total_seconds=_TOTAL_SECONDS,
        report=report,
        advance=advance,
    )
    by_name = dict(timed)
    devices = jax.devices("gpu")
    about = run_record(
        device=devices[0].device_kind,
        versions={name: version(name) for name in _PACKAGES},
        command=command,
    )
    config = str(get_topology_for_devices(devices[:1]).target_config)
    about["driver"] = about["driver"] or "unknown"
    return {**about, "gpus": jax.device_count()}, config, by_name
