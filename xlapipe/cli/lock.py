"""`xlapipe lock`: the autotune locks from which predicted locks are made."""

import argparse
from collections import Counter
from pathlib import Path

from xlapipe.cli.options import Commands
from xlapipe.cli.output import print_json, print_text


def add(commands: Commands) -> None:
    """Adds the commands of the group `lock`."""
    lock = commands.group("lock", "Keep autotune locks from which others are predicted.")
    text = "Copy locks of devices to this user's folder, from which others are predicted."
    parser = lock.add("add", _add, text)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="autotune_lock.json")
    lock.add(
        "known", _known, "List what is known: tables of this package, and locks that were added."
    )


def _add(options: argparse.Namespace) -> int:
    from xlapipe.compile.known_locks import add_lock

    copies = [(file, add_lock(file)) for file in options.files]
    if options.json:
        print_json({"locks": [str(copy) for _, copy in copies]})
        return 0
    for file, copy in copies:
        print_text(f"{file}: added as {copy}")
    return 0


def _known(options: argparse.Namespace) -> int:
    from xlapipe.compile.known_locks import added_locks
    from xlapipe.time.predicted_locks.known_results import TABLES, KnownResults, results_of_lock

    rows = []
    for path in sorted(TABLES.glob("*.jsonl")):
        known = KnownResults.read(path)
        programs = Counter(name for row in known.results for name in row.programs)
        rows.append(
            {
                "from": "package",
                "target": known.about["target"],
                "jaxlib": known.about["versions"]["jaxlib"],
                "gemm_policy": known.about["gemm_policy"],
                "programs": sorted(programs),
                "results": len({row.fingerprint for row in known.results}),
            }
        )
    for path, lock in added_locks():
        rows.append(
            {
                "from": str(path),
                "target": lock.target,
                "jaxlib": lock.versions.get("jaxlib"),
                "gemm_policy": lock.gemm_policy,
                "programs": [lock.workload],
                "results": len(results_of_lock(lock.results, program=lock.workload)[1]),
            }
        )
    if options.json:
        print_json({"known": rows})
        return 0
    for row in rows:
        programs = row["programs"]
        names = programs[0] if len(programs) == 1 else f"{len(programs)} programs"
        print_text(
            f"{row['target']}, jaxlib {row['jaxlib']}, GEMM policy {row['gemm_policy']}: results "
            f"of {row['results']} instructions of {names} ({row['from']})"
        )
    return 0
