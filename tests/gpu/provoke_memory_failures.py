"""Provokes memory failures of a GPU, each in a separate process, and keeps what they print.

    python tests/gpu/provoke_memory_failures.py all OUT [NAME...]

writes OUT/NAME.log for each case, or for those that are named. Needs a GPU of 100 GiB or more that
runs nothing else.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

CASES: dict[str, tuple[Callable[[], None], dict[str, str]]] = {}


def case(**environment: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Registers a case with its environment variables."""

    def add(function: Callable[[], None]) -> Callable[[], None]:
        CASES[function.__name__] = (function, environment)
        return function

    return add


GIB = 2**30


def floats(gib: float) -> int:
    """The number of float32 in so many GiB."""
    return int(gib * GIB // 4)


@case(XLA_CLIENT_MEM_FRACTION="0.10")
def arguments_too_large() -> None:
    import jax
    import numpy as np

    host = np.zeros(floats(2), np.float32)
    arrays = [jax.block_until_ready(jax.device_put(host)) for _ in range(20)]
    print(len(arrays))


@case(XLA_CLIENT_MEM_FRACTION="0.10")
def temp_too_large() -> None:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def make_temp(x: Any) -> Any:
        y = jnp.outer(x, x)
        z = jax.lax.optimization_barrier(y)
        w = jax.lax.optimization_barrier(z @ y)
        return (z * w).sum()

    print(make_temp(jnp.ones(60_000)))


@case(XLA_CLIENT_MEM_FRACTION="0.10")
def fragmentation() -> None:
    import jax
    import jax.numpy as jnp

    make = jax.jit(lambda: jnp.zeros(floats(0.5), jnp.float32))
    chunks = []
    try:
        while True:
            chunks.append(jax.block_until_ready(make()))
    except jax.errors.JaxRuntimeError as error:
        print("full after", len(chunks), "chunks of 0.5 GiB", str(error)[:60])
    del chunks[::2]
    big = jax.jit(lambda: jnp.zeros(floats(2), jnp.float32))
    jax.block_until_ready(big())


HOLD = """
import sys
import jax, jax.numpy as jnp
x = jax.block_until_ready(jnp.zeros(16)); print("holding", flush=True); sys.stdin.read()
"""


def beside_another(fraction: str, run: Callable[[], None]) -> None:
    """Runs a case while another process holds its share of the memory."""
    env = {**os.environ, "XLA_CLIENT_MEM_FRACTION": fraction}
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    try:
        print("the other process:", other.stdout.readline().strip(), flush=True)
        run()
    finally:
        other.kill()


@case()
def preallocation_of_two_processes() -> None:
    """Another process holds three quarters of the memory; this one takes its own three quarters."""

    def run() -> None:
        import jax
        import jax.numpy as jnp

        make = jax.jit(lambda: jnp.zeros(floats(50), jnp.float32))
        jax.block_until_ready(make())

    beside_another("0.75", run)


@case(XLA_CLIENT_MEM_FRACTION="0.10")
def autotuning_scratch() -> None:
    import jax
    import jax.numpy as jnp

    held = jax.block_until_ready(jnp.zeros(floats(11.5), jnp.float32))  # noqa: F841
    a = jax.ShapeDtypeStruct((20_000, 20_000), jnp.bfloat16)
    jax.jit(lambda x, y: jax.nn.relu(x @ y)).lower(a, a).compile()


@case(XLA_CLIENT_MEM_FRACTION="0.10")
def leaked_references() -> None:
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda x: x * 1.0001)
    history, x = [], jnp.ones(floats(0.25), jnp.float32)
    for _ in range(200):
        x = jax.block_until_ready(step(x))
        history.append(x)


@case(XLA_CLIENT_MEM_FRACTION="0.998")
def libraries_without_room() -> None:
    import jax
    import jax.numpy as jnp

    x = jnp.ones((4096, 4096), jnp.float32)
    print(jnp.linalg.svd(x)[1][0])
    image, kernel = jnp.ones((64, 64, 128, 128)), jnp.ones((64, 64, 3, 3))
    print(jax.lax.conv(image, kernel, (1, 1), "SAME").sum())


