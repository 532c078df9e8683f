"""Times forms of the kernels of Qwen3's decode step of one sequence, in steps.

    PYTHONPATH=. python tests/gpu/sweep_qwen3_matvecs.py OUT.json [SIZE…]

Needs a GPU. One process for each size compiles; one at a time is timed. Each layer of a loop over
steps has other forms, and weights that are not in L2. A kernel's time is from the end of the one
before it to its own end, by profile: the start of a kernel overlaps the end of the one before it.
Forms that win when they run alone for a moment do not all win here, where the GPU's clock is lower.
"""

import fcntl
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
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
from models.qwen3.kernels.decode_attention import decode_attention
from models.qwen3.kernels.matvec import matvec_add, norm_matvec, norm_swiglu
from models.qwen3.kernels.matvec_forms import Form, shapes_of
from models.qwen3.kernels.rotation import rows_of
from xlapipe.dumps.run_record import run_record

SIZES = ("1.7b", "4b", "8b", "14b")
LAYER = ("qkv", "o", "gate_up", "down")
# Bytes of weights that alternate, at least; layers of a program; steps of a loop.
ROTATED_BYTES = 300_000_000
LAYERS = 12
# Times that each form is timed, at least.
REPETITIONS = 2
HEADS = 8
TRIPS = 14
# Of them, not counted.
SKIPPED = 3
SLOTS = 2048
KERNELS = ("norm_matvec", "norm_swiglu", "matvec_add", "decode_attention")
EPS = 1e-6


def candidates(shape: tuple[int, int], matrices: int) -> list[Form]:
    """Forms with 8 to 64 weights of each thread in flight."""
    outputs, inputs = shape
    return [
        Form(rows, columns, warps)
        for rows, columns, warps in product((1, 2, 4, 8), (512, 1024, 2048), (1, 2, 4, 8))
        if inputs % columns == 0
        and outputs // matrices % rows == 0
        and 8 <= rows * matrices * columns // (32 * warps) <= 64
        and columns // (32 * warps) >= 8
    ]


def steps(config: Qwen3Config, numbers: range, forms: dict[str, list[Form]]) -> Callable[..., Any]:
    """`fn(x, layers, caches, position)`: TRIPS steps of the layers with these numbers."""

    def run(x: Any, layers: Any, caches: Any, position: Any) -> Any:
        scale = jnp.ones(config.hidden_size, jnp.bfloat16)
        head_scale = jnp.ones(config.head_dim, jnp.bfloat16)
        arrived = jnp.zeros(config.num_attention_heads, jnp.int32)
        rotation = rows_of(position, head_dim=config.head_dim, theta=config.rope_theta)

        def trip(_: Any, carried: Any) -> Any:
            x, caches = carried
            caches = list(caches)
            for number in numbers:
                qkv, o, gate_up, down = (forms[name][number % len(forms[name])] for name in LAYER)
                weights, place = layers[number % len(layers)], number % len(caches)
                y = norm_matvec(x, scale, weights[0], eps=EPS, form=qkv)
                y, *written, _ = decode_attention(
                    *(y, head_scale, head_scale, rotation, position, *caches[place], arrived),
                    eps=EPS,
                    by_head=True,
                )
                caches[place] = tuple(written)
                x = matvec_add(y, weights[1], x, form=o)
                y = norm_swiglu(x, scale, weights[2], eps=EPS, form=gate_up)
                x = matvec_add(y, weights[3], x, form=down)
            return x, caches

        return jax.lax.fori_loop(0, TRIPS, trip, (x, caches))[0]

    return run


def heads(forms: list[Form]) -> Callable[..., Any]:
    def run(x: Any, weight: Any) -> Any:
        scale = jnp.ones(x.shape, jnp.bfloat16)

        def trip(_: Any, x: Any) -> Any:
            for form in forms:
                logits = norm_matvec(x, scale, weight, eps=EPS, form=form)
                x = x + 1e-9 * logits[: len(x)]
            return x

        return jax.lax.fori_loop(0, TRIPS, trip, x)

    return run


def profiled(call: Callable[[], Any]) -> list[float]:
    """Of a call's kernels of KERNELS in order, µs from the end of the kernel before."""
    jax.block_until_ready(call())
    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = options.python_tracer_level = 0
        jax.profiler.start_trace(folder, profiler_options=options)
        jax.block_until_ready(call())
        jax.profiler.stop_trace()
        path = next(Path(folder).rglob("*.xplane.pb"))
        events = sorted(
            (event.start_ns, event.start_ns + event.duration_ns, event.name)
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes
            if plane.name.startswith("/device:GPU")
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
        )
    return [
        (end - before) / 1e3
        for (_, before, _), (_, end, name) in pairwise(events)
        if name.startswith(KERNELS)
    ]


