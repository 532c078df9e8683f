"""Measured products as multiples of their roofline: `efficiency.jsonl`.

The first line has the source and the grid, each further line the logarithms of the ratios of one
GPU and type at the points of the grid, in hundredths. The roofline is that of `roofline_seconds`.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from typing import TypeAlias

from xlapipe.devices.targets.catalogue import catalogue, row_named
from xlapipe.devices.targets.device import Device
from xlapipe.plans.gemms import Gemm
from xlapipe.plans.shapes import element_bits

# The least for any kernel of the tables.
_START_SECONDS = 2e-6
_ALIGNED_BYTES = 16
# Added to the deviation for another GPU's curve. H100 and H200, and B200 and GB200, have nine of
# ten products of each other within 19 %; of other generations within 20 to 70 %.
_GENERATION_SPREAD, _OTHER_SPREAD = 0.1, 0.25


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` products of m × k and k × n elements of an HLO type."""

    batch: int
    m: int
    n: int
    k: int
    element: str


@dataclass(frozen=True, slots=True)
class ProductSeconds:
    """The time of a product.

    Attributes:
      measured_on: row of the GPU whose products were measured.
      own: whether that is the GPU itself.
      spread: standard deviation of the logarithm of the time, by products that no fit has seen.
    """

    seconds: float
    measured_on: str
    own: bool
    spread: float


@dataclass(frozen=True)
class Efficiencies:
    """The grid, as logarithms to the base 2, and the ratios and deviations by GPU and type."""

    m: tuple[float, ...]
    n: tuple[float, ...]
    ratios: Mapping[tuple[str, str], tuple[int, ...]]
    spreads: Mapping[tuple[str, str], float]

    def ratio(self, gpu: str, element: str, sizes: Sequence[float]) -> float:
        """Time as a multiple of the roofline, by the logarithms of the sizes m, n and k."""
        values, total = self.ratios[gpu, element], 0.0
        axes = [
            _share(axis, math.log2(max(size, 1)))
            for axis, size in zip((self.m, self.n, self.n), sizes, strict=True)
        ]
        for (i, a), (j, b), (k, c) in product(*axes):
            if a * b * c:
                total += a * b * c * values[(i * len(self.n) + j) * len(self.n) + k]
        return math.exp(total / 100)


Share: TypeAlias = tuple[int, float]


def _share(axis: Sequence[float], place: float) -> tuple[Share, Share]:
    """The two points of an axis around a place, and their weights."""
    after = min(max(bisect_right(axis, place), 1), len(axis) - 1)
    low, high = axis[after - 1], axis[after]
    weight = min(1.0, max(0.0, (place - low) / (high - low)))
    return (after - 1, 1 - weight), (after, weight)


@cache
def efficiencies() -> Efficiencies:
    text = (files("xlapipe.time.products") / "efficiency.jsonl").read_text(encoding="utf-8")
    header, *rows = map(json.loads, text.splitlines())
    m, n = (tuple(map(math.log2, header[axis])) for axis in "mn")
    ratios = {(row["gpu"], row["type"]): tuple(row["ratios"]) for row in rows}
    return Efficiencies(m, n, ratios, {(row["gpu"], row["type"]): row["spread"] for row in rows})


def product_of(gemm: Gemm, flops: int) -> Product | None:
    """The sizes of a matrix product; None if its shapes do not determine them."""
    arrays = [shape.arrays[0] for shape in gemm.shapes if shape.arrays]
    if len(arrays) < 3:
        return None
    left, right, result = (math.prod(shape.dims) for shape in (*arrays[:2], arrays[-1]))
    terms, rest = divmod(flops, 2 * result) if result else (0, 1)
    if rest or not terms or left * right % (result * terms**2):
        return None
    batch = left * right // (result * terms**2)
    if not batch or left % (batch * terms) or right % (batch * terms):
        return None
    m, n = left // (batch * terms), right // (batch * terms)
    return Product(batch, m, n, terms, arrays[0].element)


def product_seconds(product: Product, device: Device) -> ProductSeconds | None:
    """The time of a product on a GPU; None if no GPU's products of its type were measured.

    Rows that do not start at multiples of 16 bytes were not measured either.
    """
    element = _TYPES.get(product.element, product.element[:2])
    bits = element_bits(product.element) or 16
    table = efficiencies()
    measured = [gpu for gpu, of_type in table.ratios if of_type == element]
    peak = device.peak_of(product.element)
    if not measured or not peak or min(product.n, product.k) * bits % (8 * _ALIGNED_BYTES):
        return None
    if product.k * bits % (8 * _ALIGNED_BYTES):
        return None
    gpu = _reference(device, measured)
    rows, columns = product.m, product.n
    if columns < 2 ** table.n[0] <= rows:
        rows, columns = columns, rows  # of the transposed product
    ratio = table.ratio(gpu, element, (rows * product.batch, columns, product.k))
    seconds = ratio * roofline_seconds(product, device.bandwidth, peak)
    is_own_gpu = gpu == device.row
    spread = table.spreads[gpu, element]
    if not is_own_gpu:
        spread += _GENERATION_SPREAD if _same_generation(gpu, device.row) else _OTHER_SPREAD
    return ProductSeconds(seconds, gpu, is_own_gpu, spread)


def roofline_seconds(product: Product, bandwidth: float, peak: float) -> float:
    """Start of a kernel, and the larger of memory and operations, without a corner."""
    bits = element_bits(product.element) or 16
    read = (product.m + product.n) * product.k * bits / 8
    memory = product.batch * (read + 2 * product.m * product.n) / bandwidth
    compute = 2 * product.batch * product.m * product.n * product.k / peak
    return _START_SECONDS + math.sqrt(math.hypot(memory**2, compute**2))


# Names of the table by HLO's element types; those that begin with f8 and f4 have these names.
_TYPES = {"bf16": "bf16", "f16": "bf16", "s8": "s8", "u8": "s8"}


def _reference(device: Device, measured: Sequence[str]) -> str:
    """The GPU itself, or else the nearest by compute capability, then by multiprocessors."""
    if device.row is not None and device.row in measured:
        return device.row
    rows = {row.name: row for row in catalogue()}
    capability = _capability(device.row)

    def distance(gpu: str) -> tuple[float, int]:
        return abs(_capability(gpu) - capability), abs(rows[gpu].core_count - device.cores)

    return min(measured, key=distance)


def _same_generation(gpu: str, other: str | None) -> bool:
    """Whether two GPUs have equal compute capabilities, from 9.0 on equal major versions."""
    first, second = _capability(gpu), _capability(other)
    return first == second or (min(first, second) >= 9 and int(first) == int(second))


def _capability(gpu: str | None) -> float:
    """The major version, and one tenth of the minor one; 0 if unknown, or not of NVIDIA."""
    row = row_named(gpu)
    return float(row.compute_capability) if row is not None and row.platform == "cuda" else 0.0
