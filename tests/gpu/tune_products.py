"""Tunes products of many sizes on a GPU, and keeps what each backend's best candidate took.

The sizes are drawn at random, from those that programs usually have; they are of no program in
particular. On the GPU, with jax alone:

    python tune_products.py OUT.jsonl.gz SECONDS [FIRST]

`record_tuned_products.py` makes the record of it. Each line is one product that XLA tuned: its
module, XLA's fingerprint, and the candidates with their time in nanoseconds and scratch memory in
bytes. Modules have few products each, so that the limit on the time loses little; `modules` makes
them again elsewhere.
"""

import gzip
import json
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from xlapipe import Workload

PRODUCTS_PER_MODULE = 6
MODULES = 120
_THREADS = 3
_SEED = 34
_WIDTHS = (64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1536)
_WIDE = (2048, 2560, 3072, 4096, 5120, 6144, 8192, 11008, 12288, 14336, 16384)
_ROWS = (1, 2, 4, 8, 16, 32, 50, 64, 100, 128, 196, 256, 300, 512, 576, 784, 1000, 1024, 1536)
_MANY_ROWS = (2048, 3072, 4096, 6272, 8192, 12544, 16384)
_ODD = (10, 20, 33, 100, 257, 300, 500, 1000, 1500, 3000, 10000, 32000)
_Step = Callable[..., Any]
_Arg = tuple[tuple[int, ...], str]


def modules() -> list[tuple[_Step, tuple[jax.ShapeDtypeStruct, ...]]]:
    """Each module's function and its arguments, in an order that is random but fixed."""
    numbers = random.Random(_SEED)
    return [_module(numbers) for _ in range(MODULES)]


def module(number: int) -> "Workload":
    """A module as a workload, for a compile without a GPU."""
    from xlapipe import Workload

    step, structs = modules()[number]
    return Workload(name=f"products-{number}", fn=step, args=structs)


def _module(numbers: random.Random) -> tuple[_Step, tuple[jax.ShapeDtypeStruct, ...]]:
    products: list[tuple[_Step, list[_Arg]]] = []
    while len(products) < PRODUCTS_PER_MODULE:
        step, args, flops, array_bytes = _product(numbers)
        seconds = flops / 4e14 + array_bytes / 4e12
        if 3e-7 <= seconds <= 6e-4:
            products.append((step, args))

    def joined(*arrays: Any) -> tuple[Any, ...]:
        rest, results = list(arrays), []
        for step, args in products:
            results.append(step(*rest[: len(args)]))
            rest = rest[len(args) :]
        return tuple(results)

    structs = [
        jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
        for _, args in products
        for shape, dtype in args
    ]
    return joined, tuple(structs)


