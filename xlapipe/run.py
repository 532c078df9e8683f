"""Runs a built executable on the attached GPU: load, inputs, calls, memory."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np

from xlapipe.dump import open_dump
from xlapipe.errors import WorkloadError
from xlapipe.executable import LoadedExecutable, built_manifest, device_for, load_executable
from xlapipe.memory import MemoryAccount, account
from xlapipe.plan.program import ArgumentLeaf


@dataclass(frozen=True)
class Output:
    """One output leaf; `sha256` is of its bytes in row-major order."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


@dataclass(frozen=True)
class RunResult:
    """What a run showed.

    Attributes:
      load_seconds: reading and loading the executable, without starting jax.
      call_seconds: wall time of each call after the first, inputs on the device.
    """

    device: str
    autotuning: str
    load_seconds: float
    first_call_seconds: float
    call_seconds: tuple[float, ...]
    outputs: tuple[Output, ...]
    memory: MemoryAccount | None

    @property
    def median_call_seconds(self) -> float | None:
        return median(self.call_seconds) if self.call_seconds else None


def run(folder: Path, *, inputs: str, repeat: int) -> RunResult:
    """Loads the executable of a dump directory and calls it `repeat` times after a first time.

    Args:
      inputs: `random:SEED`, or the path of an .npz whose keys are the arguments' paths.

    Raises:
      TargetError: no GPU, or not the one that the executable was built for.
      DumpError: no executable, a damaged one, or one of other versions.
      WorkloadError: inputs that do not fit the arguments.
    """
    manifest = built_manifest(folder)
    device = device_for(folder, manifest)
    plan = open_dump(folder).plan
    host = read_inputs(inputs, manifest.arguments)
    before = _stats(device)
    started = time.perf_counter()
    executable = load_executable(folder, device)
    load_seconds = time.perf_counter() - started
    loaded = _stats(device)
    placed = {number: jax.device_put(value, device) for number, value in host.items()}
    jax.block_until_ready(list(placed.values()))
    with_inputs = _stats(device)
    donated = {leaf.parameter_number for leaf in manifest.arguments if leaf.donated}
    spare = {number: host[number] for number in donated if number in host}

    first_seconds, results = _call(executable, placed)
    after = _stats(device)
    outputs = tuple(
        Output(leaf.path, leaf.shape, leaf.dtype, _digest(result))
        for leaf, result in zip(manifest.outputs, results, strict=True)
    )
    del results
    seconds = []
    for _ in range(repeat):
        # A donated argument is gone after the call: the next one gets a copy of its own.
        placed |= {number: jax.device_put(value, device) for number, value in spare.items()}
        jax.block_until_ready(list(placed.values()))
        seconds.append(_call(executable, placed)[0])
    return RunResult(
        device=device.device_kind,
        autotuning=manifest.autotuning,
        load_seconds=load_seconds,
        first_call_seconds=first_seconds,
        call_seconds=tuple(seconds),
        outputs=outputs,
        memory=account(plan, before=before, loaded=loaded, with_inputs=with_inputs, after=after),
    )


def _call(executable: LoadedExecutable, placed: Mapping[int, Any]) -> tuple[float, list[Any]]:
    started = time.perf_counter()
    results = executable.call_numbered(placed)
    jax.block_until_ready(results)
    return time.perf_counter() - started, results


def _digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(np.asarray(array)).tobytes()).hexdigest()


def _stats(device: Any) -> Mapping[str, int]:
    return dict(device.memory_stats() or {})


def read_inputs(spec: str, arguments: Sequence[ArgumentLeaf]) -> dict[int, np.ndarray[Any, Any]]:
    """Values of the parameters by number.

    Raises:
      WorkloadError: an unknown form, or arrays that do not fit the arguments.
    """
    used = [leaf for leaf in arguments if leaf.parameter_number is not None]
    if spec.startswith("random:"):
        try:
            seed = int(spec.removeprefix("random:"))
        except ValueError:
            raise WorkloadError(f"--inputs {spec}: expected a number behind random:") from None
        values = {leaf.path: _random(leaf, [seed, number]) for number, leaf in enumerate(used)}
    else:
        values = _from_file(Path(spec), used)
    return {
        leaf.parameter_number: values[leaf.path]
        for leaf in used
        if leaf.parameter_number is not None
    }


def _random(leaf: ArgumentLeaf, seed: list[int]) -> np.ndarray[Any, Any]:
    """Normal values of scale 0.02; for integers small indices, no two alike in an array.

    Equal indices would make a scatter depend on the order of its threads.
    """
    generator = np.random.default_rng(seed)
    dtype = jax.numpy.dtype(leaf.dtype)
    if jax.numpy.issubdtype(dtype, np.integer):
        count = int(np.prod(leaf.shape))
        values = generator.permutation(count) if count > 1 else generator.integers(0, 16, count)
        return values.reshape(leaf.shape).astype(dtype)
    if dtype == np.bool_:
        return generator.integers(0, 2, leaf.shape).astype(dtype)
    return (generator.standard_normal(leaf.shape, np.float32) * np.float32(0.02)).astype(dtype)


def _from_file(path: Path, used: Sequence[ArgumentLeaf]) -> dict[str, np.ndarray[Any, Any]]:
    values = {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            for leaf in used:
                if leaf.path not in stored:
                    raise WorkloadError(
                        f"--inputs {path}: no array {leaf.path!r}; it has "
                        f"{', '.join(sorted(stored)[:8])}"
                    )
                values[leaf.path] = _fitting(stored[leaf.path], leaf, path)
    except (OSError, ValueError, EOFError) as error:
        raise WorkloadError(
            f"--inputs {path}: expected random:SEED or an .npz file: {error}"
        ) from None
    return values


def _fitting(value: np.ndarray[Any, Any], leaf: ArgumentLeaf, path: Path) -> np.ndarray[Any, Any]:
    dtype = jax.numpy.dtype(leaf.dtype)
    if value.dtype.kind == "V" and value.dtype.itemsize == dtype.itemsize:
        value = value.view(dtype)  # .npz keeps bfloat16 and float8 as raw bytes
    if value.shape != leaf.shape or value.dtype != dtype:
        raise WorkloadError(
            f"--inputs {path}: {leaf.path} is {value.dtype}{list(value.shape)}, expected "
            f"{leaf.dtype}{list(leaf.shape)}"
        )
    return value
