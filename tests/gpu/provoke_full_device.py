"""Provokes failures of libraries on a GPU without free memory, and keeps what they print.

    python tests/gpu/provoke_full_device.py all OUT [--after FILE]

Every case is a process that compiles its program while memory is free. Then another process takes
all memory that is left on the device, and the cases run. OUT/NAME.log has the output of each. With
`--after` the memory is taken once FILE exists. Needs a GPU that others do not use.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES: dict[str, Callable[[], Callable[[], Any]]] = {}
_ENVIRONMENT = {
    "XLA_CLIENT_MEM_FRACTION": "0.02",
    "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false",
    "NCCL_DEBUG": "WARN",
    "PYTHONUNBUFFERED": "1",
}
_WAIT_SECONDS = 40


def case(prepare: Callable[[], Callable[[], Any]]) -> Callable[[], Callable[[], Any]]:
    """Registers a function that prepares a case and returns what to run without free memory."""
    CASES[prepare.__name__] = prepare
    return prepare


def compiled(function: Any, *arguments: Any) -> Callable[[], Any]:
    import jax

    program = jax.jit(function).lower(*arguments).compile()
    return lambda: jax.block_until_ready(program(*arguments))


@case
def kernel_code() -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    x = jax.block_until_ready(jnp.ones((1024, 1024)))

    def run() -> None:
        for number in range(200):
            jax.block_until_ready(jax.jit(lambda a, n=number: jnp.sort(a * n, axis=0))(x))

    return run


@case
def cublas_handle() -> Callable[[], Any]:
    import jax.numpy as jnp

    return compiled(jnp.matmul, jnp.ones((4096, 4096)), jnp.ones((4096, 4096)))


@case
def cudnn_convolution() -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    image, kernel = jnp.ones((16, 64, 56, 56)), jnp.ones((64, 64, 3, 3))
    return compiled(lambda a, b: jax.lax.conv(a, b, (1, 1), "SAME"), image, kernel)


@case
def cudnn_attention() -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    heads = jnp.ones((2, 512, 8, 64), jnp.bfloat16)
    return compiled(lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn"), heads)


@case
def cusolver_handle() -> Callable[[], Any]:
    import jax.numpy as jnp

    return compiled(jnp.linalg.svd, jnp.ones((512, 512)))


@case
def cufft_plan() -> Callable[[], Any]:
    import jax.numpy as jnp

    return compiled(jnp.fft.fft2, jnp.ones((4096, 4096)))


@case
def cuda_graph() -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    def chain(a: Any) -> Any:
        for number in range(400):
            a = jax.lax.optimization_barrier(jnp.roll(jnp.sin(a), number, axis=0))
        return a

    once = compiled(chain, jnp.ones((512, 512)))

    def run() -> None:
        for _ in range(4):
            once()

    return run


@case
def no_context() -> Callable[[], Any]:
    def run() -> None:
        import jax.numpy as jnp

        print(jnp.ones(8).sum())

    return run


@case
def nccl_communicator() -> Callable[[], Any]:
    import importlib.util

    import jax.numpy as jnp

    jnp.ones(8).block_until_ready()
    spec = importlib.util.find_spec("nvidia.nccl")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    paths = [path for folder in folders for path in Path(folder).rglob("libnccl.so.2")]
    nccl = ctypes.CDLL(str(paths[0]) if paths else "libnccl.so.2")

    def run() -> None:
        communicator, devices = ctypes.c_void_p(), (ctypes.c_int * 1)(0)
        code = nccl.ncclCommInitAll(ctypes.byref(communicator), 1, devices)
        nccl.ncclGetErrorString.restype = ctypes.c_char_p
        nccl.ncclGetLastError.restype = ctypes.c_char_p
        print("ncclCommInitAll:", code, nccl.ncclGetErrorString(code), nccl.ncclGetLastError(None))

    return run


def wait_for(path: Path, seconds: float = _WAIT_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path.name} after {seconds} s")
        time.sleep(0.02)


def run_case(name: str, folder: Path) -> None:
    """Prepares, waits until the device is full, and runs."""
    try:
        run = CASES[name]()
    finally:
        (folder / f"{name}.ready").touch()
    wait_for(folder / "full")
    run()
    print("the run survived", flush=True)


def fill(folder: Path) -> None:
    """Takes all free memory of the device until `folder/done` exists."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, device, address = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_ulonglong()
    assert driver.cuInit(0) == 0
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    size, taken = 2**34, 0
    while size >= 2**10:
        if driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0:
            taken += size
        else:
            size //= 2
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    print(f"took {taken:,} bytes, {free.value:,} of {total.value:,} are free", flush=True)
    (folder / "full").touch()
    wait_for(folder / "done", 60)


def start(out: Path, *arguments: str, log: str) -> "subprocess.Popen[bytes]":
    with (out / log).open("wb") as file:
        return subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env={**os.environ, **_ENVIRONMENT},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def run_all(out: Path, after: Path | None) -> None:
    folder = out / "signals"
    folder.mkdir(parents=True, exist_ok=True)
    running = {name: start(out, name, str(folder), log=f"{name}.log") for name in CASES}
    for name in CASES:
        wait_for(folder / f"{name}.ready")
    if after is not None:
        wait_for(after)
    filler = start(out, "fill", str(folder), log="filler.txt")
    for name, process in running.items():
        try:
            print(name, process.wait(20), flush=True)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            print(name, "took too long", flush=True)
    (folder / "done").touch()
    print((out / "filler.txt").read_text(), filler.wait(10), flush=True)


if __name__ == "__main__":
    command, path, *rest = sys.argv[1:]
    if command == "all":
        run_all(Path(path), Path(rest[1]) if rest else None)
    elif command == "fill":
        fill(Path(path))
    else:
        run_case(command, Path(path))
