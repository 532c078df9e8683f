"""Runs a built executable on the attached GPUs: loads it, places inputs, times calls."""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.dump.dump import EXECUTABLE, open_dump
from xlapipe.dump.readers.profile_trace import call_intervals, kernel_events
from xlapipe.errors import TargetError, XlapipeError
from xlapipe.files.typed_data import typed
from xlapipe.plans import Plan
from xlapipe.run.built_executable import built_manifest
from xlapipe.run.executable import LoadedExecutable, load_executable, select_devices
from xlapipe.run.inputs import random_inputs
from xlapipe.run.jax_distributed import exchange, host_count, joined
from xlapipe.run.run_result import (
    DeviceRun,
    OutputDigest,
    ProfiledRun,
    RunResult,
    reconcile,
)
from xlapipe.time.profiles.joined_profile import join_profile

# XLA's kernel that reduces small arrays over NVLink, in place of NCCL.
_OWN_KERNEL = "kCollectiveKernel"
_CALL = "xlapipe call"
# Environment of processes that use several GPUs; the user's own settings take precedence. With one
# hardware queue, kernels begin in the order in which they were launched, so that a collective that
# was launched before a gemm gets multiprocessors before the gemm occupies all of them. With more
# queues the order varies, and all devices wait for the one on which the gemm was first.
_SEVERAL_GPUS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def run(
    folder: Path,
    *,
    seed: int,
    repeat: int,
    distributed: bool = False,
    profiled: int = 0,
) -> RunResult:
    """Loads the executable of a dump directory and calls it 1 + `repeat` times.

    Then `profiled` further calls are profiled. `distributed` states that the processes of srun or
    mpirun run the executable together.
    """
    manifest = built_manifest(folder)
    plan = open_dump(folder).plan
    if prod((manifest.mesh or {}).values()) > 1:
        # CUDA reads these when it starts.
        os.environ.update({**_SEVERAL_GPUS, **os.environ})
    if distributed and any(thunk.kind == _OWN_KERNEL for thunk in plan.thunks or ()):
        raise TargetError(
            f"{folder}: the executable has a collective that XLA computes with its own kernel, "
            "which works within one process only; fix: run it without --distributed, or build it "
            "with the Workload's option xla_gpu_experimental_use_collective_kernels=''"
        )
    program = f"{manifest.workload} {manifest.files[EXECUTABLE][:12]} with seed {seed}"
    with joined(program) if distributed else nullcontext():
        devices = select_devices(folder, manifest, host_count())
        return _run(folder, devices, plan, seed=seed, repeat=repeat, profiled=profiled)


def _run(
    folder: Path,
    devices: Sequence[Any],
    plan: Plan,
    *,
    seed: int,
    repeat: int,
    profiled: int,
) -> RunResult:
    local = [device for device in devices if device.process_index == jax.process_index()]
    before = _memory_stats(local)
    started = time.perf_counter()
    executable = load_executable(folder, devices)
    load_seconds = time.perf_counter() - started
    manifest = executable.manifest
    host_values = random_inputs(seed, manifest.arguments)
    loaded = _memory_stats(local)
    arguments = _PlacedArguments(executable, host_values)
    del host_values
    with_inputs = _memory_stats(local)
    exchange("ready", None)

    first_call_seconds, results = _call(executable, arguments.arrays)
    after = _memory_stats(local)
    device_runs = [
        DeviceRun(
            process=jax.process_index(),
            device=devices.index(device),
            memory=reconcile(
                plan,
                before=before[index],
                loaded=loaded[index],
                with_inputs=with_inputs[index],
                after=after[index],
            ),
        )
        for index, device in enumerate(local)
    ]
    outputs = _outputs(executable, results)
    del results
    call_seconds = []
    for number in range(repeat):
        arguments.place_donated()
        exchange(f"call {number}", None)
        call_seconds.append(_call(executable, arguments.arrays)[0])
    profile = _profile(executable, arguments, plan, profiled) if profiled else None
    runs_by_process = exchange("memory", [asdict(run) for run in device_runs])
    all_runs = [typed(DeviceRun, data) for runs in runs_by_process for data in runs]
    return RunResult(
        device=local[0].device_kind,
        autotuning=manifest.autotuning,
        load_seconds=load_seconds,
        first_call_seconds=first_call_seconds,
        call_seconds=tuple(call_seconds),
        outputs=outputs,
        devices=tuple(sorted(all_runs, key=lambda run: run.device)),
        processes=jax.process_count(),
        profile=profile,
    )


