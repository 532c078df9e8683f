"""Makes the small tables of this package from those of NVIDIA's aiconfigurator.

    python -m tests.fit_tables FOLDER

FOLDER has `collectives.parquet` and `gemm_GPU.parquet`. Needs pyarrow, pandas and scipy. The errors
of what is left out are written into docs/which_gpu.md: of collectives every second size, of
products every fifth, for which a grid is fitted to the others. Tables of `_NOT_FITTED`, which
the repository has too, are only compared with: their curves are another GPU's.
"""

import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import csr_array, vstack
from scipy.sparse.linalg import lsqr

from xlapipe.devices.targets.device import device_of_target
from xlapipe.time.products.efficiency import Product, product_seconds, roofline_seconds

_TIME = Path(__file__).parent.parent / "xlapipe" / "time"
_SOURCE = {
    "source": "nccl-tests by NVIDIA, of ai-dynamo/aiconfigurator, commit 095f58a, float16",
    "licence": "Apache-2.0; see NOTICE in this folder",
}
_PRODUCTS = {
    "source": "products by TensorRT-LLM 1.3.0rc20, of ai-dynamo/aiconfigurator, commit 095f58a",
    "licence": "Apache-2.0; see NOTICE in this folder",
}
_KINDS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
}
# Every second of the sizes is kept; the others show the error.
_KEPT = slice(None, None, 2)
_LEAST_COMPARED = 1 << 20


def collectives(folder: Path) -> list[str]:
    """Writes `measured.jsonl`; the rows of the page's table."""
    table = pd.read_parquet(folder / "collectives.parquet")
    table = table[table.dtype == "half"].assign(bytes=lambda rows: rows.elements * 2)
    lines, errors = [], {}
    by_size = table.sort_values("bytes")
    for (gpu, op, gpus), rows in by_size.groupby(["gpu", "op", "num_gpus"]):
        sizes, seconds = rows.bytes.to_numpy(), rows.ms.to_numpy()
        kept = sizes[_KEPT].tolist()
        us = [float(f"{value * 1e3:.4g}") for value in seconds[_KEPT]]
        lines.append({"gpu": gpu, "kind": _KINDS[op], "gpus": gpus, "us": us})
        between = np.interp(np.log(sizes), np.log(kept), np.log(us)) - np.log(seconds * 1e3)
        left_out = (np.arange(len(sizes)) % 2 == 1) & (sizes >= _LEAST_COMPARED)
        errors.setdefault(gpu, []).extend(np.abs(np.expm1(between[left_out])))
    header = {**_SOURCE, "bytes": kept}
    text = "".join(f"{json.dumps(line)}\n" for line in (header, *lines))
    (_TIME / "collectives" / "measured.jsonl").write_text(text, encoding="utf-8")
    return [
        f"| {gpu} | {np.median(found):.1%} | {np.quantile(found, 0.9):.1%} |"
        for gpu, found in errors.items()
    ]


# The table's names of types, and those of HLO.
_TYPES = {"bfloat16": "bf16", "fp8": "f8e4m3fn", "nvfp4": "f4e2m1fn", "sq": "s8"}
_M = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768)
_N = (32, 128, 512, 1024, 2048, 4096, 8192, 16384, 65536)
_GROUPS = {"decode, m ≤ 32": (0, 32), "middle": (32, 1024), "large, m > 1,024": (1024, 1 << 40)}
_NOT_FITTED = ("b300", "gb300")
# Weight of the second differences along each axis of the grid.
_SMOOTH = 0.3
_PAGE = Path(__file__).parent.parent / "docs" / "which_gpu.md"


def products(folder: Path) -> list[str]:
    """Writes `efficiency.jsonl`; the rows of the page's table."""
    lines: list[dict[str, object]] = [{**_PRODUCTS, "m": _M, "n": _N}]
    shown = []
    for file in sorted(folder.glob("gemm_*.parquet")):
        gpu, table = file.stem.removeprefix("gemm_"), pd.read_parquet(file)
        if gpu in _NOT_FITTED:
            continue
        device = device_of_target(gpu)
        assert device is not None
        for name, element in _TYPES.items():
            rows = table[table["dtype"] == name]
            if rows.empty:
                continue
            floors = [
                roofline_seconds(Product(1, *sizes, element), device.bandwidth, peak)
                for peak in [device.peak_of(element) or 0.0]
                for sizes in zip(*(rows[axis].tolist() for axis in "mnk"), strict=True)
            ]
            ratios = np.log(rows.ms.to_numpy() * 1e-3 / np.array(floors))
            places = _places(rows)
            left_out = pd.util.hash_pandas_object(rows[list("mnk")], index=False) % 5 == 0
            fitted = _fitted(places[~left_out.to_numpy()], ratios[~left_out.to_numpy()])
            errors = np.abs(places @ fitted - ratios)[left_out.to_numpy()]
            spread = round(float(np.quantile(errors, 0.9)) / 1.645, 3)
            shown.append(_row(gpu, element, rows.m.to_numpy()[left_out.to_numpy()], errors))
            whole = np.rint(100 * _fitted(places, ratios)).astype(int).tolist()
            lines.append({"gpu": gpu, "type": _name(element), "spread": spread, "ratios": whole})
    text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
    (_TIME / "products" / "efficiency.jsonl").write_text(text, encoding="utf-8")
    return shown + [row for gpu in _NOT_FITTED for row in _compared(folder, gpu)]


