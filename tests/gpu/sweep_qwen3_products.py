"""Times forms of the products of Qwen3's steps, each in a loop over steps.

    PYTHONPATH=. python tests/gpu/sweep_qwen3_products.py OUT.json [KIND:SIZE…]

KIND is `single` (one sequence, by default) or `batch` (32 sequences).
Needs a GPU. One process for each KIND:SIZE compiles; one at a time is timed. Each layer of the loop
has other forms, and weights that are not in L2. A kernel's time is from the end of the one before
it to its own end, by profile: the start of a kernel overlaps the end of the one before it. Forms
that win when they run alone for a moment do not all win here, where the GPU's clock is lower.
"""

import fcntl
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench" / "gpu"))

import jax
import jax.numpy as jnp
from timing import driver_version

from models.qwen3.config import CONFIGS, Qwen3Config
from models.qwen3.kernels.batch_products import batch_product, batch_swiglu
from models.qwen3.kernels.decode_attention import decode_attention
from models.qwen3.kernels.matvec import matvec_add, norm_matvec, norm_swiglu
from models.qwen3.kernels.product_forms import (
    BatchForm,
    Form,
    batch_form_of,
    shapes_of,
)
from models.qwen3.kernels.rotation import rows_of
from models.qwen3.modules.norm import rms_norm
from xlapipe.dump.run_record import run_record
from xlapipe.run.profile import annotated_call, profile_calls

DEFAULTS = ("single:1.7b", "single:4b", "single:8b", "single:14b")
LAYER = ("qkv", "o", "gate_up", "down")
# Bytes of weights that alternate, at least; layers of a program; steps of a loop.
ROTATED_BYTES = 300_000_000
LAYERS = {"single": 12, "batch": 8}
# Times that each form is timed, at least.
REPETITIONS = {"single": 2, "batch": 1}
HEADS = 8
TRIPS = 14
# Of them, not counted.
SKIPPED = 3
SLOTS = 2048
BATCH = 32
EPS = 1e-6
# Shared memory of a multiprocessor, and what a block needs in addition to its own.
SHARED_BYTES, BLOCK_BYTES = 227 * 1024, 1024
MULTIPROCESSORS = 132
# For several sequences, bytes on their way to a multiprocessor, on average.
IN_FLIGHT = range(65_000, 215_000)

# One layer: `layer(number, x, weights, forms)`; weights and forms are by matrix.
Layer = Callable[[int, Any, Any, dict[str, Any]], Any]