def _profile(
    executable: LoadedExecutable,
    arguments: "_PlacedArguments",
    plan: Plan,
    count: int,
) -> ProfiledRun:
    """Profiles calls, and joins the kernels of this process's first device with the plan."""

    def call() -> float:
        arguments.place_donated()
        with jax.profiler.TraceAnnotation(_CALL):
            return _call(executable, arguments.arrays)[0]

    call()  # is not profiled
    with profiled() as profiles:
        seconds = tuple(call() for _ in range(count))
    content = profiles[-1] if profiles else b""
    events = kernel_events(content, jax.local_devices().index(executable.device))
    if not events:
        raise XlapipeError(
            "the profiler of jax wrote no kernels; fix: check that no other profiler is attached "
            "to the GPU, and that CUPTI is installed (`pip install 'jax[cuda13]'`)"
        )
    calls = call_intervals(content, _CALL)
    return ProfiledRun(seconds, join_profile(plan, events, count, calls))


@contextmanager
def profiled() -> Iterator[list[bytes]]:
    """Profiles the block, after which the list has what the profiler wrote.

    None of the events of XLA's runtime are in it, which would slow down the host.
    """
    profiles: list[bytes] = []
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = 1  # annotations alone
    options.python_tracer_level = 0
    with scratch_folder() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            yield profiles
        finally:
            jax.profiler.stop_trace()
        paths = sorted(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
        profiles += [path.read_bytes() for path in paths]


class _PlacedArguments:
    """The arguments on the devices, by parameter number. A call deletes those that are donated."""

    def __init__(
        self, executable: LoadedExecutable, host_values: Mapping[int, np.ndarray[Any, Any]]
    ) -> None:
        """Places the values, and waits until they are on the devices."""
        self._executable = executable
        self._leaves = {leaf.parameter_number: leaf for leaf in executable.manifest.arguments}
        # Only these are kept on the host.
        self._donated = {n: value for n, value in host_values.items() if self._leaves[n].donated}
        self.arrays: dict[int, Any] = {}
        self._place(host_values)

    def place_donated(self) -> None:
        """Places the donated values again, for the next call."""
        self._place(self._donated)

    def _place(self, host_values: Mapping[int, np.ndarray[Any, Any]]) -> None:
        for number, value in host_values.items():
            self.arrays[number] = self._executable.place(self._leaves[number], value)
        jax.block_until_ready(list(self.arrays.values()))


def _call(executable: LoadedExecutable, arguments: Mapping[int, Any]) -> tuple[float, list[Any]]:
    """Seconds of one call, and its outputs on the devices."""
    started = time.perf_counter()
    try:
        results = executable.execute([arguments[number] for number in sorted(arguments)])
        jax.block_until_ready(results)
    except RuntimeError as error:
        fix = "; fix: set NCCL_DEBUG=INFO for details" if "NCCL" in str(error) else ""
        raise TargetError(
            f"{executable.path}: the call failed on {executable.device.device_kind}, process "
            f"{jax.process_index()} of {jax.process_count()}: {error!s:.600}{fix}"
        ) from None
    return time.perf_counter() - started, results


def _outputs(executable: LoadedExecutable, results: Sequence[Any]) -> tuple[OutputDigest, ...]:
    with ThreadPoolExecutor() as pool:
        # Arrays are gathered one after another, because all processes take part in each gather;
        # only the digests are computed in parallel.
        digests = list(pool.map(_digest, map(_whole_on_host, results)))
    return tuple(
        OutputDigest(leaf.path, leaf.shape, leaf.dtype, digest)
        for leaf, digest in zip(executable.manifest.outputs, digests, strict=True)
    )


def _whole_on_host(array: Any) -> np.ndarray[Any, Any]:
    """The whole array, including the parts on other processes' devices."""
    if not array.is_fully_addressable:
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.ascontiguousarray(np.asarray(array))


def _digest(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(array.reshape(-1).view(np.uint8)).hexdigest()


def _memory_stats(devices: Sequence[Any]) -> list[Mapping[str, int]]:
    return [dict(device.memory_stats() or {}) for device in devices]
