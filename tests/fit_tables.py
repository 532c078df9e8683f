"""Makes the small tables of this package from those of NVIDIA's aiconfigurator.

    python -m tests.fit_tables FOLDER

FOLDER has `collectives.parquet` and `gemm_GPU.parquet`, which need pyarrow and pandas to be read.
The error of what is left out is printed.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

_TIME = Path(__file__).parent.parent / "xlapipe" / "time"
_SOURCE = {
    "source": "nccl-tests by NVIDIA, of ai-dynamo/aiconfigurator, commit 095f58a, float16",
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


def collectives(folder: Path) -> None:
    """Writes `measured.jsonl`."""
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
    for gpu, found in errors.items():
        print(f"{gpu}: median {np.median(found):.1%}, 9 of 10 {np.quantile(found, 0.9):.1%}")


if __name__ == "__main__":
    collectives(Path(sys.argv[1]))