@case(XLA_CLIENT_MEM_FRACTION="0.05")
def temp_too_large_at_execution() -> None:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def make_temp(x: Any) -> Any:
        y = jax.lax.optimization_barrier(x[:, None] * x[None, :])
        z = jax.lax.optimization_barrier(jnp.sin(y))
        return (jnp.roll(z, 1, axis=0) * y[::-1]).sum()

    print(make_temp(jnp.ones(60_000)))


@case(XLA_CLIENT_MEM_FRACTION="0.05")
def outputs_too_large() -> None:
    import jax
    import jax.numpy as jnp

    make = jax.jit(lambda x: tuple(x * number for number in range(1, 5)))
    print(len(jax.block_until_ready(make(jnp.ones(floats(1.6), jnp.float32)))))


@case(XLA_CLIENT_MEM_FRACTION="0.05")
def autotuning_of_a_convolution() -> None:
    import jax
    import jax.numpy as jnp

    image = jax.ShapeDtypeStruct((256, 256, 256, 256), jnp.float32)
    kernel = jax.ShapeDtypeStruct((256, 256, 3, 3), jnp.float32)
    jax.jit(lambda a, b: jax.lax.conv(a, b, (1, 1), "SAME")).lower(image, kernel).compile()


@case(XLA_CLIENT_MEM_FRACTION="0.05", TF_CPP_MIN_LOG_LEVEL="0")
def fragmentation_with_statistics() -> None:
    import jax
    import jax.numpy as jnp

    make = jax.jit(lambda: jnp.zeros(floats(0.25), jnp.float32))
    chunks = [jax.block_until_ready(make()) for _ in range(26)]
    del chunks[::2]
    big = jax.jit(lambda: jnp.zeros(floats(1.5), jnp.float32))
    jax.block_until_ready(big())


@case(XLA_CLIENT_MEM_FRACTION="0.05", TF_CPP_MIN_LOG_LEVEL="0")
def leaked_references_with_statistics() -> None:
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda x: x * 1.0001)
    history, x = [], jnp.ones(floats(0.5), jnp.float32)
    for _ in range(50):
        x = jax.block_until_ready(step(x))
        history.append(x)


@case(XLA_PYTHON_CLIENT_ALLOCATOR="cuda_async", XLA_CLIENT_MEM_FRACTION="0.10")
def cuda_async_allocator() -> None:
    import jax
    import jax.numpy as jnp

    make = jax.jit(lambda: jnp.zeros(floats(30), jnp.float32))
    arrays = [jax.block_until_ready(make()) for _ in range(6)]
    print(len(arrays))


@case(XLA_PYTHON_CLIENT_ALLOCATOR="platform")
def platform_allocator() -> None:
    import jax
    import jax.numpy as jnp

    make = jax.jit(lambda: jnp.zeros(floats(30), jnp.float32))
    arrays = [jax.block_until_ready(make()) for _ in range(6)]
    print(len(arrays))


# Cases that take more than their share of the GPU's memory.
ALONE = (
    "preallocation_of_two_processes",
    "cuda_async_allocator",
    "platform_allocator",
    "libraries_without_room",
)


def start(out: Path, name: str) -> "subprocess.Popen[bytes]":
    """Starts a case; its output goes into a file."""
    with (out / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, __file__, name],
            env={**os.environ, **CASES[name][1]},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def finish(name: str, process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Waits for a case, and prints its exit code."""
    try:
        print(name, process.wait(seconds), flush=True)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        print(name, "took too long", flush=True)


def run_all(out: Path, names: Collection[str]) -> None:
    """Runs the cases that share the GPU together, the others one after another."""
    out.mkdir(parents=True, exist_ok=True)
    running = [(name, start(out, name)) for name in names if name not in ALONE]
    for name, process in running:
        finish(name, process, 60)
    for name in ALONE:
        if name in names:
            finish(name, start(out, name), 60)


if __name__ == "__main__":
    if sys.argv[1] == "all":
        run_all(Path(sys.argv[2]), sys.argv[3:] or CASES)
    else:
        CASES[sys.argv[1]][0]()
