"""Brings calibrations up to date after points or formulas changed, without a GPU.

    python tests/gpu/time_zoo/recompute_points.py FOLDER REVISION

Compiles the programs of the calibrations for an H200 into FOLDER, unless it holds them, and finds
each timed kernel in the plans by what the code of REVISION, which wrote the calibrations, makes of
them. FOLDER/ANY/PROGRAM is a plan, also a tuned one as `time_programs` writes it on a GPU: those
whose ANY comes last in the alphabet are taken first, such as `tuned` before `triton`. The kernel's
kind, its point and its ratio to the formula are then those of the code here; times stay as
measured. Kernels that no plan has stay as they are.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from xlapipe.cost import step_cost
from xlapipe.cost.schedule import schedule_of
from xlapipe.plans.plan import Plan
from xlapipe.predict import kernel_time, kernel_work
from xlapipe.predict.calibration import parse_calibration
from xlapipe.predict.launches import Launch, Loop, Step, graphs_of, launches_of, thunks_of
from xlapipe.readers import read_path
from xlapipe.targets.device import device_of_target

CALIBRATIONS = Path(kernel_work.__file__).with_name("calibrations")
_SETTINGS = {"triton": {}, "cublas": {"xla_gpu_enable_triton_gemm": False}}
# Points are rounded, and those of equal kernels are one.
_NEAR = 0.12


def compile_programs(folder: Path) -> None:
    """Writes XLA's files of each program, with products by Triton and by cuBLAS."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from xlapipe.platforms import NVIDIA
    from xlapipe.running.calibration.calibrate import programs_for_one_gpu
    from xlapipe.targets.catalogue import target_named

    arguments = NVIDIA.topology_arguments(target_named("h200").config_text, None)
    devices = topologies.get_topology_desc(platform=NVIDIA.name, **arguments).devices
    sharding = SingleDeviceSharding(devices[0])
    for name, program in programs_for_one_gpu().items():
        structs = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            program.structs(),
        )
        donated = (0,) if program.carried else ()
        results = {} if structs else {"out_shardings": sharding}
        try:
            traced = jax.jit(program.fn, donate_argnums=donated, **results).trace(*structs)
        except RuntimeError as error:  # attention of cuDNN asks for its version
            print(f"{name}: {error!s:.80}")
            continue
        for setting, options in _SETTINGS.items():
            with tempfile.TemporaryDirectory() as scratch:
                given = {
                    "xla_dump_to": scratch,
                    "xla_dump_hlo_as_proto": True,
                    "xla_dump_hlo_as_text": False,
                    "xla_backend_optimization_level": 0,
                    **options,
                    **program.options,
                }
                try:
                    traced.lower(lowering_platforms=("cuda",)).compile(compiler_options=given)
                except Exception as error:  # noqa: BLE001  # attention needs cuDNN
                    print(f"{name}: {error!s:.80}")
                    continue
                place = folder / setting / name
                place.mkdir(parents=True, exist_ok=True)
                for path in Path(scratch).iterdir():
                    if path.name.endswith(("gpu_after_optimizations.hlo.pb", "sequence.txt")):
                        (place / path.name).write_bytes(path.read_bytes())


def modules_at(revision: str, *names: str) -> list[ModuleType]:
    """Modules of `xlapipe.predict` as the whole package was at a revision."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(CALIBRATIONS.parents[2]), *arguments]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch) / "predict_before"
        package.mkdir()
        modules = []
        for path in git("ls-tree", "--name-only", revision, "xlapipe/predict/").splitlines():
            if path.endswith(".py"):
                text = git("show", f"{revision}:{path}")
                text = text.replace("xlapipe.predict.", "predict_before.")
                (package / Path(path).name).write_text(text, encoding="utf-8")
                modules.append(Path(path).stem)
        (package / "__init__.py").write_text("", encoding="utf-8")
        sys.path.insert(0, scratch)
        try:
            # All of them, since some import others only when they are called.
            for name in modules:
                importlib.import_module(f"predict_before.{name}")
            return [importlib.import_module(f"predict_before.{name}") for name in names]
        finally:
            sys.path.remove(scratch)


def launched(plan: Plan, target: str, l2_bytes: int) -> Iterator[tuple[tuple[Any, ...], int, bool]]:
    """Arguments of `work_of` for each kernel, cached bytes, and whether it is in a graph."""
    cost = step_cost(plan, device_of_target(target))
    assert cost is not None
    assert plan.module is not None
    nodes = schedule_of(plan.module)
    thunks, graphs = thunks_of(plan, nodes), graphs_of(plan, nodes)

    def flat(steps: tuple[Step, ...]) -> Iterator[Launch]:
        for step in steps:
            if isinstance(step, Launch):
                yield step
            elif isinstance(step, Loop):
                yield from flat(step.first)
            elif step.branches:
                yield from flat(step.branches[0])

    for launch in flat(launches_of(plan, cost, l2_bytes)):
        name = launch.site.instruction.name
        work = (launch.site, cost.one_launch[name][0], plan.module, thunks.get(name))
        yield work, launch.cached_bytes, name in graphs


def recompute(path: Path, plans: dict[str, list[Plan]], revision: str) -> Counter[str]:
    """Rewrites a calibration; returns how many of its kernels were found."""
    work_before, time_before = modules_at(revision, "kernel_work", "kernel_time")
    text = path.read_text(encoding="utf-8")
    constants = parse_calibration(text, where=str(path)).constants
    lines = text.splitlines()
    kernels: dict[str, list[tuple[Any, ...]]] = {}
    count: Counter[str] = Counter()
    for number, line in enumerate(lines[2:], 2):
        row = json.loads(line)
        name = row["program"]
        if name not in kernels:
            kernels[name] = [
                (work_before.work_of(*item[0]), *item)
                for plan in plans.get(name, ())
                for item in launched(plan, path.stem, int(constants.l2_bytes))
            ]
        near = min(
            (
                (max(abs(a - b) for a, b in zip(before.point, row["at"], strict=True)), *rest)
                for before, *rest in ((k[0], *k) for k in kernels[name])
                if before.kind == row["kind"] and len(before.point) == len(row["at"])
            ),
            key=lambda item: (item[0], item[-1] != row["graph"]),
            default=None,
        )
        count["kept" if near is None or near[0] > _NEAR else "found"] += 1
        if near is None or near[0] > _NEAR:
            continue
        _, before, arguments, cached, _ = near
        now = kernel_work.work_of(*arguments)
        factor = time_before.formula_seconds(before, cached, constants)
        factor /= kernel_time.formula_seconds(now, cached, constants)
        row |= {"kind": now.kind, "at": [round(part, 2) for part in now.point]}
        row["ratio"] = round(row["ratio"] * factor, 3)
        lines[number] = json.dumps(row)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return count


def main(folder: str, revision: str) -> None:
    if not Path(folder).exists():
        compile_programs(Path(folder))
    plans: dict[str, list[Plan]] = {}
    for root in sorted(Path(folder).iterdir(), reverse=True):
        for place in sorted({path.parent for path in root.rglob("*.hlo.pb")}):
            plans.setdefault(str(place.relative_to(root)), []).append(read_path(place))
    for path in sorted(CALIBRATIONS.glob("*.jsonl")):
        print(path.name, dict(recompute(path, plans, revision)))


if __name__ == "__main__":
    main(*sys.argv[1:])
