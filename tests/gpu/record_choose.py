"""Records what `xlapipe choose` recommends, and how long the forms that it compiled take on a GPU.

    python tests/gpu/record_choose.py search SEARCHED [FAMILY …]   # without a GPU; 2 to 5 min each
    python tests/gpu/record_choose.py lower SEARCHED FORMS         # without a GPU
    python tests/gpu/time_choose.py FORMS OUT                      # on an H200
    python tests/gpu/record_choose.py record SEARCHED OUT/timed.jsonl … choose_regret.json
    python tests/gpu/record_choose.py tables choose_regret.json

`search` looks for policies of each family as `xlapipe choose --remat` does, and compiles each row
again with a predicted lock. `lower` writes the lowered program of each row. `record` keeps planned
and measured bytes, and predicted and measured seconds of each row; families that were not searched
stay as they are in the file. `tables` prints the tables of
`docs/lab/choose.md`.
"""

import argparse
import json
import lzma
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean
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
    "qwen3-train": "qwen3-train(devices=1, batch=4)",
    "resnet50-train": "resnet50-train(batch=64, bits=None)",
    "fsdp-mlp": "fsdp-mlp",  # for two GPUs, and not timed
    "block-gpt": "choose_block_families:gpt()",
    "block-vit": "choose_block_families:vit()",
    "block-mixture": "choose_block_families:mixture()",
    "block-encoder-decoder": "choose_block_families:encoder_decoder()",
}
PRESETS = ("recompute everything", "keep matrix products", "keep only", "keep everything")
# Limits, as shares of the way from the smallest plan to the largest.
SHARES = (0.05, 0.25, 0.45, 0.65, 0.85)
# Of plans and predicted times: the default of `xlapipe choose`, and `--tuning none`.
BASES = ("predicted_lock", "untuned")


