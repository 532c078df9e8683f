"""Runs a built executable on the attached GPUs: load, inputs, calls, memory."""

import hashlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from xlapipe.dumps.dump import EXECUTABLE, open_dump
from xlapipe.errors import TargetError
from xlapipe.plan import Plan
from xlapipe.plan.verify_collectives import OWN_KERNEL
from xlapipe.running.driver_memory import used_bytes
from xlapipe.running.executable import LoadedExecutable, built_manifest, load_executable
from xlapipe.running.inputs import read_inputs
from xlapipe.running.jax_distributed import exchange, host_count, joined
from xlapipe.running.memory_account import MemoryAccount, account
from xlapipe.running.rendezvous import SEVERAL_GPUS, Member
from xlapipe.running.select_devices import devices_for


@dataclass(frozen=True)
class Output:
    """One output leaf; `sha256` is of the bytes of the whole array in row-major order."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


@dataclass(frozen=True)
class DeviceRun:
    """What a run took of one device's memory.

    Attributes:
      process: that the device belongs to.
      device: its number in the mesh.
      memory: None where the device reports none.
      outside_before_bytes: in use beside XLA's allocator before the first call: CUDA's context,
        the executable's kernels, other programs; None where nobody tells.
      outside_after_bytes: the same after it; the difference is NCCL's buffers and what libraries
        load when they are first used.
    """

    process: int
    device: int
    memory: MemoryAccount | None
    outside_before_bytes: int | None
    outside_after_bytes: int | None


@dataclass(frozen=True)
class RunResult:
    """What a run showed.

    Attributes:
      load_seconds: reading and loading the executable, without starting jax.
      call_seconds: wall time of each call after the first, inputs on the devices, until this
        process's part of the outputs is there.
      devices: of all processes, in the order of the mesh.
      processes: that ran it.
    """

    device: str
    autotuning: str
    load_seconds: float
    first_call_seconds: float
    call_seconds: tuple[float, ...]
    outputs: tuple[Output, ...]
    devices: tuple[DeviceRun, ...]
    processes: int

    @property
    def median_call_seconds(self) -> float | None:
        return median(self.call_seconds) if self.call_seconds else None

    @property
    def worst(self) -> DeviceRun:
        """The device that took most of its memory; the first one of several alike."""
        return max(self.devices, key=lambda each: each.memory.measured_bytes if each.memory else 0)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `memory` is the worst device's."""
        memory = self.worst.memory
        return {
            **asdict(self),
            "median_call_seconds": self.median_call_seconds,
            "memory": asdict(memory) if memory is not None else None,
        }


def run(folder: Path, *, inputs: str, repeat: int, member: Member | None = None) -> RunResult:
    """Loads the executable of a dump directory and calls it `repeat` times after a first time.

    Args:
      inputs: `random:SEED`, or the path of an .npz whose keys are the arguments' paths.
      member: which process of several this is; each returns the same result but for its times.

    Raises:
      TargetError: too few GPUs, or not those that the executable was built for; or another
        process is missing.
      DumpError: no executable, a damaged one, or one of other versions.
      WorkloadError: inputs that do not fit the arguments.
    """
    manifest = built_manifest(folder)
    plan = open_dump(folder).plan
    if prod((manifest.mesh or {}).values()) > 1:
        # Read when CUDA starts.
        os.environ.update({**SEVERAL_GPUS, **os.environ})
    about = f"{manifest.workload} {manifest.files[EXECUTABLE][:12]} with {inputs}"
    if member is not None and any(thunk.kind == OWN_KERNEL for thunk in plan.thunks or ()):
        raise TargetError(
            f"{folder}: {member.name}: the executable has a collective that XLA computes with a "
            "kernel of its own, within one process only: run it without `xlapipe launch`, or build "
            "it with the option xla_gpu_experimental_use_collective_kernels='' of the Workload"
        )
    with joined(member, about):
        devices = devices_for(folder, manifest, host_count(member))
        return _run(folder, devices, plan, inputs=inputs, repeat=repeat, member=member)


