"""XLA options that decide between memory and time."""

from collections.abc import Iterator

from xlapipe.choosing.candidate import Change
from xlapipe.compiling.job import XlaOption

_OPTIONS: tuple[tuple[str, XlaOption, str], ...] = (
    ("xla_gpu_enable_latency_hiding_scheduler", True, "hide the latency of collectives"),
    ("xla_gpu_enable_triton_gemm", False, "leave all matrix products to cuBLAS"),
    ("xla_gpu_memory_limit_slop_factor", 10_000, "let XLA rematerialise nothing"),
)


def option_changes() -> Iterator[Change]:
    """One change for each option."""
    for name, value, text in _OPTIONS:
        code = f"jax.jit(step, compiler_options={{{name!r}: {value!r}}})\n"
        yield Change(f"{text} ({name}={value})", code, options={name: value})
