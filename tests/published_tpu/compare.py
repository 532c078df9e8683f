"""Estimated times of published training steps beside the published ones.

    python -m tests.published_tpu.compare                 # compiles all: libtpu, an hour of CPU
    python -m tests.published_tpu.compare NAME --record   # one, and writes its row of records.json

A program is compiled as far as its plan; generating the code, which takes ten times as long, is
left out. What libtpu writes is not kept: records.json has sums of the estimate only.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).with_name("records.json")
# Seconds without a change, after which a file of libtpu's is complete.
_SETTLED = 4
_QUEUES = {"links": "collectives", "to host": "to the host", "host": "from the host"}


def compile_plan(name: str, folder: Path) -> None:
    """Compiles a step as far as its plan, in this process, which ends then."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from tests.published_tpu.published import ROWS
    from tests.published_tpu.steps import published
    from xlapipe.compile.lowering.kernel_codes import stated_costs

    row, workload = ROWS[name], published(name)
    slice_name = f"{row.target}:{row.topology}"
    devices = topologies.get_topology_desc(platform="tpu", topology_name=slice_name).devices
    axes: Any = workload.mesh
    mesh = Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))

    def placed(specs: Any) -> Any:
        is_spec = lambda item: isinstance(item, PartitionSpec)  # noqa: E731
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)

    with jax.set_mesh(mesh):
        traced = jax.jit(
            workload.fn,
            in_shardings=placed(workload.in_specs),
            out_shardings=placed(workload.out_specs),
            donate_argnums=workload.donate_argnums,
        ).trace(*workload.args)
        costs = [asdict(cost) for cost in stated_costs(traced.jaxpr, {})]
        (folder / "costs.json").write_text(json.dumps(costs))
        lowered = traced.lower(lowering_platforms=("tpu",))
    threading.Thread(target=_end_with_the_plan, args=(folder,), daemon=True).start()
    dumped = {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_as_proto": True,
    }
    lowered.compile(compiler_options={**dumped, **workload.options})


def _end_with_the_plan(folder: Path) -> None:
    while True:
        time.sleep(1)
        done = [*folder.glob("*after_optimizations*memory-usage-report.txt")]
        done += folder.glob("*after_optimizations.hlo.pb")
        if len(done) == 2 and time.time() - max(f.stat().st_mtime for f in done) > _SETTLED:
            os._exit(0)


def estimated(name: str, folder: Path) -> dict[str, Any]:
    """The row of a step whose plan is in a folder."""
    from tests.published_tpu.published import ROWS
    from xlapipe.devices.targets.device import Tpu, device_of_target
    from xlapipe.dump.readers import read_path
    from xlapipe.files.typed_data import typed
    from xlapipe.plans.kernel_code import StatedCost
    from xlapipe.time.cost import step_cost
    from xlapipe.time.predict.scheduled import estimate

    row = ROWS[name]
    costs = json.loads((folder / "costs.json").read_text())
    plan = replace(
        read_path(folder),
        platform="tpu",
        topology=row.topology,
        stated_costs=tuple(typed(StatedCost, cost) for cost in costs),
    )
    device = device_of_target(row.target)
    cost = step_cost(plan, device)
    assert isinstance(device, Tpu) and cost is not None
    prediction = estimate(plan, cost, device)
    parts: dict[str, float] = defaultdict(float)
    for kernel in prediction.kernels:
        item = cost.kernel_of[kernel.name]
        name_of = item.site.inner.kernel_name or ""
        if item.cost.asynchronous or item.wire_bytes:
            continue
        kind = "attention" if "splash" in name_of else "other"
        if kind == "other" and item.stated is not None:
            kind = "experts' products"
        elif kind == "other" and kernel.work.flops:
            kind = "products"
        parts[kind] += kernel.seconds
    waits = {_QUEUES.get(key, key): seconds for key, seconds in prediction.exposed.items()}
    return {
        "estimated": round(prediction.step_seconds or prediction.at_least_seconds or 0.0, 3),
        "low": round(prediction.low_seconds or 0.0, 3),
        "high": round(prediction.high_seconds or 0.0, 3),
        "parts": {key: round(seconds, 3) for key, seconds in sorted(parts.items())},
        "waits": {key: round(s, 3) for key, s in sorted(waits.items()) if s >= 0.0005},
        "libtpu": version("libtpu"),
        "jax": version("jax"),
    }


def table() -> str:
    """The recorded rows, and the figures that judge them."""
    from tests.published_tpu.published import errors, judged

    lines = [f"{'step':30} {'published':>9} {'estimated':>9} {'':>7}  where the time is"]
    for name, row, record in judged():
        error = record["estimated"] / row.seconds - 1
        split = {**record["parts"], **{f"wait {k}": v for k, v in record["waits"].items()}}
        largest = sorted(split.items(), key=lambda item: -item[1])[:4]
        text = ", ".join(f"{key} {seconds:.2f}" for key, seconds in largest)
        lines.append(
            f"{name:30} {row.seconds:9.2f} {record['estimated']:9.2f} {error:+7.1%}  {text}"
        )
    own, single = errors()
    lines.append(f"{own.text}; with the best single MFU: {single.text}")
    return "\n".join(lines)


def main() -> None:
    """Compiles, estimates and prints; see the top of this file."""
    from tests.published_tpu.published import ROWS

    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    if "--compile" in sys.argv:
        compile_plan(names[0], Path(names[1]))
        return
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    for name in () if "--show" in sys.argv else names or ROWS:
        with tempfile.TemporaryDirectory() as kept:
            folder = Path(os.environ.get("PLANS", kept)) / name
            folder.mkdir(exist_ok=True)
            if not (folder / "costs.json").exists():
                command = [sys.executable, "-m", __spec__.name, "--compile", name, str(folder)]
                subprocess.run(command, check=False)  # a step too large for HBM has a plan too
            records[name] = estimated(name, folder)
        print(name, json.dumps(records[name]), flush=True)
    if "--record" in sys.argv:
        RECORDS.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
    print(table())


if __name__ == "__main__":
    main()
