"""Whether a generation fits the device, told from the plan before weights are read."""

from typing import Any

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.programs import Programs
from models.qwen3.sizes import cache_bytes, weight_bytes
from xlapipe.errors import XlapipeError


def memory_limit(device: Any) -> int | None:
    """Bytes that are left to this process; None where the device does not tell, as a CPU."""
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))


def refuse_unless_fits(config: Qwen3Config, programs: Programs, limit_bytes: int | None) -> None:
    """Holds what the compiled programs need against the limit; None holds nothing.

    Raises:
      XlapipeError: they need more; with the bytes of each part.
    """
    needed, sizes = programs.needed_bytes, programs.sizes
    if limit_bytes is None or needed <= limit_bytes:
        return
    weights = weight_bytes(config)
    cache = cache_bytes(config, batch=sizes.batch, cache_length=sizes.cache_length)
    raise XlapipeError(
        f"the model does not fit the device: {needed:,} B are needed (weights {weights:,} B in "
        f"{config.dtype}, cache {cache:,} B for {sizes.batch} × {sizes.cache_length:,} slots, "
        f"{needed - weights - cache:,} B for computing), {limit_bytes:,} B are there, "
        f"{needed - limit_bytes:,} B too few; try fewer prompts at once, a shorter "
        "--cache-length, --dtype bfloat16, or another device"
    )


def peak_bytes(device: Any) -> int | None:
    """The most that was in use at once; None where the device does not tell."""
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return None if peak is None else int(peak)
