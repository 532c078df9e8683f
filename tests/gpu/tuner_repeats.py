"""How often the tuner of an H200 would choose a product's backend again. No GPU is needed.

    python -m tests.gpu.tuner_repeats

Prints the tables of `docs/lab/lock.md`. The noise is that of 18 products which a second process
tuned again (`tuned_products.jsonl`); each of the 299 products there has the times of both backends,
and so the chance that a second tuning chooses the other one. Products of the recorded programs have
the time of one backend only, and get the mean chance of products that are as long and on it.
"""

import json
import tarfile
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import erf, log, prod, sqrt
from pathlib import Path
from typing import Any

from xlapipe.plans.gemms import Gemm, GemmBackend
from xlapipe.readers import read_path

TUNED = Path(__file__).with_name("tuned_products.jsonl")
PREDICTED = Path(__file__).with_name("predicted_locks.json")
RECORDS = Path(__file__).with_name("time_zoo") / "records"
WORKSPACE_BYTES = 33_554_432
_TRITON, _CUBLASLT = "TRITON", "CUBLASLT_FISSION"
# XLA takes the candidate with the least scratch memory of those within this time of the fastest.
_WINDOW_NANOSECONDS = 2_000
# The tuner takes longer for a kernel than the profiler (docs/time.md).
_TUNER_SECONDS = 2.2e-6
# Microseconds of the shorter backend.
_EDGES = (0, 10, 20, 40, 100)


@dataclass(frozen=True)
class Product:
    """A product of a recorded program.

    Attributes:
      seconds: measured, of one launch, and of all.
    """

    on_cublaslt: bool
    seconds: tuple[float, float]
    is_tuned: bool


def tuned_products() -> list[dict[str, Any]]:
    """The products whose candidates' times are recorded."""
    return [json.loads(line) for line in TUNED.read_text(encoding="utf-8").splitlines()[1:]]


def margin(nanoseconds: Mapping[str, int]) -> float:
    """Logarithm of Triton's time by the longest with which it is chosen; cuBLASLt above 0."""
    return log(nanoseconds[_TRITON] / (nanoseconds[_CUBLASLT] + _WINDOW_NANOSECONDS))


def noise(row: Mapping[str, Any]) -> float:
    """Standard deviation of the difference of the margins of two tunings.

    It is 0.12 for the 15 products below 40 µs that were tuned twice, and 0.03 for the three longer.
    """
    return max(0.12 * min(1.0, 30_000 / _nanoseconds(row)), 0.01)


def repeat_chance(row: Mapping[str, Any]) -> float:
    """The chance that a second tuning chooses the same backend."""
    return 0.5 * (1 + erf(abs(margin(row["nanoseconds"])) / noise(row) / sqrt(2)))


def band(seconds: float) -> int:
    """The number of the row of the table that a product of this time is in."""
    return bisect_right(_EDGES, seconds * 1e6) - 1


def change_chances(rows: list[dict[str, Any]]) -> dict[tuple[int, bool], float]:
    """The mean chance of the other backend, by time of the product and whether it is cuBLASLt's."""
    chances = defaultdict(list)
    for row in rows:
        key = band(_nanoseconds(row) * 1e-9), margin(row["nanoseconds"]) > 0
        chances[key].append(1 - repeat_chance(row))
    return {key: sum(values) / len(values) for key, values in chances.items()}


