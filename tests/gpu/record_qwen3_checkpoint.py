"""Runs the command on a checkpoint of a large model in fresh processes; writes the record.

    PYTHONPATH=. python tests/gpu/record_qwen3_checkpoint.py OUT.json FOLDER EXECUTABLES [SIZE]

Needs a GPU, and executables of `--build-executables` for prompts of PROMPT tokens of SIZE, by
default 8b. Writes a checkpoint into FOLDER, in 16 files, whose values are those of one array of
normal numbers, from another offset for each tensor: numpy would need minutes for 16 GB. Two runs
read it from the page cache, and a third after the files were dropped from there.
"""

import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from provenance import provenance

from models.qwen3.checkpoint import random_checkpoint
from models.qwen3.checkpoint.leaf_tensors import leaves
from models.qwen3.config import CONFIGS, Qwen3Config

PROMPT, NEW_TOKENS = 2000, 64
FIGURES = (
    "load_seconds",
    "prefill_seconds",
    "first_token_seconds",
    "tokens_per_second",
    "peak_bytes",
    "planned_bytes",
    "timeline_seconds",
    "implementations",
    "cache_length",
)


def repeated_tensors(config: Qwen3Config, seed: int) -> Iterator[tuple[str, Any]]:
    """As `random_checkpoint.random_tensors`, but matrices share their values."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(1 << 24, np.float32)
    scaled: dict[int, Any] = {}
    offset = 0
    for name, shape in sorted(pair for leaf in leaves(config) for pair in leaf.tensors):
        if len(shape) == 1:
            scales = rng.random(shape, np.float32) + np.float32(0.5)
            yield name, scales.astype(ml_dtypes.bfloat16)
            continue
        columns = shape[1]
        if columns not in scaled:
            scaled[columns] = (normal / np.float32(math.sqrt(columns))).astype(ml_dtypes.bfloat16)
        offset = (offset + 7919) % len(normal)
        yield name, np.resize(np.roll(scaled[columns], offset), shape)


def for_each_file(folder: Path, act: Any) -> None:
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        act(descriptor)
        os.close(descriptor)


def run(folder: Path, executables: Path, weights_in: str) -> dict[str, Any]:
    ids = random.Random(0).sample(range(300, 150_000), PROMPT)
    command = ["-m", "models.qwen3.generate", "--checkpoint", str(folder), "--json"]
    command += ["--executables", str(executables), "--max-new-tokens", str(NEW_TOKENS)]
    command += ["--prompt-ids", ",".join(map(str, ids))]
    done = subprocess.run(
        [sys.executable, *command], check=True, capture_output=True, text=True, timeout=120
    )
    result = json.loads(done.stdout)
    print(weights_in, {name: result[name] for name in FIGURES}, flush=True)
    return {"weights_in": weights_in, **{name: result[name] for name in FIGURES}}


def main(out: str, folder: str, executables: str, size: str = "8b") -> None:
    checkpoint = Path(folder)
    random_checkpoint.random_tensors = repeated_tensors
    started = time.monotonic()
    random_checkpoint.write_random_checkpoint(checkpoint, CONFIGS[size], shards=16)
    print(f"written in {time.monotonic() - started:.1f} s", flush=True)
    for_each_file(checkpoint, os.fsync)
    runs = [run(checkpoint, Path(executables), "page cache") for _ in range(2)]
    for_each_file(checkpoint, lambda it: os.posix_fadvise(it, 0, 0, os.POSIX_FADV_DONTNEED))
    runs.append(run(checkpoint, Path(executables), "disk"))
    record = provenance({"jax": jax.__version__}) | {
        "size": size,
        "prompt_tokens": PROMPT,
        "checkpoint_bytes": sum(path.stat().st_size for path in checkpoint.iterdir()),
        "runs": runs,
    }
    Path(out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
