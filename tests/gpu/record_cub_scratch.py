"""Records CUB's scratch bytes for many sorts, as XLA gets them from the attached GPU.

    python tests/gpu/record_cub_scratch.py OUT.json

Each sort is compiled, not run. `OUT.json` has one row per key width, value width and shape;
`tests/gpu/cub_scratch.json` holds the rows of an H200 and of an H100, which are the same.
"""

import json
import math
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_CALL = re.compile(r"= \(([^=]*?)\) custom-call\([^=]*custom_call_target=\"[^\"]*cub_sort")
_ARRAY = re.compile(r"\b[a-z]+(\d+)\[([\d,]*)\]")
ROWS = (
    *(600, 1000, 2049, 4097, 9000, 22_001, 30_001, 65_536, 100_003, 131_073, 262_145, 400_000),
    *(1 << 20, (1 << 20) + 1, 1_500_000, 3 << 20, 5_000_017, 1 << 24, 50_000_003, 1 << 26),
)
BATCHES = (
    *((2, 1301), (9, 1301), (20, 10_000), (40, 5000), (60, 9000), (64, 32_000), (89, 5000)),
    *((128, 8193), (100, 70_000), (256, 40_000), (1000, 20_000), (4096, 4096)),
    *((33, 65_537), (57, 131_073)),
)
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
KEYS = FLOATS + INTEGERS
PAIR_KEYS = ["uint8", "uint16", "uint32", "uint64", "int32", "float32"]
VALUES = ["int16", "int32", "float32", "float64", "bfloat16", "int64"]

Case = tuple[str, str | None, tuple[int, ...]]


def cases() -> list[Case]:
    some = (22_001, 200_000, 1 << 20, 5_000_017)
    return [
        *((key, None, (size,)) for key in KEYS for size in ROWS),
        *((key, None, shape) for key in KEYS for shape in BATCHES),
        *((key, value, (size,)) for key in PAIR_KEYS for value in VALUES for size in some),
        *(("int32", "int32", shape) for shape in BATCHES),
        *(("uint16", "float32", shape) for shape in BATCHES),
    ]


def row_of(case: Case) -> tuple[int, int, int, int, int] | None:
    """Key bytes, value bytes, items, batch and scratch bytes; None if XLA does not use CUB."""
    key, value, shape = case
    arrays = [jax.ShapeDtypeStruct(shape, getattr(jnp, name)) for name in (key, value) if name]

    def sort(*operands: Any) -> Any:
        return lax.sort(operands, num_keys=1, is_stable=False)

    match = _CALL.search(jax.jit(sort).lower(*arrays).compile().as_text())
    if match is None:
        return None
    *operands, (_, scratch) = _ARRAY.findall(match[1])
    widths = [int(bits) // 8 for bits, _ in operands]
    batch = shape[0] if len(shape) > 1 else 1
    return widths[0], widths[1] if len(widths) > 1 else 0, math.prod(shape), batch, int(scratch)


def main(out: str) -> None:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = sorted({row for row in pool.map(row_of, cases()) if row is not None})
    device = jax.devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    record = {"device": device.device_kind, "allocator_limit_bytes": limit, "rows": rows}
    Path(out).write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
