"""Runs the persistent decode kernel while another kernel holds multiprocessors.

    PYTHONPATH=. python tests/gpu/starve_persistent_kernel.py OUT.json [LOCK]

All 128 blocks of the kernel must run at once. Here a kernel on another stream holds some of the
GPU's multiprocessors first, with so much shared memory that no block fits beside it. Each case is a
process: a launch that fails ends the process's CUDA context. The processes start at once, and lock
the file LOCK while they use the GPU. `persistent_starved.json` is such a record. Needs CuPy.
"""

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Multiprocessors that are held, and for how many seconds.
CASES = ((4, 5.0), (16, 0.2), (16, 25.0))
HELD_SHARED_BYTES = 200 * 1024
TIMEOUT_SECONDS = 60
LAYERS, SLOTS, POSITION = 2, 2048, 1500
_HOLD = r"""
extern "C" __global__ void hold(volatile int* started, long long nanoseconds) {
  extern __shared__ char memory[];
  long long begin, now;
  if (threadIdx.x == 0) { memory[0] = 1; atomicAdd((int*)started, 1); }
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < nanoseconds);
}
"""


def decode() -> Callable[[], Any]:
    """A decode step with the kernel: a function without arguments that returns its logits."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from models.qwen3.config import QWEN3_0_6B
    from models.qwen3.modules.cache import init_cache
    from models.qwen3.steps import abstract_model, decode_step

    config = replace(QWEN3_0_6B, num_hidden_layers=LAYERS)
    leaves, structure = jax.tree.flatten(abstract_model(config)[1])
    keys = jax.random.split(jax.random.key(0), len(leaves))
    values = [
        0.02 * jax.random.normal(key, leaf.shape, jnp.float32) + (leaf.ndim == 1)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    params = jax.tree.unflatten(structure, [value.astype(config.dtype) for value in values])
    cache = init_cache(config, batch=1, cache_length=SLOTS)
    token_id, position = jnp.array([5], jnp.int32), jnp.array([POSITION], jnp.int32)
    step = jax.jit(decode_step(config, implementation="persistent"))
    return lambda: np.asarray(step(params, cache, token_id, position)["logits"])


def hold(multiprocessors: int, seconds: float) -> None:
    """Starts a kernel that holds multiprocessors; returns once it runs on all of them."""
    import cupy
    import numpy as np

    kernel = cupy.RawKernel(_HOLD, "hold")
    kernel.max_dynamic_shared_size_bytes = HELD_SHARED_BYTES
    started = cupy.zeros(1, cupy.int32)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    arguments = (started, np.int64(seconds * 1e9))
    with streams[0]:
        kernel((multiprocessors,), (32,), arguments, shared_mem=HELD_SHARED_BYTES)
    while int(started.get(stream=streams[1])[0]) < multiprocessors:
        time.sleep(0.01)


def run_case(held: int, seconds: float, lock: Path) -> dict[str, Any]:
    """Runs the step alone, and again while `held` multiprocessors are held.

    The file stays locked until the process ends.
    """
    import jax

    step = decode()
    fcntl.flock(os.open(lock, os.O_WRONLY | os.O_CREAT), fcntl.LOCK_EX)
    step()
    expected = step()
    hold(held, seconds)
    begin = time.perf_counter()
    try:
        result = {"bit_equal": bool((step() == expected).all()), "error": None}
    except jax.errors.JaxRuntimeError as error:
        result = {"bit_equal": None, "error": str(error).splitlines()[0][:200]}
    device = jax.devices()[0]
    return {
        "held_multiprocessors": held,
        "held_seconds": seconds,
        "device": device.device_kind,
        "multiprocessors": device.core_count,
        **result,
        "seconds": round(time.perf_counter() - begin, 2),
    }


def case_in_process(held: int, seconds: float, lock: Path) -> dict[str, Any]:
    """`run_case` in a new process, which is stopped after a minute."""
    command = [sys.executable, __file__, "--case", str(held), str(seconds), str(lock)]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command,
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"held_multiprocessors": held, "held_seconds": seconds, "hung": True}
    lines = done.stdout.splitlines()
    row: dict[str, Any] = json.loads(lines[-1]) if lines else {"stderr": done.stderr[-2000:]}
    return row


def record(lock: Path) -> dict[str, Any]:
    """The rows of all cases, with the command, the date and the driver."""
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        check=True,
        capture_output=True,
        text=True,
    )
    with ThreadPoolExecutor(len(CASES)) as pool:
        rows = list(pool.map(lambda case: case_in_process(*case, lock), CASES))
    return {
        "command": "PYTHONPATH=. python tests/gpu/starve_persistent_kernel.py OUT.json",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "driver": driver.stdout.strip(),
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT.json")
    parser.add_argument("lock", nargs="?", type=Path, metavar="LOCK")
    # What the process of a case gets.
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        held, seconds, lock = options.case
        sys.stdout.write(json.dumps(run_case(int(held), float(seconds), Path(lock))) + "\n")
        sys.stdout.flush()
        os._exit(0)  # After a launch that failed, jax cannot free its buffers.
    if options.out is None:
        parser.error("expected OUT.json")
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(record(options.lock or Path(folder) / "lock"), indent=1)
    options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
