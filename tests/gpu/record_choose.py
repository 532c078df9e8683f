"""Records what `xlapipe choose` recommends, and how long the forms that it compiled take on a GPU.

    python tests/gpu/record_choose.py search SEARCHED [FAMILY …]   # without a GPU; 2 to 5 min each
    python tests/gpu/record_choose.py predicted SEARCHED           # the table of predicted times
    python tests/gpu/record_choose.py build SEARCHED BUILDS        # without a GPU
    python tests/gpu/time_choose.py BUILDS timed.jsonl             # on an H200
    python tests/gpu/record_choose.py record SEARCHED timed.jsonl choose_regret.json
    python tests/gpu/record_choose.py tables choose_regret.json

`search` looks for policies of each family as `xlapipe choose --remat` does, and compiles each row
again with a predicted lock. `build` makes the executables of those plans; `xlapipe build` refuses
to, since a device may refuse what a predicted lock names. `record` keeps planned and measured bytes
and predicted and measured seconds of each row. `tables` prints the tables of `docs/choose.md`.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
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
    "qwen3-train": "qwen3-train(devices=1, batch=4)",
    "resnet50-train": "resnet50-train(batch=64, bits=None)",
    "fsdp-mlp": "fsdp-mlp",  # for two GPUs, and not timed
}
PRESETS = ("recompute everything", "keep matrix products", "keep only", "keep everything")
TUNED_FIRST = (
    "transformer-scan-1024",
    "convnet",
    "mixture",
    "unet",
    "state-space",
    "qwen3-train",
    "resnet50-train",
    "transformer-loop-1024",
    "transformer-scan-8192",
)
# Limits, as shares of the way from the smallest plan to the largest.
SHARES = (0.05, 0.25, 0.45, 0.65, 0.85)
MEASURED = ("predicted_lock", "tuned")
# What a form on the GPU may need beside other programs that prepare themselves.
_MOST_BYTES = 105_000_000_000


def search(workload: str, jobs: int) -> list[dict[str, Any]]:
    """The compiled rows of a workload, with what applies their policy and with a predicted lock."""
    from xlapipe.choosing.choose import Changes, choose
    from xlapipe.choosing.compiles import job_of
    from xlapipe.choosing.rows import ChoiceRow
    from xlapipe.compiling.make_jobs import CompileOptions
    from xlapipe.sizing.planned_memory import planned_memory

    def with_predicted_lock(row: ChoiceRow) -> dict[str, Any]:
        change = row.candidate.change
        policy = dict(change.rematerialise or {}) if change is not None else None
        job = job_of(workload, row.candidate, CompileOptions(lock="predicted"))
        memory, _ = planned_memory(job, None, whole=False, with_floors=False, with_times=True)
        locked = replace(row, memory=memory).to_json()
        names = ("total_bytes", "temp_bytes", "basis", "error_bytes")
        times = ("predicted_seconds", "predicted_low_seconds", "predicted_high_seconds")
        return {
            "change": row.to_json()["change"],
            "untuned": {name: row.to_json()[name] for name in (*names, *times)},
            "predicted_lock": {name: locked[name] for name in (*names, *times)},
            "code": row.to_json()["code"],
            "rematerialise": policy,
        }

    rows = choose(workload, changes=Changes(remat=True), jobs=jobs).rows
    with ThreadPoolExecutor(jobs) as pool:
        searched = list(pool.map(with_predicted_lock, rows))
    return [{"row": number, **row} for number, row in enumerate(searched)]


def build_programs(searched: Path, builds: Path, jobs: int) -> None:
    """Executables of all rows, and `programs.json` for `time_choose.py`."""
    from xlapipe.choosing.candidate import Candidate, Change
    from xlapipe.choosing.compiles import job_of
    from xlapipe.compiling.make_jobs import CompileOptions
    from xlapipe.compiling.pipeline import compile_dump
    from xlapipe.dumps.dump import EXECUTABLE, write_dump

    def built(program: dict[str, Any]) -> bool:
        policy = program["rematerialise"]
        change = Change("", "", policy) if policy is not None else None
        options = CompileOptions(lock="predicted")
        job = job_of(program["workload"], Candidate({}, "h200", change), options)
        folder = builds / program["folder"]
        if (folder / EXECUTABLE).is_file():
            return True
        compiled = compile_dump(replace(job, serialize=True), None)
        write_dump(folder, compiled.dump.manifest, compiled.files)
        print(folder, len(compiled.files[EXECUTABLE]), file=sys.stderr, flush=True)
        return True

    programs = []
    for path in sorted(searched.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["family"] in TUNED_FIRST:
            programs += list(_programs_of(record))
    programs.sort(key=lambda program: program["order"])
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(built, [p for p in programs if p["basis"] != "tuned"]))
    write(builds / "programs.json", programs)


def _programs_of(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The programs of a family: each row with a predicted lock, and some to be tuned on the GPU.

    Tuned are the first three of: what is chosen at the third limit, the best preset there, the step
    as written, and what is chosen at the first limit.
    """
    rows = [row for row in record["rows"] if row["predicted_lock"]["total_bytes"] < _MOST_BYTES]
    at = at_limits(rows, plans="predicted_lock", times="predicted_lock")
    written = [row["row"] for row in rows if row["change"] is None]
    tuned = list(dict.fromkeys([at[2]["chosen"], at[2]["preset"], *written, at[0]["chosen"]]))[:3]
    first = 1000 + 10 * TUNED_FIRST.index(record["family"])
    for row in rows:
        program = {
            "family": record["family"],
            "workload": record["workload"],
            "row": row["row"],
            "rematerialise": row["rematerialise"],
            "pool_bytes": row["predicted_lock"]["total_bytes"],
            "folder_of_lines": str(FOLDER),
        }
        folder = f"{record['family']}/{row['row']}"
        yield {**program, "basis": "predicted_lock", "folder": folder, "order": row["row"]}
        if row["row"] in tuned:
            yield {
                **program,
                "basis": "tuned",
                "folder": "",
                "order": first + tuned.index(row["row"]),
            }