def _product(numbers: random.Random) -> tuple[_Step, list[_Arg], float, float]:
    """A product, its arguments, its operations and the bytes of its arrays."""
    dtype = numbers.choices(("bfloat16", "float32", "float16"), (50, 46, 4))[0]
    form = numbers.choices(("layer", "weights", "square", "heads", "odd"), (34, 20, 14, 20, 12))[0]
    rows, widths = _ROWS + _MANY_ROWS, _WIDTHS + _WIDE
    batch: tuple[int, ...] = ()
    if form == "layer":
        m, n, k = numbers.choice(rows), numbers.choice(widths), numbers.choice(widths)
        left, right = 1, numbers.choice((0, 0, 1))
    elif form == "weights":
        m, n, k = numbers.choice(widths), numbers.choice(widths), numbers.choice(rows)
        left, right = 0, 0
    elif form == "square":
        m = n = k = numbers.choice(widths[3:-3])
        if numbers.random() < 0.4:
            k = numbers.choice(widths)
        left, right = numbers.choice(((1, 0), (1, 1), (0, 0)))
    elif form == "heads":
        batch = (numbers.choice((2, 4, 8, 12, 16, 32, 64, 96, 128, 256, 512)),)
        long, short = (
            numbers.choice((32, 64, 128, 197, 256, 512, 1024, 2048)),
            numbers.choice((16, 32, 64, 96, 128, 256)),
        )
        m, n, k = numbers.choice(
            ((long, long, short), (long, short, long), (long, short, short), (short, short, long))
        )
        left, right = numbers.choice(((1, 1), (1, 0), (0, 0)))
    else:
        sizes = [numbers.choice(_ODD), numbers.choice(rows), numbers.choice(widths)]
        numbers.shuffle(sizes)
        m, n, k = sizes
        left, right = numbers.choice(((1, 0), (1, 1), (0, 0)))
    count = len(batch)
    x = (*batch, *((m, k) if left else (k, m)))
    y = (*batch, *((n, k) if right else (k, n)))
    dimensions = (
        ((left + count,), (right + count,)),
        (tuple(range(count)), tuple(range(count))),
    )
    before = numbers.choices(
        ("", "cast", "relu", "scale", "add"),
        (62, 12, 8, 9, 9) if dtype != "float32" else (75, 0, 8, 9, 8),
    )[0]
    after = numbers.choices(
        ("", "f32", "bias", "gelu", "residual", "scale"), (52, 10, 12, 8, 12, 6)
    )[0]
    args: list[_Arg] = [
        (x, dtype),
        (y, "float32" if before == "cast" else dtype),
    ]
    if before in ("scale", "add"):
        args.append((x, dtype))
    if after == "bias":
        args.append(((n,), dtype))
    elif after == "residual":
        args.append(((*batch, m, n), dtype))

    def step(x: Any, y: Any, *rest: Any) -> Any:
        others = list(rest)
        if before == "cast":
            y = y.astype(x.dtype)
        elif before == "relu":
            x = jnp.maximum(x, 0)
        elif before == "scale":
            x = x * jnp.tanh(others.pop(0))
        elif before == "add":
            x = x + others.pop(0)
        wide = jnp.float32 if after == "f32" else None
        product = jax.lax.dot_general(x, y, dimensions, preferred_element_type=wide)
        if after in ("bias", "residual"):
            product = product + others.pop(0)
        elif after == "gelu":
            product = jax.nn.gelu(product)
        elif after == "scale":
            product = product * 0.125
        return product

    total = max(batch[0] if batch else 1, 1)
    flops = 2.0 * total * m * n * k * (2 if dtype == "float32" else 1)
    item = 4 if dtype == "float32" else 2
    return step, args, flops, float(item * total * (m * k + k * n + m * n))


def tune(out: Path, seconds: float, first: int) -> None:
    """Tunes modules from `first` on until the time is over."""
    started, lock = time.perf_counter(), threading.Lock()

    def one(number: int) -> None:
        if time.perf_counter() - started > seconds:
            return
        step, structs = modules()[number]
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            logs = Path(folder) / "logs.textproto"
            options = {"xla_gpu_dump_autotune_logs_to": str(logs)}
            try:
                jax.jit(step).lower(*structs).compile(compiler_options=options)
                rows = _rows(logs.read_text(encoding="utf-8"))
            except Exception as error:  # noqa: BLE001  # the other modules are tuned nevertheless
                print(f"{number}: {error!s:.300}", flush=True)
                return
        with lock, gzip.open(out, "at") as file:
            for row in rows:
                file.write(json.dumps({"module": number, **row}, separators=(",", ":")) + "\n")
        took = time.perf_counter() - began
        print(f"{number}: {len(rows)} in {took:.1f} s", flush=True)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(one, range(first, MODULES)))


def _rows(logs: str) -> list[dict[str, Any]]:
    """The tuned products of a log."""
    rows = []
    for text in re.split(r"^instruction_profiles \{$", logs, flags=re.MULTILINE)[1:]:
        head = re.search(r'hlo_text: "(.*)"$', text, re.MULTILINE)
        key = re.search(r'hlo_fingerprint: "(\w+)"', text)
        if head is None or key is None or "gemm" not in head[1]:
            continue
        candidates: list[tuple[str, int, int]] = []
        for profile in re.split(r"^  config_profiles \{$", text, flags=re.MULTILINE)[1:]:
            if "failure" in profile:
                continue
            run = re.search(r"run_time \{(.*?)\}", profile, re.DOTALL)
            config = re.search(r"^    config \{\n(.*?)^    \}$", profile, re.DOTALL | re.MULTILINE)
            if run is None or config is None:
                continue
            numbers = dict(re.findall(r"(seconds|nanos): (\d+)", run[1]))
            taken = int(numbers.get("seconds", 0)) * 10**9 + int(numbers.get("nanos", 0))
            scratch = re.search(r"scratch_bytes: (\d+)", profile)
            candidates.append(
                (" ".join(config[1].split()), taken, int(scratch[1]) if scratch else 0)
            )
        candidates.sort(key=lambda it: it[1])
        rows.append({"fingerprint": key[1], "text": head[1][:160], "candidates": candidates})
    return rows


if __name__ == "__main__":
    tune(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
