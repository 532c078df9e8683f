"""Records the GPU memory that a jax process takes outside XLA's allocator, step by step.

    python tests/gpu/record_outside_memory.py OUT.json

Needs a GPU that runs nothing else. Each stage is what one library or feature adds when it is first
used; the pool of XLA's allocator is subtracted. NVML counts the memory, since it needs no CUDA
context. The result is the source of `xlapipe/devices/targets/outside_memory.json`.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# No autotuning: it loads kernels that the program does not keep, and takes time.
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"

MIB = 2**20


class Nvml:
    """Memory of GPU 0 as NVML counts it."""

    class _Memory(ctypes.Structure):
        _fields_ = (
            ("total", ctypes.c_ulonglong),
            ("free", ctypes.c_ulonglong),
            ("used", ctypes.c_ulonglong),
        )

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        assert self._library.nvmlInit_v2() == 0
        self._device = ctypes.c_void_p()
        assert self._library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device)) == 0

    def memory(self) -> "Nvml._Memory":
        memory = self._Memory()
        assert self._library.nvmlDeviceGetMemoryInfo(self._device, ctypes.byref(memory)) == 0
        return memory

    def driver(self) -> str:
        text = ctypes.create_string_buffer(96)
        assert self._library.nvmlSystemGetDriverVersion(text, 96) == 0
        return text.value.decode()


def stages() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(name, what it does, the call) in the order of the record."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    half = jnp.bfloat16

    def block(value: Any) -> Any:
        return jax.block_until_ready(value)

    yield "context", "the CUDA context, and XLA's streams and events", jax.devices
    yield (
        "first kernel",
        "the first program: jax.random.normal",
        lambda: block(jax.random.normal(key, (4096, 4096), half)),
    )
    x = jax.random.normal(key, (4096, 4096), half)
    f32 = x.astype(jnp.float32)
    yield "cublas", "a matrix product in bfloat16", lambda: block(jax.jit(jnp.matmul)(x, x))
    yield (
        "cublas float32",
        "a matrix product in float32",
        lambda: block(jax.jit(jnp.matmul)(f32, f32)),
    )
    image, kernel = jnp.ones((32, 64, 56, 56), half), jnp.ones((64, 64, 3, 3), half)
    convolution = jax.jit(lambda a, b: jax.lax.conv(a, b, (1, 1), "SAME"))
    yield "cudnn", "a convolution in bfloat16", lambda: block(convolution(image, kernel))
    heads = jnp.ones((4, 1024, 16, 64), half)
    attention = jax.jit(
        lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn", is_causal=True)
    )
    yield "cudnn attention", "dot_product_attention with cuDNN", lambda: block(attention(heads))
    small = f32[:1024, :1024]
    yield (
        "cusolver",
        "Cholesky, QR and SVD of 1024×1024",
        lambda: block(
            jax.jit(lambda a: (jnp.linalg.cholesky(a @ a.T), jnp.linalg.qr(a), jnp.linalg.svd(a)))(
                small
            )
        ),
    )
    yield "cufft", "a two-dimensional FFT", lambda: block(jax.jit(jnp.fft.fft2)(f32))

    def programs(count: int) -> None:
        """Programs with other constants and shapes, so that each has its own code."""
        for number in range(count):
            value = jnp.ones((256 + number, 512))
            block(
                jax.jit(lambda a, n=number: jnp.tanh(a * n).sum(0) + jnp.sort(a, axis=1)[0])(value)
            )

    yield "20 programs", "20 programs of a few fused kernels each", lambda: programs(20)

    def large_program() -> None:
        """A program of many kernels, whose CUDA graph is instantiated in the second run."""

        def chain(a: Any) -> Any:
            for number in range(150):
                a = jax.lax.optimization_barrier(jnp.roll(jnp.sin(a), number, axis=0))
            return a

        step = jax.jit(chain)
        for _ in range(3):
            block(step(jnp.ones((512, 512))))

    yield "CUDA graph", "a program of 150 kernels in CUDA graphs, run three times", large_program


def main(out: Path) -> None:
    nvml = Nvml()
    before = nvml.memory()
    record: dict[str, Any] = {
        "driver": nvml.driver(),
        "total_bytes": before.total,
        "used_before_bytes": before.used,
        "stages": [],
    }
    import jax

    outside = 0
    for name, about, call in stages():
        started = time.monotonic()
        try:
            call()
            error = None
        except Exception as failure:  # noqa: BLE001 - the record lists what failed
            error = str(failure)[:300]
        device = jax.devices()[0]
        stats = device.memory_stats()
        pool = stats.get("pool_bytes") or 0
        total = nvml.memory().used - before.used - pool
        entry = {
            "name": name,
            "about": about,
            "added_bytes": total - outside,
            "outside_bytes": total,
            "pool_bytes": pool,
            "limit_bytes": stats.get("bytes_limit"),
            "error": error,
            "seconds": round(time.monotonic() - started, 2),
        }
        outside = total
        record["stages"].append(entry)
        record["device"] = device.device_kind
        record["versions"] = {"jax": jax.__version__, "jaxlib": jax.lib.__version__}
        record["fraction"] = os.environ.get("XLA_CLIENT_MEM_FRACTION", "0.75")
        out.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{name:16} {total / MIB:10.1f} MiB outside, {error or 'ok'}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