def candidates(kind: str, name: str, config: Qwen3Config) -> list[Any]:
    """Forms of the matrix `name`."""
    outputs, inputs = shapes_of(config)[name]
    matrices = 2 if name == "gate_up" else 1
    if kind == "single":
        # 8 to 64 weights of each thread are in flight.
        return [
            Form(rows, columns, warps)
            for rows, columns, warps in product((1, 2, 4, 8), (512, 1024, 2048), (1, 2, 4, 8))
            if inputs % columns == 0
            and outputs // matrices % rows == 0
            and 8 <= rows * matrices * columns // (32 * warps) <= 64
            and columns // (32 * warps) >= 8
        ]
    splits = (1, 2) if name == "qkv" else (1, 2, 3, 4, 5, 6, 8)
    return list(_batch_candidates(outputs // matrices, inputs, matrices, splits))


def _batch_candidates(
    outputs: int, inputs: int, matrices: int, splits_of_columns: Sequence[int]
) -> Iterator[BatchForm]:
    """All programs run at once, with enough on its way to all multiprocessors."""
    yield batch_form_of((matrices * outputs, inputs), matrices)
    sizes = product((16, 32, 64, 128), (64, 128, 256), (4, 8), (3, 4, 5, 6, 8), splits_of_columns)
    for rows, columns, warps, stages, splits in sizes:
        shared = stages * (matrices * rows + BATCH) * columns * 2
        programs, steps = outputs // rows * splits, inputs // columns
        if (
            outputs % rows == inputs % columns == steps % splits == 0
            and steps // splits >= stages
            and (splits == 1 or matrices == 1)
            and matrices * rows >= 16 * warps
            and programs >= 0.9 * MULTIPROCESSORS
            and programs <= SHARED_BYTES // (shared + BLOCK_BYTES) * MULTIPROCESSORS
            and round(shared * (stages - 1) / stages * programs / MULTIPROCESSORS) in IN_FLIGHT
        ):
            yield BatchForm(rows, columns, warps, stages, splits)


def single_layer(config: Qwen3Config, position: Any, caches: list[Any]) -> Layer:
    """With attention; writes into the caches of the list."""
    scale = jnp.ones(config.hidden_size, jnp.bfloat16)
    head_scale = jnp.ones(config.head_dim, jnp.bfloat16)
    arrived = jnp.zeros(config.num_attention_heads, jnp.int32)
    rotation = rows_of(position, head_dim=config.head_dim, theta=config.rope_theta)

    def layer(number: int, x: Any, weights: Any, forms: dict[str, Any]) -> Any:
        place = number % len(caches)
        with jax.named_scope("qkv"):
            y = norm_matvec(x, scale, weights["qkv"], eps=EPS, form=forms["qkv"])
        y, *written, _ = decode_attention(
            *(y, head_scale, head_scale, rotation, position, *caches[place], arrived),
            eps=EPS,
            by_head=True,
        )
        caches[place] = tuple(written)
        with jax.named_scope("o"):
            x = matvec_add(y, weights["o"], x, form=forms["o"])
        with jax.named_scope("gate_up"):
            y = norm_swiglu(x, scale, weights["gate_up"], eps=EPS, form=forms["gate_up"])
        with jax.named_scope("down"):
            return matvec_add(y, weights["down"], x, form=forms["down"])

    return layer


def batch_layer(config: Qwen3Config) -> Layer:
    """Without attention; carries the residual stream and its norm.

    Additions of partial sums and norms count for the product before them.
    """
    scale = jnp.ones(config.hidden_size, jnp.bfloat16)

    def added(x: Any, parts: Any) -> tuple[Any, Any]:
        x = (x.astype(jnp.float32) + jnp.sum(parts, axis=0)).astype(x.dtype)
        return x, rms_norm(x, scale, EPS)

    def layer(number: int, carried: Any, weights: Any, forms: dict[str, Any]) -> Any:
        x, normed = carried
        with jax.named_scope("qkv"):
            qkv = batch_product(normed, weights["qkv"], form=forms["qkv"])[0]
        attended = qkv[:, : config.q_size].astype(x.dtype)
        with jax.named_scope("o"):
            x, normed = added(x, batch_product(attended, weights["o"], form=forms["o"]))
        with jax.named_scope("gate_up"):
            activated = batch_swiglu(normed, weights["gate_up"], form=forms["gate_up"])
        with jax.named_scope("down"):
            return added(x, batch_product(activated, weights["down"], form=forms["down"]))

    return layer


def loop_of(
    config: Qwen3Config, kind: str, numbers: range, forms: dict[str, list[Any]]
) -> Callable[..., Any]:
    """`fn(x, layers, caches, position)`: TRIPS steps of the layers with these numbers."""

    def run(x: Any, layers: Any, caches: Any, position: Any) -> Any:
        def trip(_: Any, carried: Any) -> Any:
            x, caches = carried
            caches = list(caches)
            if kind == "single":
                layer = single_layer(config, position, caches)
            else:
                layer = batch_layer(config)
            for number in numbers:
                own = {name: forms[name][number % len(forms[name])] for name in LAYER}
                with jax.named_scope(f"layer{number}"):
                    x = layer(number, x, layers[number % len(layers)], own)
            return x, caches

        return jax.lax.fori_loop(0, TRIPS, trip, (x, caches))[0]

    return run


def loop_of_heads(numbers: range, forms: list[Form]) -> Callable[..., Any]:
    def run(x: Any, weight: Any) -> Any:
        scale = jnp.ones(x.shape, jnp.bfloat16)

        def trip(_: Any, x: Any) -> Any:
            for number in numbers:
                with jax.named_scope(f"layer{number}/head"):
                    logits = norm_matvec(x, scale, weight, eps=EPS, form=forms[number])
                x = x + 1e-9 * logits[: len(x)]
            return x

        return jax.lax.fori_loop(0, TRIPS, trip, x)

    return run


def profiled(executable: Any, *args: Any) -> dict[tuple[int, str], float]:
    """µs of the kernels of each matrix of each layer, from the end of the kernel before."""
    # XLA's instruction, and the layer and matrix that the source names.
    pattern = r"^ *(?:ROOT )?%?([\w.-]+) = .*op_name=\"[^\"]*?layer(\d+)/(?:[^\"]*?/)?(LAYER)/"
    pattern = pattern.replace("LAYER", "|".join((*LAYER, "head")))
    scopes = {
        instruction: (int(number), matrix)
        for instruction, number, matrix in re.findall(pattern, executable.as_text(), re.MULTILINE)
    }

    def call() -> None:
        with annotated_call():
            jax.block_until_ready(executable(*args))

    call()
    events = profile_calls(call, 1, device=0).events
    times: dict[tuple[int, str], dict[str, list[float]]] = {}
    for before, event in pairwise(events):
        if event.hlo_op in scopes:
            of_kernel = times.setdefault(scopes[event.hlo_op], {})
            of_kernel.setdefault(f"{event.hlo_op} {event.name}", []).append(
                (event.end_ns - before.end_ns) / 1e3
            )
    return {
        scope: sum(median(each[SKIPPED:] or each) for each in kernels.values())
        for scope, kernels in times.items()
    }


def timings(kind: str, config: Qwen3Config, lock: Path) -> Iterator[dict[str, Any]]:
    """µs of each form."""
    shapes = shapes_of(config)
    matrices = (*LAYER, "head") if kind == "single" else LAYER
    forms = {name: candidates(kind, name, config) for name in matrices}
    key = jax.random.key(0)

    def random(*shape: int) -> jax.Array:
        return 0.02 * jax.random.normal(key, shape, jnp.bfloat16)

    layer_bytes = sum(2 * shapes[name][0] * shapes[name][1] for name in LAYER)
    layers = [
        {name: random(*shapes[name]) for name in LAYER}
        for _ in range(max(2, -(-ROTATED_BYTES // layer_bytes)))
    ]
    cache = (1, config.num_key_value_heads, SLOTS, config.head_dim)
    caches = [(random(*cache), random(*cache)) for _ in range(8 if kind == "single" else 0)]
    position = jnp.zeros(1, jnp.int32)
    x = jnp.ones(config.hidden_size)
    if kind != "single":
        x = (50 * random(BATCH, config.hidden_size),) * 2
    count = REPETITIONS[kind] * max(len(forms[name]) for name in LAYER)
    size = LAYERS[kind]
    lowered = [
        (jax.jit(loop_of(config, kind, numbers, forms)), (x, layers, caches, position))
        for numbers in (range(i, min(i + size, count)) for i in range(0, count, size))
    ]
    if kind == "single":
        head = random(*shapes["head"])
        groups = [range(len(forms["head"]))[i : i + HEADS] for i in range(0, len(forms["head"]), 8)]
        lowered += [(jax.jit(loop_of_heads(group, forms["head"])), (x, head)) for group in groups]
    options = {"xla_gpu_enable_command_buffer": ""}
    with ThreadPoolExecutor(6) as pool:
        executables = list(
            pool.map(lambda it: it[0].lower(*it[1]).compile(compiler_options=options), lowered)
        )
    with Locked(lock):
        for executable, (_, args) in zip(executables, lowered, strict=True):
            for (number, name), microseconds in profiled(executable, *args).items():
                form = forms[name][number % len(forms[name])]
                text = ",".join(map(str, form))
                yield {"matrix": name, "form": text, "microseconds": microseconds}


class Locked:
    """Holds the lock that the processes of all sizes share."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w")

    def __enter__(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self.file.close()


def summary(timings: list[dict[str, Any]]) -> dict[str, Any]:
    """µs of each form by matrix, and the form with the least mean."""
    times: dict[str, dict[str, list[float]]] = {}
    for timing in timings:
        microseconds = times.setdefault(timing["matrix"], {}).setdefault(timing["form"], [])
        microseconds.append(round(timing["microseconds"], 2))
    fastest = {
        matrix: min(forms, key=lambda form, forms=forms: mean(forms[form]))
        for matrix, forms in times.items()
    }
    return {"fastest": fastest, "microseconds": times}


def main(out: str, *cases: str) -> None:
    path, cases = Path(out), cases or DEFAULTS
    children = [subprocess.Popen([sys.executable, __file__, "--case", it, out]) for it in cases]
    for child in children:
        child.wait()
    record = run_record(
        device=jax.devices()[0].device_kind,
        driver=driver_version(),
        versions={"jax": jax.__version__},
        command=["python", *sys.argv],
    )
    parts = {case: _part(path, case) for case in cases}
    record["cases"] = {
        case: summary(json.loads(part.read_text())) for case, part in parts.items() if part.exists()
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def _part(out: Path, case: str) -> Path:
    return out.with_name(f"{out.stem}_{case.replace(':', '_')}.json")


def main_of_case(case: str, out: Path) -> None:
    kind, size = case.split(":")
    timed = list(timings(kind, CONFIGS[size], out.with_suffix(".lock")))
    _part(out, case).write_text(json.dumps(timed))


if __name__ == "__main__":
    if sys.argv[1] == "--case":
        main_of_case(sys.argv[2], Path(sys.argv[3]))
    else:
        main(*sys.argv[1:])