def products_of_programs() -> Iterator[tuple[str, list[Product]]]:
    """The products of each program of the three zoos, equal ones once."""
    for records in ("zoo", "unseen", "third"):
        data = json.loads((RECORDS / f"{records}.json").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(RECORDS / f"{records}.plans.tar.xz") as archive:
                archive.extractall(folder, filter="data")
            for name, program in data["programs"].items():
                gemms = read_path(Path(folder) / name).gemms
                yield f"{records}/{name}", _products(gemms, program["kernels"])


def _products(gemms: tuple[Gemm, ...], kernels: Mapping[str, Any]) -> list[Product]:
    timed: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for gemm in gemms:
        if gemm.instruction in kernels and gemm.backend in (
            GemmBackend.TRITON,
            GemmBackend.CUBLASLT,
        ):
            launches, seconds = kernels[gemm.instruction]
            sizes = tuple(shape.text for shape in gemm.shapes)
            timed[gemm.backend, sizes].append((seconds / launches, seconds))
    products = []
    for (backend, sizes), times in timed.items():
        seconds = sum(one for one, _ in times) / len(times), sum(total for _, total in times)
        # Triton has no candidate for others, so nothing is chosen.
        is_tuned = all(text.startswith(("bf16", "f16", "f32")) for text in sizes[:2])
        products.append(Product(backend == GemmBackend.CUBLASLT, seconds, is_tuned))
    return products


def program_chance(products: list[Product], chances: Mapping[tuple[int, bool], float]) -> float:
    """The chance that a second tuning adds the workspace of cuBLASLt to a plan, or removes it."""
    changes = [(it.on_cublaslt, _change(it, chances)) for it in products]
    triton_stays = prod(1 - change for on_cublaslt, change in changes if not on_cublaslt)
    if not any(on_cublaslt for on_cublaslt, _ in changes):
        return 1 - triton_stays
    return triton_stays * prod(change for on_cublaslt, change in changes if on_cublaslt)


def _change(product: Product, chances: Mapping[tuple[int, bool], float]) -> float:
    if not product.is_tuned:
        return 0.0
    return chances[band(product.seconds[0] + _TUNER_SECONDS), product.on_cublaslt]


def tables() -> Iterator[str]:
    """The tables, as Markdown: the products with recorded times, and the recorded programs."""
    rows = tuned_products()
    yield "\n".join(_lines_of_products(rows))
    yield "\n".join(_lines_of_programs(rows))


def _lines_of_products(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| shorter backend | products | on cuBLASLt | chosen again | of their time |"
    yield "|---|---:|---:|---:|---:|"
    for low, high in zip((*_EDGES, 0), (*_EDGES[1:], None, None), strict=True):
        own = [row for row in rows if low <= _nanoseconds(row) / 1e3 < (high or 1e9)]
        times, again = list(map(_nanoseconds, own)), list(map(repeat_chance, own))
        share = sum(a * b for a, b in zip(again, times, strict=True)) / sum(times)
        name = f"{low} to {high} µs" if high else f"above {low} µs" if low else "all"
        count = sum(margin(row["nanoseconds"]) > 0 for row in own)
        yield f"| {name} | {len(own)} | {count} | {sum(again) / len(own):.0%} | {share:.0%} |"


def _lines_of_programs(rows: list[dict[str, Any]]) -> Iterator[str]:
    # No product below 10 µs is on cuBLASLt.
    chances = defaultdict(float, change_chances(rows))
    record = json.loads(PREDICTED.read_text(encoding="utf-8"))
    groups: dict[str, list[tuple[float, list[Product]]]] = defaultdict(list)
    for name, products in products_of_programs():
        if name in record:
            is_moved = 0.05 * record[name]["device"]["total_bytes"] < WORKSPACE_BYTES
            group = "third zoo" if name.startswith("third/") else "zoo and unseen"
            groups[group].append((program_chance(products, chances) * is_moved, products))
    yield (
        "| programs | number | time of products chosen again | totals that a second tuning moves "
        "by more than 5% | chance that it moves none |"
    )
    yield "|---|---:|---:|---:|---:|"
    for group, programs in groups.items():
        timed = [product for _, products in programs for product in products]
        again = sum((1 - _change(it, chances)) * it.seconds[1] for it in timed)
        moved = [chance for chance, _ in programs]
        spread = sqrt(sum(chance * (1 - chance) for chance in moved))
        yield (
            f"| {group} | {len(programs)} | {again / sum(it.seconds[1] for it in timed):.0%} | "
            f"{sum(moved):.1f} ± {spread:.1f} | {prod(1 - chance for chance in moved):.1%} |"
        )


def _nanoseconds(row: Mapping[str, Any]) -> int:
    """The time of the shorter backend."""
    return min(row["nanoseconds"].values())


if __name__ == "__main__":
    print("\n\n".join(tables()))
