"""Compiles the variants of `compare_orders.py` that ran without their plans being kept.

    python tests/gpu/time_zoo/compile_orders.py FOLDER

No GPU is needed: every variant is compiled for the H200 with a predicted lock, as `xlapipe choose`
does, one after another (2 to 60 s each). Its workload is in `records/orders.json`, which also gets
what authors state of Pallas kernels and what their code says; the policy that `choose` found, if
any, is in the archive
`records/orders.plans.tar.xz`, which is written. Plans that FOLDER already has are kept.
"""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xlapipe.compile.child_process import compile_workload
from xlapipe.compile.make_jobs import CompileSettings
from xlapipe.compile.tuning import Tuned
from xlapipe.errors import XlapipeError
from xlapipe.files.contents import read_packed
from xlapipe.registry import find_workload
from xlapipe.run.calibration.record import KEPT_FILES, packed, unpack
from xlapipe.search.candidate import Candidate, Change, job_of

HERE = Path(__file__).resolve().parent
RECORD = HERE / "records/orders.json"
ARCHIVE = HERE / "records/orders.plans.tar.xz"
POLICY = "rematerialise.json"


def compiled(entry: dict[str, Any], folder: Path) -> None:
    """Writes the files that a prediction needs; adds what the author states of kernels."""
    path, options = folder / POLICY, entry.get("options", {})
    text = path.read_text(encoding="utf-8") if path.exists() else "null"
    policy = json.loads(text.replace("{root}", str(HERE.parents[2])))
    arguments = {"rematerialise": policy} if policy else {}
    change = Change("", arguments=arguments, options=options)
    candidate = Candidate(find_workload(entry["workload"]), target="h200", change=change)
    job = job_of(candidate, CompileSettings(tuning=Tuned.AUTO))
    with compile_workload(replace(job, plan_only=True)) as result:
        folder.mkdir(parents=True, exist_ok=True)
        for path in result.dump_folder.iterdir():
            if KEPT_FILES.search(path.name):
                (folder / path.name).write_bytes(path.read_bytes())
        if stated := [asdict(cost) for cost in result.record.stated_costs]:
            entry["stated_costs"] = stated
        if codes := [asdict(code) for code in result.record.kernel_codes]:
            entry["kernel_codes"] = codes


def main(folder: str) -> None:
    out = Path(folder).absolute()
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    if ARCHIVE.exists():
        unpack(read_packed(ARCHIVE), out, endings=(POLICY,))
    os.chdir(HERE.parent)  # of the module of `choose_families:…`
    for name, entry in record["plans"].items():
        if not list((out / name).glob("*.hlo.pb")):
            try:
                compiled(entry, out / name)
            except XlapipeError as error:
                print(f"{name}: {error}", file=sys.stderr)
            else:
                print(name, file=sys.stderr, flush=True)
    text = json.dumps(record, separators=(",", ":"))
    RECORD.write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
    kept = [p for p in sorted(out.rglob("*")) if p.name == POLICY or KEPT_FILES.search(p.name)]
    ARCHIVE.write_bytes(packed({str(p.relative_to(out)): p.read_bytes() for p in kept}))


if __name__ == "__main__":
    main(*sys.argv[1:])
