"""Compares programs of the zoo on the attached GPU with the same programs compiled without it.

    cd tests/zoo/programs && python ../../gpu/record_zoo.py BUILDS PLANS OUT.json

BUILDS is as for record_runs.py. PLANS contains a folder of `xlapipe dump … --tuning …` for
each program that cannot be built without a GPU: those with host callbacks and with cuDNN attention.
Their plans are compared with the memory of a plain `jax.jit(…).lower(…).compile()` on the GPU.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from provenance import provenance
from record_runs import INPUTS, record_of, xlapipe

from xlapipe.dump.dump import Dump, open_dump

# Programs at once: starting jax takes most of the time, and the programs are small.
_AT_ONCE = 12


def figures_of(dump: Dump) -> dict[str, Any]:
    """What a compile without the GPU must give again."""
    plan = dump.plan
    return {
        "allocation_bytes": [allocation.size_bytes for allocation in plan.allocations],
        "memory_analysis": dict(dump.manifest.memory_analysis),
        "thunks": plan.thunk_counts,
        "autotuning": dump.manifest.autotuning,
    }


def layout_of(dump: Dump) -> Any:
    """Allocations and the values in them without XLA's names, whose numbers may differ."""
    return [
        (
            allocation.size_bytes,
            sorted(allocation.kinds),
            allocation.color,
            sorted((it.offset_bytes, it.size_bytes, it.shape.text) for it in allocation.values),
        )
        for allocation in dump.plan.allocations
    ]


def built_record(build: Path, scratch: Path) -> dict[str, Any]:
    """Of a program whose executable was built without the GPU."""
    record = record_of(build, scratch)
    fresh, built = open_dump(scratch / build.name), open_dump(build)
    return {
        **record,
        **figures_of(fresh),
        "layout_identical": layout_of(fresh) == layout_of(built),
    }


def planned_record(folder: Path, scratch: Path) -> dict[str, Any]:
    """Of a program that was only planned without the GPU."""
    reference = folder.name.replace("=", ":")
    lock = folder / "autotune_lock.json"
    options: list[str | Path] = ["--target", "attached"]
    options += ["--tuning", lock] if lock.exists() else []
    planned, out = open_dump(folder), scratch / "dumps"
    xlapipe("dump", reference, *options, "--out", out)
    (on_device,) = out.glob("*/*")
    record = {
        **figures_of(open_dump(on_device)),
        "plan_identical": _same(folder / "plan.txt", on_device / "plan.txt"),
        "layout_identical": layout_of(open_dump(on_device)) == layout_of(planned),
        "plain_jit": _plain_jit(reference),
        "callbacks": len(planned.plan.host_callbacks),
        "calls_without_workspace": len(planned.plan.unfinished_calls),
        "calls_without_workspace_on_device": len(open_dump(on_device).plan.unfinished_calls),
    }
    if not planned.plan.unfinished_calls:
        return record
    runs = []
    for name in ("first", "second"):
        xlapipe("build", reference, *options, "--out", scratch / name)
        runs.append(xlapipe("run", scratch / name, *INPUTS)["outputs"])
    return {**record, "outputs_bit_identical": runs[0] == runs[1], "outputs": len(runs[0])}


def _same(first: Path, second: Path) -> bool:
    return first.read_text() == second.read_text()


def _plain_jit(reference: str) -> dict[str, int]:
    """memory_analysis() of the step as jax itself compiles it, in another process."""
    command = [sys.executable, __file__, "--plain-jit", reference]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{reference}\n{done.stderr}")
    sizes: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return sizes


def print_plain_jit(reference: str) -> None:
    """Compiles a step without xlapipe, and prints XLA's totals as JSON."""
    import jax

    from xlapipe.compile.lowering.load_workload import load_workload
    from xlapipe.registry import WorkloadReference

    sys.path.insert(0, str(Path.cwd()))
    workload = load_workload(WorkloadReference(reference, reference))
    step = jax.jit(workload.fn, donate_argnums=workload.donate_argnums)
    memory = step.lower(*workload.args).compile().memory_analysis()
    names = ("argument", "output", "alias", "temp")
    sizes = {f"{name}_bytes": getattr(memory, f"{name}_size_in_bytes") for name in names}
    print(json.dumps(sizes))


def main(builds: str, plans: str, out: str) -> None:
    def record(folder: Path, record_one: Callable[[Path, Path], dict[str, Any]]) -> Any:
        try:
            with tempfile.TemporaryDirectory() as scratch:
                record = record_one(folder, Path(scratch))
        except SystemExit as failure:  # the other programs are recorded nevertheless
            record = {"error": str(failure)}
        reference = folder.name.replace("=", ":")
        print(reference, json.dumps(record), flush=True)
        return reference, record

    folders = [(path, planned_record) for path in sorted(Path(plans).iterdir())]
    folders += [(path, built_record) for path in sorted(Path(builds).iterdir())]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        records = dict(pool.map(lambda item: record(*item), folders))
    about = provenance(open_dump(folders[0][0]).manifest.versions)
    text = json.dumps({**about, "programs": records}, indent=1, sort_keys=True)
    Path(out).write_text(text + "\n", encoding="utf-8")
    if failed := [name for name, record in records.items() if "error" in record]:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    if sys.argv[1] == "--plain-jit":
        print_plain_jit(sys.argv[2])
    else:
        main(*sys.argv[1:])
