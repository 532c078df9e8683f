"""Records what the tuner measured for the products of `tune_products.py`. No GPU is needed.

    python -m tests.gpu.record_tuned_products TUNED.jsonl.gz [AGAIN.jsonl.gz]

Writes `tuned_products.jsonl`: a header, and one line per product with the best candidate of each
backend. AGAIN is a second run of some products, in another process. The forms come from compiling
the same modules here; XLA's fingerprints join them with the device's log.
"""

import gzip
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.gpu.predicted_locks import ROOT, known_results_of, tuned_by_xla
from xlapipe.compile.job import Job
from xlapipe.registry import find_workload
from xlapipe.time.predicted_locks.fingerprint import fingerprint
from xlapipe.time.predicted_locks.form import form_of

RECORD = Path(__file__).with_name("tuned_products.jsonl")
_PROVENANCE: dict[str, Any] = {
    "about": "best candidate of each backend, as XLA's tuner measured it, for products drawn at "
    "random by tune_products.py",
    "device": "NVIDIA H200",
    "driver": "580.159.04",
    "versions": {"jax": "0.11.2", "jaxlib": "0.11.2", "jax-cuda13-plugin": "0.11.2"},
    "date": "2026-11-23",
    "command": "python tune_products.py OUT.jsonl.gz 92",
}


def main(tuned: Path, again: Path | None) -> None:
    """Writes the record."""
    rows = _rows(tuned)
    second = {row["fingerprint"]: row for row in _rows(again)} if again is not None else {}
    _, target = known_results_of("h200")
    texts: dict[str, str] = {}
    for number in sorted({row["module"] for row in rows}):
        reference = find_workload(f"tune_products:module(number={number})")
        reference = replace(reference, folder=ROOT / "tests/gpu")
        for text in tuned_by_xla(Job(reference=reference, target=target)):
            texts[str(fingerprint(text))] = text
    lines = [_PROVENANCE]
    for row in sorted(rows, key=lambda it: (it["module"], it["fingerprint"])):
        form = form_of(texts[row["fingerprint"]])
        best = _best(row)
        if form is None or not form.is_product or len(best) < 2:
            continue
        repeated = second.get(row["fingerprint"])
        lines.append(
            {
                "module": row["module"],
                "fingerprint": row["fingerprint"],
                "form": vars(form),
                "candidates": len(row["candidates"]),
                "nanoseconds": {name: it[1] for name, it in best.items()},
                **({"again": {n: it[1] for n, it in _best(repeated).items()}} if repeated else {}),
                "triton": best["TRITON"][0],
            }
        )
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    RECORD.write_text(text, encoding="utf-8")


def _rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _best(row: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The shortest candidate of each backend: config, nanoseconds, bytes of scratch memory."""
    best: dict[str, list[Any]] = {}
    for candidate in row["candidates"]:
        if candidate[1] > 0:
            best.setdefault(candidate[0].split()[1], candidate)
    return best


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