def search(workload: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The compiled rows of a workload, with what applies their policy and with a predicted lock."""
    from xlapipe.compile.make_jobs import CompileSettings
    from xlapipe.compile.tuning import Tuned
    from xlapipe.search.candidate import job_of
    from xlapipe.search.choosing.choose import choose
    from xlapipe.search.choosing.rows import row_figures
    from xlapipe.search.memory_budget import MemoryBudget
    from xlapipe.search.planned_memory import planned_memory
    from xlapipe.search.rows import Row, SearchSettings

    def with_predicted_lock(row: Row) -> dict[str, Any]:
        change = row.candidate.change
        policy = change.arguments.get("rematerialise") if change is not None else None
        job = job_of(row.candidate, CompileSettings(tuning=Tuned.AUTO))
        memory, _ = planned_memory(job, MemoryBudget())
        locked = row_figures(replace(row, outcome=memory))
        names = ("total_bytes", "temp_bytes", "basis", "error_bytes")
        times = ("predicted_seconds", "predicted_low_seconds", "predicted_high_seconds")
        return {
            "change": row_figures(row)["change"],
            "untuned": {name: row_figures(row)[name] for name in (*names, *times)},
            "predicted_lock": {name: locked[name] for name in (*names, *times)},
            "code": row_figures(row)["code"],
            "rematerialise": policy,
        }

    rows = choose(
        workload,
        remat=True,
        targets=(options.target,),
        search=SearchSettings(at_once=options.jobs),
        compiles=options.compiles,
    ).rows
    with ThreadPoolExecutor(options.jobs) as pool:
        searched = list(pool.map(with_predicted_lock, rows))
    return [{"row": number, **row} for number, row in enumerate(searched)]


def lower_forms(searched: Path, forms: Path, options: argparse.Namespace) -> None:
    """Writes the lowered program of each row, and `forms.json` for `time_choose.py`."""
    from xlapipe.compile.make_jobs import CompileSettings
    from xlapipe.compile.pipeline import compile_dump
    from xlapipe.errors import XlapipeError
    from xlapipe.registry import find_workload
    from xlapipe.search.candidate import Candidate, Change, job_of

    def lowered(form: dict[str, Any]) -> dict[str, Any]:
        policy = form.pop("rematerialise")
        change = Change("", arguments={"rematerialise": policy}) if policy is not None else None
        reference = find_workload(form.pop("workload"))
        job = job_of(Candidate(reference, target=options.target, change=change), CompileSettings())
        path = forms / form["family"] / f"{form['row']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        # XLA stops after its first passes, which compile_dump reports as an error.
        early = {**job.options, "xla_early_exit_with_layouts": True}
        with suppress(XlapipeError):
            compile_dump(replace(job, shared_lowering=path, options=early), None)
        path.with_suffix(".json.xz").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
        return {**form, "file": f"{form['family']}/{form['row']}.json.xz"}

    found = []
    for path in sorted(searched.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        found += [
            {
                "family": record["family"],
                "workload": record["workload"],
                "row": row["row"],
                "rematerialise": row["rematerialise"],
                "total_bytes": row["untuned"]["total_bytes"],
            }
            for row in record["rows"]
            if record["family"] != "fsdp-mlp"
        ]
    with ThreadPoolExecutor(options.jobs) as pool:
        write(forms / "forms.json", list(pool.map(lowered, found)))


def at_limits(
    rows: Sequence[dict[str, Any]], basis: str, seconds: Callable[[dict[str, Any]], float]
) -> list[dict[str, Any]]:
    """For each limit, the row that `choose` takes, the fastest one and the best preset.

    Args:
      rows: of `recorded`.
      basis: of the plans that are compared with the limit, and of the times by which `choose`
        takes a row: `predicted_lock`, its default, or `untuned`.
      seconds: of a row, infinite if it is not known: the fastest row and the best preset have the
        least of those that fit.
    """
    sizes = [row[basis]["total_bytes"] for row in rows]
    table = []
    for limit in (int(min(sizes) + share * (max(sizes) - min(sizes))) for share in SHARES):
        fitting = [row for row in rows if row[basis]["total_bytes"] <= limit]
        chosen = min(fitting, key=lambda row: float(row[basis]["predicted_seconds"]))
        fastest = min(fitting, key=seconds)
        preset = min(filter(is_preset, fitting), key=seconds, default=None)
        entry = {"limit_bytes": limit, "chosen": chosen["row"], "fastest": fastest["row"]}
        entry |= {"regret": seconds(chosen) / seconds(fastest) - 1}
        entry |= {"preset": preset["row"] if preset is not None else None}
        gain = seconds(chosen) / seconds(preset) - 1 if preset is not None else None
        table.append({**entry, "beside_preset": gain})
    return table


def predicted_seconds(row: dict[str, Any]) -> float:
    """By the plan with a predicted lock."""
    return float(row["predicted_lock"]["predicted_seconds"])


def measured_seconds(row: dict[str, Any]) -> float:
    """Of a call on the GPU, in a sequence of calls; infinite for a form that was not timed."""
    return float(row.get("tuned", {}).get("step_seconds", math.inf))


def is_preset(row: dict[str, Any]) -> bool:
    """Whether a row is the step as written, or one of jax's own policies."""
    return row["change"] is None or row["change"].startswith(PRESETS)


def recorded(searched: Path, timed: Sequence[Path], before: dict[str, Any]) -> dict[str, Any]:
    """Rows with what was planned and predicted on each basis, and measured.

    Args:
      searched: the folder that `search` wrote.
      timed: files of `time_choose.py`, of one device and one version. Of a form that several have,
        the last one counts, with the peak of any.
      before: an earlier record, for families that were not searched again.

    Returns:
      `families`: of each its rows with `untuned` and `predicted_lock`: planned bytes and predicted
      seconds; and of forms that ran `tuned`: planned bytes, `measured_bytes` (the allocator's
      peak; null if an earlier form hides it), `step_seconds` (of a call, the median of several
      sequences of calls) and `spread` (by how much the slowest sequence is slower than the
      fastest).
    """
    lines = [json.loads(line) for path in timed for line in path.read_text("utf-8").splitlines()]
    ran: dict[tuple[str, int], dict[str, Any]] = {}
    for line in lines:
        if "step_seconds" in line:
            key = line["family"], line["row"]
            own = _measured(line)
            peak = own["measured_bytes"] or ran.get(key, {}).get("measured_bytes")
            ran[key] = {**own, "measured_bytes": peak}
    families = []
    earlier = {family["family"]: family for family in before.get("families", ())}
    for name, workload in FAMILIES.items():
        if name in earlier and not (searched / f"{name}.json").exists():
            families.append(earlier[name])
            continue
        record = json.loads((searched / f"{name}.json").read_text(encoding="utf-8"))
        rows = []
        for row in record["rows"]:
            kept = {key: row[key] for key in ("row", "change", "untuned", "predicted_lock")}
            # Lines of this repository's own models are printed with their folder.
            kept["change"] = kept["change"] and kept["change"].replace(f"{FOLDER.parents[1]}/", "")
            tuned = ran.get((name, row["row"]))
            rows.append({**kept, "tuned": tuned} if tuned is not None else kept)
        families.append({"family": name, "workload": workload, "rows": rows})
    about = [line for line in lines if "versions" in line]
    dates = sorted({line["date"] for line in about})
    kept = [name for name in earlier if not (searched / f"{name}.json").exists()]
    if kept:
        about[0]["earlier"] = {
            "command": before["command"],
            "date": before["date"],
            "families": kept,
        }
    return {**about[0], "date": ", ".join(dates), "families": families}


def _measured(line: dict[str, Any]) -> dict[str, Any]:
    """The fields of a line of `time_choose.py` that are recorded."""
    names = ("total_bytes", "temp_bytes", "measured_bytes", "step_seconds", "calls", "finite")
    each = line["step_seconds_each"]
    return {**{name: line[name] for name in names}, "spread": max(each) / min(each) - 1}


def predicted_table(families: Sequence[dict[str, Any]]) -> list[str]:
    """In Markdown: at each limit, the predicted time of the chosen row beside the best preset's."""
    lines = _head()
    for family in families:
        limits = at_limits(family["rows"], "predicted_lock", predicted_seconds)
        lines.append(_line(family, map(_gain, limits)))
    return lines


def _head() -> list[str]:
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    return [f"| step | plans | {shares} |", f"|---|---|{'--:|' * len(SHARES)}"]


def _line(family: dict[str, Any], cells: Iterable[str]) -> str:
    sizes = [row["predicted_lock"]["total_bytes"] for row in family["rows"]]
    plans = f"{min(sizes) / 2**30:.2f} to {max(sizes) / 2**30:.2f} GiB"
    return f"| {family['family']} | {plans} | {' | '.join(cells)} |"


def _gain(limit: dict[str, Any]) -> str:
    gain = limit["beside_preset"]
    return "none fits" if gain is None else f"{gain:+.1%}" if gain else "0"


def timed_families(families: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of which every form ran that is chosen at a limit, on both bases."""
    return [
        family
        for family in families
        if all(
            math.isfinite(measured_seconds(family["rows"][limit["chosen"]]))
            for basis in BASES
            for limit in at_limits(family["rows"], basis, predicted_seconds)
        )
    ]


def regret_table(families: Sequence[dict[str, Any]]) -> list[str]:
    """In Markdown: at each limit, the regret of the chosen row, and its time beside the preset's.

    Args:
      families: those of `recorded`.
    """
    lines = _head()
    for family in timed_families(families):
        limits = at_limits(family["rows"], "predicted_lock", measured_seconds)
        lines.append(_line(family, (f"{limit['regret']:.1%}, {_gain(limit)}" for limit in limits)))
    return lines


def ordered_share(rows: Sequence[dict[str, Any]], basis: str) -> float:
    """The share of pairs of rows, at least 3 % apart as measured, that are predicted in order."""
    right = []
    for one, other in combinations(rows, 2):
        slow, fast = sorted((one, other), key=measured_seconds, reverse=True)
        if measured_seconds(slow) >= 1.03 * measured_seconds(fast):
            right.append(slow[basis]["predicted_seconds"] > fast[basis]["predicted_seconds"])
    return sum(right) / len(right) if right else 1.0


def accuracy_table(families: Sequence[dict[str, Any]]) -> list[str]:
    """In Markdown: how far predicted times and planned bytes are off, by basis."""
    lines = [
        "| step | forms timed | measured | basis | predicted / measured | mean error "
        "| pairs in order | largest regret | plan / device's |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for family in families:
        rows = [row for row in family["rows"] if "tuned" in row]
        if not rows:
            continue
        seconds = [1e3 * measured_seconds(row) for row in rows]
        first = [family["family"], f"{len(rows)} of {len(family['rows'])}"]
        first += [f"{min(seconds):.1f} to {max(seconds):.1f} ms"]
        for basis in BASES:
            ratios = [row[basis]["predicted_seconds"] / measured_seconds(row) for row in rows]
            sizes = [row[basis]["total_bytes"] / row["tuned"]["total_bytes"] for row in rows]
            limits = at_limits(family["rows"], basis, measured_seconds)
            cells = [
                *first,
                basis.replace("_", " "),
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{mean(abs(ratio - 1) for ratio in ratios):.1%}",
                f"{ordered_share(rows, basis):.0%}",
                f"{max(limit['regret'] for limit in limits):.1%}"
                if family in timed_families([family])
                else "",
                f"{min(sizes) - 1:+.1%} to {max(sizes) - 1:+.1%}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
            first = [""] * len(first)
    return lines


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("search", "lower", "record", "tables"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--compiles", type=int, help="the most forms of a family")
    parser.add_argument("--jobs", type=int, default=2, help="compiles at the same time")
    options = parser.parse_args()
    paths = [path.absolute() for path in options.paths]
    os.chdir(FOLDER)
    if options.command == "search":
        paths[0].mkdir(parents=True, exist_ok=True)
        for name in [path.name for path in paths[1:]] or FAMILIES:
            rows = search(FAMILIES[name], options)
            record = {"family": name, "workload": FAMILIES[name], "rows": rows}
            write(paths[0] / f"{name}.json", record)
            print(f"{name}: {len(rows)} rows", file=sys.stderr, flush=True)
    elif options.command == "lower":
        lower_forms(*paths, options)
    elif options.command == "record":
        before = json.loads(paths[-1].read_text(encoding="utf-8")) if paths[-1].exists() else {}
        write(paths[-1], recorded(paths[0], paths[1:-1], before))
    elif options.command == "tables":
        families = json.loads(paths[0].read_text(encoding="utf-8"))["families"]
        for table in (predicted_table, regret_table, accuracy_table):
            print("\n".join(table(families)), end="\n\n")


if __name__ == "__main__":
    main()
