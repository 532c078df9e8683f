"""List for which GPUs tuning can be predicted; with files, add locks of devices to that first.

xlapipe device locks
    tables of this package, and locks that were added
xlapipe device locks hlo_dumps/*/*/autotune_lock.json
    copies the locks of your goldens to this user's folder
"""

import argparse
from collections import Counter

from xlapipe.cli.options import Options
from xlapipe.cli.output import print_json, print_text

OPTIONS: Options = {
    "files FILE": {"nargs": "*", "help": "autotune_lock.json of devices, to be added"},
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.compile.known_locks import add_lock, added_locks
    from xlapipe.time.predicted_locks.known_results import TABLES, KnownResults, results_of_lock

    for file in options.files:
        copy = add_lock(file)
        if not options.json:
            print_text(f"{file}: added as {copy}")
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