def _run(
    folder: Path,
    devices: Sequence[Any],
    plan: Plan,
    *,
    inputs: str,
    repeat: int,
    member: Member | None,
) -> RunResult:
    local = [device for device in devices if device.process_index == jax.process_index()]
    before = _stats(local)
    started = time.perf_counter()
    executable = load_executable(folder, devices)
    load_seconds = time.perf_counter() - started
    manifest = executable.manifest
    host = read_inputs(inputs, manifest.arguments)
    used = {leaf.parameter_number: leaf for leaf in manifest.arguments}
    loaded = _stats(local)
    placed = {number: executable.place(used[number], value) for number, value in host.items()}
    jax.block_until_ready(list(placed.values()))
    with_inputs = _stats(local)
    spare = {number: value for number, value in host.items() if used[number].donated}
    del host
    outside = _outside(local, with_inputs)
    exchange(member, "ready", None)

    with _bounded(member):
        first_seconds, results = _call(executable, placed)
    after = _stats(local)
    moments = zip(before, loaded, with_inputs, after, strict=True)
    beside = zip(outside, _outside(local, after), strict=True)
    runs = [
        DeviceRun(
            process=jax.process_index(),
            device=devices.index(device),
            memory=account(plan, before=at[0], loaded=at[1], with_inputs=at[2], after=at[3]),
            outside_before_bytes=outside_before,
            outside_after_bytes=outside_after,
        )
        for device, at, (outside_before, outside_after) in zip(local, moments, beside, strict=True)
    ]
    with ThreadPoolExecutor() as pool:
        # Only what is computed here alone runs at once; gathering is a program of all processes.
        digests = list(pool.map(_digest, map(_on_host, results)))
    outputs = tuple(
        Output(leaf.path, leaf.shape, leaf.dtype, digest)
        for leaf, digest in zip(manifest.outputs, digests, strict=True)
    )
    del results
    seconds: list[float] = []
    for _ in range(repeat):
        # A donated argument is gone after the call: the next one gets a copy of its own.
        placed |= {number: executable.place(used[number], value) for number, value in spare.items()}
        jax.block_until_ready(list(placed.values()))
        exchange(member, f"call {len(seconds)}", None)
        seconds.append(_call(executable, placed)[0])
    told = exchange(member, "memory", [asdict(each) for each in runs])
    everyone = [_device_run(each) for some in told for each in some]
    return RunResult(
        device=local[0].device_kind,
        autotuning=manifest.autotuning,
        load_seconds=load_seconds,
        first_call_seconds=first_seconds,
        call_seconds=tuple(seconds),
        outputs=outputs,
        devices=tuple(sorted(everyone, key=lambda each: each.device)),
        processes=jax.process_count(),
    )


def _device_run(data: dict[str, Any]) -> DeviceRun:
    memory = data["memory"]
    return DeviceRun(**{**data, "memory": memory and MemoryAccount(**memory)})


@contextmanager
def _bounded(member: Member | None) -> Iterator[None]:
    """Ends this process by SIGALRM if the block takes longer than processes wait for each other.

    NCCL waits in C++ for a peer that hangs, where no Python code runs; the launcher says what
    happened.
    """
    if member is None:
        yield
        return
    former = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, member.wait_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def _call(executable: LoadedExecutable, placed: Mapping[int, Any]) -> tuple[float, list[Any]]:
    started = time.perf_counter()
    try:
        results = executable.call_numbered(placed)
        jax.block_until_ready(results)
    except RuntimeError as error:
        advice = "; NCCL_DEBUG=INFO in the environment tells more" if "NCCL" in str(error) else ""
        raise TargetError(
            f"{executable.path}: the call failed on {executable.device.device_kind}, process "
            f"{jax.process_index()} of {jax.process_count()}: {error!s:.600}{advice}"
        ) from None
    return time.perf_counter() - started, results


def _on_host(array: Any) -> np.ndarray[Any, Any]:
    """The whole array, those parts too that other processes hold."""
    if not array.is_fully_addressable:
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.ascontiguousarray(np.asarray(array))


def _digest(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(array.reshape(-1).view(np.uint8)).hexdigest()


def _stats(devices: Sequence[Any]) -> list[Mapping[str, int]]:
    return [dict(device.memory_stats() or {}) for device in devices]


def _outside(devices: Sequence[Any], stats: Sequence[Mapping[str, int]]) -> list[int | None]:
    """Bytes in use on each device that are not of XLA's allocator."""
    found: list[int | None] = []
    for device, own in zip(devices, stats, strict=True):
        used = used_bytes(device.local_hardware_id) if device.platform == "gpu" else None
        pool = own.get("pool_bytes")
        found.append(used - pool if used is not None and pool is not None else None)
    return found
