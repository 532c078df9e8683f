"""Times what `xlapipe choose` compiles, on one GPU: python tests/gpu/record_choose.py [FAMILY …]

For each family it searches policies (no GPU is used for that), then runs each row in a process of
its own, with the printed policy applied as in the compiling child: the median of the calls, and the
most memory that the allocator held. It writes `records/choose_<family>.json`: for each row the
planned and measured bytes, the predicted and measured seconds; and for five limits the regret: by
how much the row that is chosen is slower than the fastest measured row that fits.

`--rows FILE` runs the rows of a file that `--search` wrote before.
`--attached cpu` runs on the CPU, to try the script; its times state nothing.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FAMILIES = {
    "transformer-scan-1024": "transformer()",
    "transformer-loop-1024": "transformer(scan=False)",
    "transformer-scan-8192": "transformer(batch=1, seq=8192, layers=6)",
    "convnet": "convnet()",
    "unet": "unet()",
    "mixture": "mixture()",
    "state-space": "state_space()",
}
PRESETS = ("recompute everything", "keep matrix products", "keep only", "keep everything")
_CALLS = 20
_RUN = """
import json, statistics, sys, time
request = json.loads(sys.stdin.read())
from xlapipe.lowering.chosen_policy import rematerialise_as_chosen
if request["rematerialise"] is not None:
    rematerialise_as_chosen(**request["rematerialise"])
import jax, jax.numpy as jnp
from xlapipe.lowering.load_workload import load_workload
from xlapipe.registry import find_workload
workload = load_workload(find_workload(request["workload"]))
def value(leaf):
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        return jnp.zeros(leaf.shape, leaf.dtype)
    return jnp.full(leaf.shape, 0.01, leaf.dtype)
state = jax.tree.map(value, workload.args[:2])
batch = jax.tree.map(value, workload.args[2])
step = jax.jit(workload.fn, donate_argnums=workload.donate_argnums)
compiled = step.lower(*state, batch).compile()
seconds = []
for _ in range(request["calls"] + 3):
    start = time.perf_counter()
    loss, *state = compiled(*state, batch)
    jax.block_until_ready(state)
    seconds.append(time.perf_counter() - start)
statistics_of = jax.local_devices()[0].memory_stats() or {}
print(json.dumps({
    "measured_seconds": statistics.median(seconds[3:]),
    "measured_peak_bytes": statistics_of.get("peak_bytes_in_use"),
    "device": jax.local_devices()[0].device_kind,
    "tuned_plan_bytes": compiled.memory_analysis().temp_size_in_bytes,
}))
"""


def search(family: str, compiles: int) -> list[dict[str, Any]]:
    """The compiled rows of a family, with what applies their policy."""
    from xlapipe.choosing.choose import Changes, choose

    workload = f"choose_families:{FAMILIES[family]}"
    choice = choose(workload, changes=Changes(remat=True), compiles=compiles, jobs=2)
    rows = []
    for row in choice.rows:
        change = row.candidate.change
        rematerialise = dict(change.rematerialise or {}) if change is not None else None
        rows.append({**row.to_json(), "workload": workload, "rematerialise": rematerialise})
    return rows


def run(row: dict[str, Any], platform: str) -> dict[str, Any]:
    """The row with its measured time and memory; with `failed` if it does not run."""
    request = {"workload": row["workload"], "rematerialise": row["rematerialise"], "calls": _CALLS}
    environment = {**os.environ, "JAX_PLATFORMS": platform}
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps(request),
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        return {**row, "failed": done.stderr[-500:]}
    return {**row, **json.loads(done.stdout.splitlines()[-1])}


def regrets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For five limits: what is chosen, beside the fastest measured row that fits."""
    timed = [row for row in rows if "measured_seconds" in row]
    if not timed:
        return []
    sizes = sorted(row["total_bytes"] for row in timed)
    limits = [sizes[0] + part * (sizes[-1] - sizes[0]) // 4 for part in range(5)]
    table = []
    for limit in limits:
        fitting = [row for row in timed if row["total_bytes"] <= limit]
        chosen = min(fitting, key=lambda row: row["predicted_seconds"])
        fastest = min(fitting, key=lambda row: row["measured_seconds"])
        presets = [
            row["measured_seconds"]
            for row in fitting
            if row["change"] is None or row["change"].startswith(PRESETS)
        ]
        table.append(
            {
                "limit_bytes": limit,
                "chosen": chosen["change"],
                "chosen_seconds": chosen["measured_seconds"],
                "fastest": fastest["change"],
                "regret": chosen["measured_seconds"] / fastest["measured_seconds"] - 1,
                "best_preset_seconds": min(presets, default=None),
            }
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--compiles", type=int, default=14)
    parser.add_argument("--search", action="store_true", help="only search; write the rows")
    parser.add_argument("--rows", type=Path, help="a file that --search wrote")
    parser.add_argument("--attached", default="cuda", help="jax's name of the platform")
    parser.add_argument("--out", type=Path, default=FOLDER / "records")
    options = parser.parse_args()
    os.chdir(FOLDER)
    options.out.mkdir(parents=True, exist_ok=True)
    given = json.loads(options.rows.read_text(encoding="utf-8")) if options.rows else {}
    found = {name: given.get(name) or search(name, options.compiles) for name in options.families}
    if options.search:
        (options.out / "choose_rows.json").write_text(json.dumps(found), encoding="utf-8")
        return
    for name, rows in found.items():
        measured = [run(row, options.attached) for row in rows]
        record = {"family": name, "rows": measured, "limits": regrets(measured)}
        text = json.dumps(record, indent=1)
        (options.out / f"choose_{name}.json").write_text(text + "\n", encoding="utf-8")
        for row in measured:
            print(name, row["change"], row["predicted_seconds"], row.get("measured_seconds"))
        for limit in record["limits"]:
            print(name, limit)


if __name__ == "__main__":
    main()