def at_limits(
    rows: Sequence[dict[str, Any]], *, plans: str, times: str, measured: str | None = None
) -> list[dict[str, Any]]:
    """For each limit, the numbers of the chosen row, the fastest one and the best preset.

    Args:
      plans: the basis of the plans that are compared with the limit: `untuned` or
        `predicted_lock`.
      times: the basis of the predicted times that the chosen row has the least of.
      measured: the basis of the measured times that the fastest row and the best preset have the
        least of; None for the predicted times.
    """
    rows = [row for row in rows if measured is None or "step_seconds" in row.get(measured, {})]
    sizes = [row[plans]["total_bytes"] for row in rows]

    def predicted(row: dict[str, Any]) -> float:
        return float(row[times]["predicted_seconds"])

    def seconds(row: dict[str, Any]) -> float:
        return predicted(row) if measured is None else float(row[measured]["step_seconds"])

    table = []
    for limit in (int(min(sizes) + share * (max(sizes) - min(sizes))) for share in SHARES):
        fitting = [row for row in rows if row[plans]["total_bytes"] <= limit]
        chosen, fastest = min(fitting, key=predicted), min(fitting, key=seconds)
        preset = min(filter(is_preset, fitting), key=seconds, default=None)
        entry = {"limit_bytes": limit, "chosen": chosen["row"], "fastest": fastest["row"]}
        entry |= {"regret": seconds(chosen) / seconds(fastest) - 1}
        entry |= {"preset": preset["row"] if preset is not None else None}
        gain = seconds(chosen) / seconds(preset) - 1 if preset is not None else None
        table.append({**entry, "beside_preset": gain})
    return table


def is_preset(row: dict[str, Any]) -> bool:
    """Whether a row is the step as written, or one of jax's own policies."""
    return row["change"] is None or row["change"].startswith(PRESETS)