def _compared(folder: Path, gpu: str) -> Iterator[str]:
    """Rows of a GPU of which nothing is fitted, if its table is in the folder."""
    file, device = folder / f"gemm_{gpu}.parquet", device_of_target(gpu)
    assert device is not None
    table = pd.read_parquet(file) if file.exists() else pd.DataFrame({"dtype": []})
    for name, element in _TYPES.items():
        rows = table[table["dtype"] == name]
        found = [
            (m, abs(np.log(predicted.step_seconds * 1e3 / ms)))
            for m, n, k, ms in zip(
                *(rows.get(axis, []) for axis in ("m", "n", "k", "ms")), strict=True
            )
            if (predicted := product_seconds(Product(1, m, n, k, element), device)) is not None
        ]
        if found:
            m, errors = map(np.array, zip(*found, strict=True))
            yield _row(f"{gpu} (not fitted)", element, m, errors)


def _name(element: str) -> str:
    return element[:2] if element[0] == "f" else element


def _places(rows: pd.DataFrame) -> csr_array:
    """Weights of the points of the grid for each product."""
    axes = []
    for axis, points in zip("mnk", (_M, _N, _N), strict=True):
        grid, values = np.log2(points), np.log2(rows[axis].to_numpy(float))
        low = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
        share = np.clip((values - grid[low]) / (grid[low + 1] - grid[low]), 0, 1)
        axes.append(((low, 1 - share), (low + 1, share)))
    (shape, parts) = (len(rows), len(_M) * len(_N) ** 2), []
    for (i, a), (j, b), (k, c) in product(*axes):
        column = (i * len(_N) + j) * len(_N) + k
        parts.append(csr_array((a * b * c, (np.arange(len(rows)), column)), shape=shape))
    return csr_array(sum(parts[1:], parts[0]))


def _fitted(places: csr_array, ratios: np.ndarray) -> np.ndarray:
    """Logarithms of the ratios at the points of the grid."""
    shape = (len(_M), len(_N), len(_N))
    numbers = np.arange(np.prod(shape)).reshape(shape)
    smooth = []
    for axis, size in enumerate(shape):
        first, middle, last = (
            np.take(numbers, range(start, size - 2 + start), axis).ravel() for start in range(3)
        )
        at = np.arange(len(first))
        smooth.append(
            _SMOOTH
            * csr_array(
                (
                    np.repeat((1.0, -2.0, 1.0), len(first)),
                    (np.tile(at, 3), np.concatenate((first, middle, last))),
                ),
                shape=(len(first), numbers.size),
            )
        )
    more = vstack(smooth)
    right = np.concatenate((ratios, np.zeros(more.shape[0])))
    return lsqr(vstack((places, more)), right, iter_lim=400)[0]


def _row(gpu: str, element: str, m: np.ndarray, errors: np.ndarray) -> str:
    cells, errors = [], np.expm1(errors)
    for low, high in _GROUPS.values():
        own = errors[(m > low) & (m <= high)]
        cells.append(f"{np.median(own):.1%} | {np.quantile(own, 0.9):.1%}" if len(own) else "– | –")
    return f"| {gpu} | {_name(element)} | {' | '.join(cells)} |"


def write_page(shown_products: list[str], shown_collectives: list[str]) -> None:
    """Replaces the tables of the page."""
    text = _PAGE.read_text(encoding="utf-8")
    groups = " | ".join(f"{name} | 9 of 10" for name in _GROUPS)
    heads = (f"| GPU | type | {groups} |", "|---|---|" + "--:|" * (2 * len(_GROUPS)))
    text = _with_table(text, "products", [*heads, *shown_products])
    heads = ("| GPU | median | 9 of 10 |", "|---|--:|--:|")
    text = _with_table(text, "collectives", [*heads, *shown_collectives])
    _PAGE.write_text(text, encoding="utf-8")


def _with_table(text: str, name: str, lines: list[str]) -> str:
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    return before + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2]


if __name__ == "__main__":
    given = Path(sys.argv[1])
    write_page(products(given), collectives(given))