def timings(config: Qwen3Config, lock: Path) -> Iterator[dict[str, Any]]:
    """µs of each form."""
    shapes = shapes_of(config)
    forms = {
        name: candidates(shape, 2 if name == "gate_up" else 1) for name, shape in shapes.items()
    }
    key = jax.random.key(0)
    layer_bytes = sum(2 * shapes[name][0] * shapes[name][1] for name in LAYER)
    layers = [
        tuple(0.02 * jax.random.normal(key, shapes[name], jnp.bfloat16) for name in LAYER)
        for _ in range(max(2, -(-ROTATED_BYTES // layer_bytes)))
    ]
    head = 0.02 * jax.random.normal(key, shapes["head"], jnp.bfloat16)
    cache = (1, config.num_key_value_heads, SLOTS, config.head_dim)
    caches = [
        tuple(jax.random.normal(key, cache, jnp.bfloat16) for _ in range(2)) for _ in range(8)
    ]
    x, position = jnp.ones(config.hidden_size), jnp.zeros(1, jnp.int32)
    count = REPETITIONS * max(len(forms[name]) for name in LAYER)
    groups = [range(i, min(i + LAYERS, count)) for i in range(0, count, LAYERS)]
    groups_of_heads = [forms["head"][i : i + HEADS] for i in range(0, len(forms["head"]), HEADS)]
    lowered = [
        jax.jit(steps(config, numbers, forms)).lower(x, layers, caches, position)
        for numbers in groups
    ] + [jax.jit(heads(group)).lower(x, head) for group in groups_of_heads]
    with ThreadPoolExecutor(6) as pool:
        executables = list(pool.map(lambda it: it.compile(), lowered))
    with Locked(lock):
        for numbers, executable in zip(groups, executables, strict=False):
            times = profiled(lambda e=executable: e(x, layers, caches, position))
            size = 5 * len(numbers)
            if len(times) != size * TRIPS:
                print("lost kernels:", len(times), size * TRIPS, file=sys.stderr)
                continue
            for place, number in enumerate(numbers):
                for kernel, name in ((0, "qkv"), (2, "o"), (3, "gate_up"), (4, "down")):
                    form = forms[name][number % len(forms[name])]
                    microseconds = median(times[5 * place + kernel :: size][SKIPPED:])
                    yield {"matrix": name, "form": form[:3], "microseconds": microseconds}
        for group, executable in zip(groups_of_heads, executables[len(groups) :], strict=True):
            times = profiled(lambda e=executable: e(x, head))
            for number, form in enumerate(group):
                microseconds = median(times[number :: len(group)][SKIPPED:])
                yield {"matrix": "head", "form": form[:3], "microseconds": microseconds}


class Locked:
    """Holds the lock that the processes of all sizes share."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w")

    def __enter__(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self.file.close()


def summary(timings: list[dict[str, Any]]) -> dict[str, Any]:
    """µs of each form (rows, columns, warps) by matrix, and the form with the least mean."""
    times: dict[str, dict[str, list[float]]] = {}
    for timing in timings:
        form = ",".join(map(str, timing["form"]))
        microseconds = times.setdefault(timing["matrix"], {}).setdefault(form, [])
        microseconds.append(round(timing["microseconds"], 2))
    fastest = {
        matrix: min(forms, key=lambda form, forms=forms: mean(forms[form]))
        for matrix, forms in times.items()
    }
    return {"fastest": fastest, "microseconds": times}


def main(out: str, *sizes: str) -> None:
    path, sizes = Path(out), sizes or SIZES
    children = [subprocess.Popen([sys.executable, __file__, "--size", s, out]) for s in sizes]
    for child in children:
        child.wait()
    record = run_record(
        device=jax.devices()[0].device_kind,
        driver=driver_version(),
        versions={"jax": jax.__version__},
        command=["python", *sys.argv],
    )
    record["sizes"] = {size: summary(json.loads(_part(path, size).read_text())) for size in sizes}
    path.write_text(json.dumps(record, indent=1) + "\n")


def _part(out: Path, size: str) -> Path:
    return out.with_name(f"{out.stem}_{size}.json")


def main_of_size(size: str, out: Path) -> None:
    timed = list(timings(CONFIGS[size], out.with_suffix(".lock")))
    _part(out, size).write_text(json.dumps(timed))


if __name__ == "__main__":
    if sys.argv[1] == "--size":
        main_of_size(sys.argv[2], Path(sys.argv[3]))
    else:
        main(*sys.argv[1:])