def recorded(searched: Path, timed: Path) -> dict[str, Any]:
    """Rows with what was planned and predicted on each basis, and measured.

    Returns:
      `families`: of each its rows with `untuned`, `predicted_lock` and `tuned`: planned bytes,
      predicted seconds, and of executables that ran `measured_bytes` (the allocator's peak),
      `step_seconds` (of a call, in a sequence of calls) and `call_seconds` (with waiting for it).
    """
    lines = [json.loads(line) for line in timed.read_text(encoding="utf-8").splitlines()]
    about = next(line for line in lines if "versions" in line)
    families = []
    for name, workload in FAMILIES.items():
        if not (searched / f"{name}.json").exists():
            continue
        record = json.loads((searched / f"{name}.json").read_text(encoding="utf-8"))
        rows = []
        for row in record["rows"]:
            kept = {key: row[key] for key in ("row", "change", "untuned", "predicted_lock")}
            for line in lines:
                if (line.get("family"), line.get("row")) == (name, row["row"]):
                    kept[line["basis"]] = {**kept.get(line["basis"], {}), **_measured(line)}
            rows.append(kept)
        if any("step_seconds" in row.get(basis, {}) for row in rows for basis in MEASURED):
            families.append({"family": name, "workload": workload, "rows": rows})
    return {**about, "families": families}


def _measured(line: dict[str, Any]) -> dict[str, Any]:
    """The fields of a line of `time_choose.py` that are recorded."""
    if "failed" in line:
        reason = line["failed"].strip().splitlines()[-1][:300]
        return {} if "DumpError" in reason else {"failed": reason}  # a file was not copied there
    stats = line["memory_stats"]
    used = stats["after"]["peak_bytes_in_use"] - stats["before"]["bytes_in_use"]
    names = ("total_bytes", "temp_bytes", "build_seconds", "step_seconds", "call_seconds")
    own = {name: line[name] for name in names if name in line}
    # Other programs prepare themselves meanwhile, which only adds time.
    least = min(line["step_seconds_each"])
    spread = max(line["step_seconds_each"]) / least - 1
    own |= {"step_seconds": least, "measured_bytes": used, "spread": spread}
    return {**own, "finite": line["finite"]}


def predicted_table(families: Sequence[dict[str, Any]]) -> list[str]:
    """In Markdown: at each limit, the predicted time of the chosen row beside the best preset's."""
    lines = _head()
    for family in families:
        sizes = [row["untuned"]["total_bytes"] for row in family["rows"]]
        limits = at_limits(family["rows"], plans="untuned", times="untuned")
        lines.append(_line(family["family"], sizes, map(_gain, limits)))
    return lines


def _head() -> list[str]:
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    return [f"| step | plans | {shares} |", f"|---|---|{'--:|' * len(SHARES)}"]


def _line(name: str, sizes: Sequence[int], cells: Iterable[str]) -> str:
    plans = f"{min(sizes) / 2**30:.2f} to {max(sizes) / 2**30:.2f} GiB"
    return f"| {name} | {plans} | {' | '.join(cells)} |"


def regret_table(families: Sequence[dict[str, Any]]) -> list[str]:
    """In Markdown: at each limit, the regret of the chosen row, and its time beside the preset's.

    Args:
      families: those of `recorded`.
    """
    lines = _head()
    for family in filter(measured_rows, families):
        rows = measured_rows(family)
        sizes = [row["predicted_lock"]["total_bytes"] for row in rows]
        limits = at_limits(
            rows, plans="predicted_lock", times="predicted_lock", measured="predicted_lock"
        )
        cells = (f"{limit['regret']:.1%}, {_gain(limit)}" for limit in limits)
        lines.append(_line(family["family"], sizes, cells))
    return lines


def _gain(limit: dict[str, Any]) -> str:
    gain = limit["beside_preset"]
    return "none fits" if gain is None else f"{gain:+.1%}" if gain else "0"


def measured_rows(family: dict[str, Any], basis: str = "predicted_lock") -> list[dict[str, Any]]:
    """The rows of a family whose executable of a basis ran."""
    return [row for row in family["rows"] if "step_seconds" in row.get(basis, {})]


