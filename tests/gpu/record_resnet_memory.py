"""Compares the memory that steps of ResNet-50 with 2 bits take on a GPU with their plans.

    PYTHONPATH=. python tests/gpu/record_resnet_memory.py OUT.json [BATCH | BATCH/BLOCKS]…

BLOCKS is the number of blocks of each stage, by default those of ResNet-50: `4096/1` has one block.

For each size a process compiles the training step there, and another one loads the executable,
takes two steps and reports the peak of jax's allocator: XLA, which tunes convolutions while it
compiles, allocates more for that than a step takes. Another first step, from an equal state, must
give the first one's bits. Images of each batch after 2,048 repeat the first 2,048, so that the
update of the largest batch must be that of 2,048 images: a multiple of them has the same moments in
every batch norm and the same mean gradient. From 2,675 images on, activations have 2³¹ elements or
more.
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from provenance import provenance

from models.compressed_resnet.sizes import ResNetConfig
from models.compressed_resnet.step import abstract_state, initial_state, train_step
from xlapipe.devices.environment.machine import Machine

CONFIG = ResNetConfig(classes=100, bits=2)
# XLA tunes convolutions for minutes with large batches, so the largest is of one block.
SIZES = ("256", "2048", "2048/1", "4096/1")
# Images that differ.
DISTINCT = 2048


def parsed(size: str) -> tuple[int, ResNetConfig]:
    """Number of images, and the network."""
    batch, _, counts = size.partition("/")
    blocks = tuple(map(int, counts.split(","))) if counts else CONFIG.blocks
    return int(batch), replace(CONFIG, blocks=blocks)


def compile_step(size: str, file: Path) -> None:
    """Writes the executable of a size, and what its compile gave, to a file."""
    batch, config = parsed(size)
    images = jax.ShapeDtypeStruct((batch, config.image, config.image, 3), jnp.bfloat16)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    started = time.monotonic()
    step = jax.jit(train_step(config), donate_argnums=0)
    executable = step.lower(abstract_state(config), images, labels).compile()
    compile_seconds = time.monotonic() - started
    analysis = executable.memory_analysis()
    figures = {
        "batch": batch,
        "blocks": config.blocks,
        "plan_bytes": analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
        - analysis.alias_size_in_bytes,
        "temp_bytes": analysis.temp_size_in_bytes,
        "compile_seconds": round(compile_seconds, 1),
    }
    file.write_bytes(pickle.dumps((figures, serialize(executable))))


def step_figures(size: str, file: Path, momentum: Path) -> dict[str, Any]:
    """Peak and losses of two steps; the momentum after the first goes to a file.

    Another first step is then compared with it.
    """
    batch, config = parsed(size)
    # Written by `compile_step`.
    figures, parts = pickle.loads(file.read_bytes())
    executable = deserialize_and_load(*parts)
    losses, seconds = [], []
    state, arrays = first_state(config), batch_of(batch)
    device = jax.devices("gpu")[0]
    for number in range(2):
        started = time.monotonic()
        state, metrics = executable(state, *arrays)
        losses.append(float(metrics["loss"]))
        seconds.append(time.monotonic() - started)
        if number == 0:
            first = jax.tree.map(np.asarray, state)
            leaves = jax.tree.leaves(first["optimizer"])
            np.save(momentum, np.concatenate([leaf.ravel() for leaf in leaves]))
    peak_bytes = device.memory_stats()["peak_bytes_in_use"]
    del state
    again, _ = executable(first_state(config), *arrays)
    bit_equal = [
        one.tobytes() == np.asarray(other).tobytes()
        for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True)
    ]
    return figures | {
        "peak_bytes": peak_bytes,
        "peak_over_plan": round(peak_bytes / figures["plan_bytes"], 5),
        "losses": losses,
        "step_seconds": seconds,
        "arrays_equal_in_another_run": sum(bit_equal),
        "arrays": len(bit_equal),
    }


def first_state(config: ResNetConfig) -> Any:
    """The state before training, but with no scale of a batch norm zero, so that no gradient is."""
    state = initial_state(config)
    for block in state["parameters"]["blocks"].values():
        block["conv3"]["scale"] = jnp.ones_like(block["conv3"]["scale"])
    return state


def batch_of(batch: int) -> tuple[jax.Array, jax.Array]:
    """Images and labels; those after `DISTINCT` repeat the first ones."""
    keys = jax.random.split(jax.random.key(0), 2)
    distinct = min(batch, DISTINCT)
    shape = (distinct, CONFIG.image, CONFIG.image, 3)
    images = jax.random.normal(keys[0], shape, jnp.bfloat16)
    labels = jax.random.randint(keys[1], (distinct,), 0, CONFIG.classes, jnp.int32)
    repeats = -(-batch // distinct)
    return jnp.concatenate([images] * repeats)[:batch], jnp.concatenate([labels] * repeats)[:batch]


def in_processes(size: str, momentum: Path) -> dict[str, Any]:
    """`step_figures` of a new process, whose peak has no other batch and no compile in it."""
    file = momentum.with_suffix(".pickle")
    for command in (["--compile", size, file], ["--step", size, file, momentum]):
        result = subprocess.run(
            [sys.executable, __file__, *map(str, command)],
            # Memory that is allocated when it is needed leaves room for the other processes.
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            print(result.stderr, file=sys.stderr, flush=True)
            return {"size": size, "error": result.stderr.strip().splitlines()[-1:]}
    figures: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    print(figures, flush=True)
    return figures


def update_comparison(one: Path, other: Path) -> dict[str, float]:
    """Relative difference and cosine of two updates."""
    a, b = (np.load(path).astype(np.float64) for path in (one, other))
    norm = float(np.linalg.norm(a))
    return {
        "relative_difference": float(np.linalg.norm(a - b)) / norm,
        "cosine": float(a @ b) / (norm * float(np.linalg.norm(b))),
    }


def repeats(sizes: list[str]) -> Iterator[tuple[str, str]]:
    """Sizes whose images repeat, each with the size of the same network without repetition."""
    for size in sizes:
        batch, config = parsed(size)
        for other in sizes:
            # Else some images count more often than others.
            whole = batch % DISTINCT == 0
            if batch > DISTINCT and whole and parsed(other) == (DISTINCT, config):
                yield size, other


def main(out: str, *sizes: str) -> None:
    """Writes the record."""
    if Machine.local().gpu() is None:
        sys.exit("needs a GPU")
    every = list(sizes or SIZES)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(every)) as pool:
        files = {size: Path(folder, f"{number}.npy") for number, size in enumerate(every)}
        steps = list(pool.map(in_processes, files, files.values()))
        repeated = [
            {"size": size, "compared_with": other, **update_comparison(files[other], files[size])}
            for size, other in repeats(every)
            if files[size].exists() and files[other].exists()
        ]
    record = provenance({"jax": jax.__version__})
    record |= {"steps": steps, "updates": repeated}
    Path(out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(repeated)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--compile", size, file]:
            compile_step(size, Path(file))
        case ["--step", size, file, momentum]:
            print(json.dumps(step_figures(size, Path(file), Path(momentum))))
        case arguments:
            main(*arguments)
