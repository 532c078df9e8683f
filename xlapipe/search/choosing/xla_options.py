"""XLA options that decide between memory and time."""

from collections.abc import Iterator

from xlapipe.compile.job import XlaOption
from xlapipe.search.candidate import Change
from xlapipe.search.sizing.cliff import NO_LIMIT

_OPTIONS: tuple[tuple[str, XlaOption, str], ...] = (
    ("xla_gpu_enable_latency_hiding_scheduler", True, "hide the latency of collectives"),
    ("xla_gpu_enable_triton_gemm", False, "leave all matrix products to cuBLAS"),
)


def option_changes() -> Iterator[Change]:
    """One change for each option."""
    for name, value, text in _OPTIONS:
        yield _change(name, value, text)


def without_limit() -> Change:
    """XLA's own rematerialisation switched off: as if the device had a hundred times its memory."""
    ((name, value),) = NO_LIMIT.items()
    return _change(name, value, "let XLA rematerialise nothing")


def _change(name: str, value: XlaOption, text: str) -> Change:
    code = f"jax.jit(step, compiler_options={{{name!r}: {value!r}}})\n"
    return Change(f"{text} ({name}={value})", code, options={name: value})
