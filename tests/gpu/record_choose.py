"""Records what `xlapipe choose` recommends: python tests/gpu/record_choose.py [FAMILY …]

For each family it searches policies without a GPU. Five limits between the smallest and the largest
plan then choose among the compiled rows. A search under such a limit would compile three more.

`--predicted FILE` writes for each limit the predicted time of what is chosen, and of the best of
jax's own policies and the step as written. No GPU is used.

Otherwise each row is built on the attached GPUs, with the printed policy applied as in the search,
and run by `xlapipe run` in a process of its own: the median of the calls, and the most memory that
the allocator held. `records/choose_<family>.json` has the rows with planned and measured bytes and
predicted and measured seconds, and for each limit the regret: by how much the chosen row is slower
than the fastest measured row that fits. `fsdp-mlp` needs two GPUs, others one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FAMILIES = {
    "transformer-scan-1024": "choose_families:transformer()",
    "transformer-loop-1024": "choose_families:transformer(scan=False, layers=6)",
    "transformer-scan-8192": "choose_families:transformer(batch=1, seq=8192, layers=6)",
    "convnet": "choose_families:convnet()",
    "unet": "choose_families:unet()",
    "mixture": "choose_families:mixture()",
    "state-space": "choose_families:state_space(layers=4)",
    "qwen3-train": "qwen3-train(devices=1)",
    "resnet50-train": "resnet50-train(batch=64, bits=None)",
    "fsdp-mlp": "fsdp-mlp",
}
PRESETS = ("recompute everything", "keep matrix products", "keep only", "keep everything")
# Limits, as shares of the way from the smallest plan to the largest.
SHARES = (0.05, 0.25, 0.45, 0.65, 0.85)
_CALLS = 20


def search(workload: str, jobs: int) -> list[dict[str, Any]]:
    """The compiled rows of a workload, with what applies their policy."""
    from xlapipe.choosing.choose import Changes, choose

    rows = []
    for row in choose(workload, changes=Changes(remat=True), jobs=jobs).rows:
        change = row.candidate.change
        rematerialise = dict(change.rematerialise or {}) if change is not None else None
        rows.append({**row.to_json(), "rematerialise": rematerialise})
    return rows


def compared(rows: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """For each limit the row of least predicted time, beside the fastest one and the best preset.

    Args:
      kind: `predicted` or `measured`: of which the seconds are.
    """
    timed = [row for row in rows if f"{kind}_seconds" in row]
    if not timed:
        return []
    sizes = sorted(row["total_bytes"] for row in timed)

    def seconds(row: dict[str, Any]) -> float:
        return float(row[f"{kind}_seconds"])

    table = []
    for limit in (int(sizes[0] + share * (sizes[-1] - sizes[0])) for share in SHARES):
        fitting = [row for row in timed if row["total_bytes"] <= limit]
        chosen = min(fitting, key=lambda row: row["predicted_seconds"])
        fastest = min(fitting, key=seconds)
        best = min(filter(_is_preset, fitting), key=seconds, default=None)
        table.append(
            {
                "limit_bytes": limit,
                "chosen": chosen["change"],
                "chosen_seconds": seconds(chosen),
                "fastest": fastest["change"],
                "regret": seconds(chosen) / seconds(fastest) - 1,
                "best_preset": best["change"] if best is not None else None,
                "best_preset_seconds": seconds(best) if best is not None else None,
            }
        )
    return table


def _is_preset(row: dict[str, Any]) -> bool:
    return row["change"] is None or row["change"].startswith(PRESETS)


def measured(workload: str, row: dict[str, Any], target: str) -> dict[str, Any]:
    """The row with its measured time and memory; with `failed` if it does not run."""
    from xlapipe.choosing.candidate import Candidate, Change
    from xlapipe.choosing.compiles import job_of
    from xlapipe.compiling.make_jobs import CompileOptions
    from xlapipe.compiling.pipeline import build
    from xlapipe.errors import XlapipeError

    change = None
    if row["rematerialise"] is not None:
        change = Change(row["change"], row["code"], row["rematerialise"])
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "built"
        try:
            build(job_of(workload, Candidate({}, target, change), CompileOptions()), built)
        except XlapipeError as error:
            return {**row, "failed": str(error)}
        command = ["run", str(built), "--repeat", str(_CALLS), "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "xlapipe.cli", *command],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return {**row, "failed": done.stderr[-500:]}
    result = json.loads(done.stdout)
    figures = {name: result[name] for name in ("device", "autotuning", "memory")}
    return {**row, **figures, "measured_seconds": result["median_call_seconds"]}


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def table_lines(records: Sequence[dict[str, Any]]) -> list[str]:
    """A table in Markdown: at each limit, the time of what is chosen less that of the preset."""
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    lines = [f"| step | plans | {shares} |", f"|---|---|{'--:|' * len(SHARES)}"]
    for record in records:
        cells = []
        for limit in record["limits"]:
            preset = limit["best_preset_seconds"]
            change = limit["chosen_seconds"] / preset - 1 if preset else None
            cells.append(
                "no preset fits" if change is None else f"{change:+.1%}" if change else "0"
            )
        plans = " to ".join(f"{record[name] / 2**30:.2f}" for name in ("least_bytes", "most_bytes"))
        lines.append(f"| {record['family']} | {plans} GiB | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="*", default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--jobs", type=int, default=2, help="compiles at the same time")
    parser.add_argument("--predicted", type=Path, help="use no GPU; write predicted times here")
    parser.add_argument("--target", default="attached", help="that executables are built for")
    parser.add_argument("--out", type=Path, default=FOLDER / "records")
    options = parser.parse_args()
    if options.predicted is not None:
        options.predicted = options.predicted.absolute()
    options.out = options.out.absolute()
    os.chdir(FOLDER)
    records = []
    for name in options.families:
        rows = search(FAMILIES[name], options.jobs)
        print(f"{name}: {len(rows)} rows", file=sys.stderr, flush=True)
        if options.predicted is not None:
            limits = compared(rows, "predicted")
            sizes = [row["total_bytes"] for row in rows]
            record = {"family": name, "workload": FAMILIES[name]}
            record |= {"least_bytes": min(sizes), "most_bytes": max(sizes), "limits": limits}
            records.append(record)
            write(options.predicted, records)  # what is there, if it is interrupted
            continue
        options.out.mkdir(parents=True, exist_ok=True)
        rows = [measured(FAMILIES[name], row, options.target) for row in rows]
        record = {"family": name, "workload": FAMILIES[name], "rows": rows}
        record["limits"] = compared(rows, "measured")
        write(options.out / f"choose_{name}.json", record)
    if records:
        print("\n".join(table_lines(records)))


if __name__ == "__main__":
    main()
