"""Compiles and times the forms that `record_choose.py lower` lowered, on the attached GPU.

    python tests/gpu/time_choose.py FORMS OUT --compile SECONDS --total SECONDS

`FORMS/forms.json` lists the forms. All are compiled first, several at a time and tuned by XLA's
autotuner as under `jax.jit`. Then one at a time runs, each family in a process of its own that
compiles nothing, the form with the smallest plan first, so that the allocator's peak is that of the
form that runs. `OUT/timed.jsonl` gets a line for each form, and `OUT/FAMILY/ROW` XLA's files of its
plan and the kernels of three profiled calls.
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import mlir, pxla
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from provenance import provenance

from xlapipe.compile.lowering.xla_input import apply_settings
from xlapipe.compile.messages import LoweredProgram
from xlapipe.dump.readers.profile_trace import call_intervals, kernel_events
from xlapipe.run.calibration.record import KEPT_FILES
from xlapipe.run.calibration.time_programs import TimedCalls, write_calls
from xlapipe.run.inputs import stored_array

_LEAST_CALLS, _MOST_CALLS, _TIMED_SECONDS = 2, 30, 0.2
_SEQUENCES = 5
_PROFILED_CALLS = 3
_CALL = "timed call"

Form = Mapping[str, Any]


def _program(form: Form, forms: Path) -> LoweredProgram:
    text = lzma.decompress((forms / form["file"]).read_bytes())
    return LoweredProgram.from_bytes(text)


def _serialized(form: Form, folder: Path) -> Path:
    return folder / f"{form['family']}-{form['row']}.executable"


def compile_form(form: Form, chosen: argparse.Namespace) -> None:
    """Compiles a form as jax does for the attached GPU. Keeps it, and XLA's files of its plan."""
    program = _program(form, chosen.forms)
    device = jax.devices()[0]
    with tempfile.TemporaryDirectory() as dump, mlir.make_ir_context():
        options = {
            **program.options,
            "xla_dump_to": dump,
            "xla_dump_hlo_as_proto": True,
            "xla_dump_hlo_as_text": False,
        }
        module = ir.Module.parse(program.stablehlo)
        apply_settings(program.settings)
        fields = program.compile_options
        compile_options = pxla.create_compile_options(
            module,
            fields["parameter_is_tupled_arguments"],
            fields["build.allow_spmd_sharding_propagation_to_parameters"],
            fields["build.allow_spmd_sharding_propagation_to_output"],
            device.client,
            np.array([device]),
            options,
        )
        executable = device.client.compile_and_load(
            module, xla_client.DeviceList((device,)), compile_options, []
        )
        folder = chosen.out / form["family"] / str(form["row"])
        folder.mkdir(parents=True, exist_ok=True)
        for path in Path(dump).iterdir():
            if KEPT_FILES.search(path.name):
                (folder / path.name).write_bytes(path.read_bytes())
    path = _serialized(form, chosen.executables)
    path.with_suffix(".part").write_bytes(executable.serialize())
    path.with_suffix(".part").rename(path)


def compile_forms(listed: Sequence[Form], options: argparse.Namespace) -> None:
    """Compiles what can be compiled in time. Prints a JSON line for each other form."""
    end = time.monotonic() + options.compile
    pool = ThreadPoolExecutor(options.threads)
    reasons = {(form["family"], form["row"]): "not compiled in time" for form in listed}
    # Forms of a family share most products: the others find what one of them has tuned.
    first = list({form["family"]: form for form in listed}.values())
    for forms in (first, [form for form in listed if form not in first]):
        futures = {
            pool.submit(compile_form, form, options): (form["family"], form["row"])
            for form in forms
        }
        with suppress(TimeoutError):
            for future in as_completed(futures, timeout=max(end - time.monotonic(), 0)):
                if (error := future.exception()) is None:
                    del reasons[futures[future]]
                    print(futures[future], time.monotonic() - end, file=sys.stderr, flush=True)
                else:
                    reasons[futures[future]] = f"{error!s:.500}"
    for (family, row), reason in reasons.items():
        print(json.dumps({"family": family, "row": row, "failed": reason}))
    sys.stdout.flush()
    # Compiles that still run would disturb what is timed, and one was seen not to end.
    os._exit(0)