def ordered_share(rows: Sequence[dict[str, Any]], times: str) -> float:
    """The share of pairs of rows, at least 3 % apart as measured, that are predicted in order."""
    right = []
    for one, other in combinations(rows, 2):
        slow, fast = sorted(
            (one, other), key=lambda row: -float(row["predicted_lock"]["step_seconds"])
        )
        if slow["predicted_lock"]["step_seconds"] >= 1.03 * fast["predicted_lock"]["step_seconds"]:
            right.append(slow[times]["predicted_seconds"] > fast[times]["predicted_seconds"])
    return sum(right) / len(right) if right else 1.0


def accuracy_table(families: Sequence[dict[str, Any]]) -> list[str]:
    """In Markdown: how far predicted times and planned bytes of each family are off."""
    lines = [
        "| step | forms | measured | predicted / measured | pairs in order | regret, largest "
        "| regret by untuned times | peak / plan |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for family in filter(measured_rows, families):
        rows = measured_rows(family)
        own = [row["predicted_lock"] for row in rows]
        ratios = [row["predicted_seconds"] / row["step_seconds"] for row in own]
        peaks = [row["measured_bytes"] / row["total_bytes"] for row in own]
        seconds = [1e3 * row["step_seconds"] for row in own]
        regrets = [
            max(
                limit["regret"]
                for limit in at_limits(
                    rows, plans="predicted_lock", times=times, measured="predicted_lock"
                )
            )
            for times in ("predicted_lock", "untuned")
        ]
        farthest = max(peaks, key=lambda peak: abs(peak - 1))
        cells = [
            family["family"],
            f"{len(rows)}",
            f"{min(seconds):.1f} to {max(seconds):.1f} ms",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            f"{ordered_share(rows, 'predicted_lock'):.0%}",
            f"{regrets[0]:.1%}",
            f"{regrets[1]:.1%}",
            f"{farthest - 1:+.3%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def tuned_table(families: Sequence[dict[str, Any]]) -> list[str]:
    """In Markdown: forms that were also tuned by the device, as `jax.jit` does."""
    lines = [
        "| step | form | measured, predicted lock | measured, tuned | peak, tuned | its plan "
        "| plan, predicted lock | plan, untuned |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for family in families:
        for row in measured_rows(family, "tuned"):
            tuned, locked = row["tuned"], row["predicted_lock"]
            ran = f"{1e3 * locked['step_seconds']:.2f} ms" if "step_seconds" in locked else ""
            sizes = [tuned["measured_bytes"], tuned["total_bytes"], locked["total_bytes"]]
            sizes.append(row["untuned"]["total_bytes"])
            cells = [family["family"], row["change"] or "as written", ran]
            cells += [f"{1e3 * tuned['step_seconds']:.2f} ms"]
            cells += [f"{size / 2**30:.3f} GiB" for size in sizes]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("search", "predicted", "build", "record", "tables"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=2, help="compiles at the same time")
    options = parser.parse_args()
    paths = [path.absolute() for path in options.paths]
    os.chdir(FOLDER)
    if options.command == "search":
        paths[0].mkdir(parents=True, exist_ok=True)
        for name in [path.name for path in paths[1:]] or FAMILIES:
            rows = search(FAMILIES[name], options.jobs)
            record = {"family": name, "workload": FAMILIES[name], "rows": rows}
            write(paths[0] / f"{name}.json", record)
            print(f"{name}: {len(rows)} rows", file=sys.stderr, flush=True)
    elif options.command == "build":
        build_programs(*paths, options.jobs)
    elif options.command == "predicted":
        searched = [paths[0] / f"{name}.json" for name in FAMILIES]
        found = [path.read_text(encoding="utf-8") for path in searched if path.exists()]
        print("\n".join(predicted_table([json.loads(text) for text in found])))
    elif options.command == "record":
        write(paths[2], recorded(paths[0], paths[1]))
    elif options.command == "tables":
        families = json.loads(paths[0].read_text(encoding="utf-8"))["families"]
        for table in (regret_table, accuracy_table, tuned_table):
            print("\n".join(table(families)), end="\n\n")


if __name__ == "__main__":
    main()
