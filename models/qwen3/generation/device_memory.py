"""Memory of the device: its limit, its peak, and whether a generation's plan fits."""

from models.qwen3.argument_bytes import cache_bytes, weight_bytes
from models.qwen3.config import Qwen3Config
from models.qwen3.generation.compiled_steps import CompiledGeneration
from models.qwen3.generation.jax_device import JaxDevice
from xlapipe import XlapipeError


def memory_limit(device: JaxDevice) -> int | None:
    """Bytes that this process can still allocate; None if the device, e.g. a CPU, has no limit."""
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))


def check_fits(config: Qwen3Config, compiled: CompiledGeneration, limit_bytes: int | None) -> None:
    """Checks that the compiled steps fit in `limit_bytes`; None means no limit.

    Raises:
      XlapipeError: they need more; states the bytes of each part.
    """
    needed, sizes = compiled.needed_bytes, compiled.sizes
    if limit_bytes is None or needed <= limit_bytes:
        return
    weights = weight_bytes(config)
    cache = cache_bytes(config, batch=sizes.batch, cache_length=sizes.cache_length)
    raise XlapipeError(
        f"the model does not fit the device: needs {needed:,} B (weights {weights:,} B in "
        f"{config.dtype}, cache {cache:,} B for {sizes.batch} × {sizes.cache_length:,} slots, "
        f"{needed - weights - cache:,} B of other memory), available {limit_bytes:,} B, "
        f"{needed - limit_bytes:,} B too few; fix: fewer prompts at once, a shorter "
        "--cache-length, --dtype bfloat16, or another device"
    )


def peak_bytes(device: JaxDevice) -> int | None:
    """The most bytes that were in use at a time; None if the device does not report it."""
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return None if peak is None else int(peak)