class FamilyArrays:
    """The arguments of a family's forms, on the GPU: all its forms are called with the same.

    Floats are random with a deviation of 0.02, integers small. A donated one is replaced by the
    output that has its shape.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, ...], jax.Array] = {}

    def of(self, program: LoweredProgram) -> dict[int, tuple[Any, ...]]:
        """Keys of the arrays by parameter number; makes those that are missing."""
        keys = {}
        for leaf in program.arguments:
            if leaf.parameter_number is not None:
                stored = stored_array(leaf.shape, leaf.dtype)
                shape, dtype = stored.shape, stored.dtype
                keys[leaf.parameter_number] = key = (leaf.path, shape, str(dtype))
                if key not in self._arrays:
                    self._arrays[key] = self._random(leaf.path, shape, dtype)
        return keys

    def _random(self, path: str, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        rng = np.random.default_rng(len(self._arrays))
        count = int(np.prod(shape))
        if jnp.issubdtype(dtype, jnp.floating):
            values = 0.02 * rng.standard_normal(min(count, 1 << 20), np.float32)
            # Variances and second moments of Adam's are not negative.
            values = abs(values) if ".nu" in path or "var" in path else values
        else:
            values = rng.integers(0, 2 if dtype == jnp.bool_ else 1000, min(count, 1 << 20))
        return jax.device_put(np.resize(values.astype(dtype), shape))

    def __getitem__(self, key: tuple[Any, ...]) -> jax.Array:
        return self._arrays[key]

    def replace(self, key: tuple[Any, ...], array: jax.Array) -> None:
        self._arrays[key] = array

    def wait(self) -> int:
        """Waits until all are on the GPU. Returns their bytes."""
        return sum(array.nbytes for array in jax.block_until_ready(list(self._arrays.values())))


class _Calls:
    """Calls of one executable."""

    def __init__(self, program: LoweredProgram, executable: Any, arrays: FamilyArrays) -> None:
        self._executable, self._arrays = executable, arrays
        self._keys = arrays.of(program)
        leaves = {leaf.parameter_number: leaf for leaf in program.arguments}
        self._donated = [number for number in sorted(self._keys) if leaves[number].donated]

    def call(self) -> list[jax.Array]:
        """Starts one. Returns the outputs that replace no argument."""
        arguments = [self._arrays[self._keys[number]] for number in sorted(self._keys)]
        results = self._executable.execute_sharded(arguments)
        left = [shard[0] for shard in results.disassemble_into_single_device_arrays()]
        for number in self._donated:
            like = self._arrays[self._keys[number]]
            same = next(r for r in left if (r.shape, r.dtype) == (like.shape, like.dtype))
            left = [result for result in left if result is not same]
            self._arrays.replace(self._keys[number], same)
        return left

    def seconds(self, count: int) -> float:
        """Of one of `count` calls, which are not waited for one by one."""
        started = time.perf_counter()
        for _ in range(count):
            others = self.call()
        jax.block_until_ready(others)
        self._arrays.wait()
        return (time.perf_counter() - started) / count


def time_form(
    program: LoweredProgram, executable: Any, arrays: FamilyArrays, folder: Path
) -> dict[str, Any]:
    """Seconds of a step, and the allocator's peak. Writes the profile."""
    device = jax.devices()[0]
    calls = _Calls(program, executable, arrays)
    argument_bytes = arrays.wait()
    before = device.memory_stats() or {}
    first = calls.seconds(1)
    after = device.memory_stats() or {}
    short = calls.seconds(1)
    count = int(min(max(_TIMED_SECONDS / short, _LEAST_CALLS), _MOST_CALLS))
    each = sorted(calls.seconds(count) for _ in range(_SEQUENCES))
    with tempfile.TemporaryDirectory() as trace:
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level, options.python_tracer_level = 1, 0
        jax.profiler.start_trace(trace, profiler_options=options)
        calls.seconds(1)
        for _ in range(_PROFILED_CALLS):
            with jax.profiler.TraceAnnotation(_CALL):
                calls.seconds(1)
        jax.profiler.stop_trace()
        content = next(Path(trace).rglob("*.xplane.pb")).read_bytes()
    intervals = call_intervals(content, _CALL)
    start, end = intervals[0].start_ns, intervals[-1].end_ns
    events = [event for event in kernel_events(content) if start <= event.start_ns <= end]
    write_calls(folder, TimedCalls(tuple(events), tuple(intervals), tuple(each)))
    small = [array for array in calls.call() if array.size < 1 << 16]
    memory = executable.get_compiled_memory_stats()
    # An earlier form with a larger peak hides this one's.
    peak = after.get("peak_bytes_in_use", 0)
    hidden = peak <= before.get("peak_bytes_in_use", 0)
    return {
        "total_bytes": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
        "measured_bytes": None if hidden else peak - before["bytes_in_use"] + argument_bytes,
        "first_call_seconds": first,
        "step_seconds": each[_SEQUENCES // 2],
        "step_seconds_each": each,
        "calls": count,
        "finite": all(bool(jnp.isfinite(array).all()) for array in small),
    }


def time_family(family: Sequence[Form], options: argparse.Namespace) -> None:
    """Prints a JSON line for each form of one family that is compiled."""
    device = jax.devices()[0]
    arrays = FamilyArrays()
    for form in sorted(family, key=lambda form: int(form["total_bytes"])):
        path = _serialized(form, options.executables)
        if not path.exists():
            continue
        try:
            executable = device.client.deserialize_executable(
                path.read_bytes(), executable_devices=xla_client.DeviceList((device,))
            )
            folder = options.out / form["family"] / str(form["row"])
            line = time_form(_program(form, options.forms), executable, arrays, folder)
        except Exception as error:  # noqa: BLE001  # the next form is timed nevertheless
            line = {"failed": f"{error!s:.500}"}
        print(json.dumps({"family": form["family"], "row": form["row"], **line}), flush=True)


def run_all(options: argparse.Namespace, listed: Sequence[Form]) -> None:
    """Compiles, then times, in processes of their own, since one keeps the GPU's memory."""
    started = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    versions = {name: version(name) for name in ("jax", "jaxlib")}
    with (
        tempfile.TemporaryDirectory() as executables,
        (options.out / "timed.jsonl").open("w", encoding="utf-8") as timed,
    ):
        print(json.dumps(provenance(versions)), file=timed, flush=True)
        own = [sys.executable, *sys.argv, "--executables", executables]
        subprocess.run(own, check=False, stdout=timed)
        for family in dict.fromkeys(form["family"] for form in listed):
            print(f"{family} at {time.monotonic() - started:.0f} s", flush=True)
            left = options.total - (time.monotonic() - started)
            try:
                command = [*own, "--family", family]
                subprocess.run(command, check=False, stdout=timed, timeout=max(left, 1))
            except subprocess.TimeoutExpired:
                print("no time left")
                break


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("forms", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--compile", type=float, default=200.0, help="seconds")
    parser.add_argument("--total", type=float, default=480.0, help="seconds")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--executables", type=Path, help="compile into this folder, no more")
    parser.add_argument("--family", help="time its forms that are compiled, no more")
    options = parser.parse_args()
    listed = json.loads((options.forms / "forms.json").read_text(encoding="utf-8"))
    if options.executables is None:
        run_all(options, listed)
    elif options.family is None:
        compile_forms(listed, options)
    else:
        time_family([form for form in listed if form["family"] == options.family], options)


if __name__ == "__main__":
    main()
