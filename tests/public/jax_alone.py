"""Compiles steps with jax alone: `python jax_alone.py TARGET_CONFIG RESULT MODULE:STEP...`.

xlapipe is not imported. The result is a JSON file of totals, or of an error, by step.
"""

import functools
import importlib
import json
import math
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import mlir
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from tests.public.step import made_for

OPTIONS = {"xla_backend_optimization_level": 0}
KINDS = ("argument", "output", "alias", "temp")


def topology_devices(config: str, count: int) -> list[Any]:
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=config, topology=f"1x1x{count}"
    )
    return list(topology.devices)


def totals(step: Any, config: str) -> dict[str, int]:
    axes = dict(step.mesh.shape if isinstance(step.mesh, Mesh) else step.mesh or {})
    devices = np.array(topology_devices(config, math.prod(axes.values())))
    mesh = None
    args: Any = step.args
    if isinstance(step.mesh, Mesh):
        mesh = step.mesh
    elif step.mesh is None:
        args = _placed(args, SingleDeviceSharding(devices[0]))
    else:
        types = (AxisType.Auto,) * len(axes)
        mesh = Mesh(devices.reshape(tuple(axes.values())), tuple(axes), axis_types=types)
        specs = step.in_specs or (PartitionSpec(),) * len(args)
        args = tuple(
            _placed(arg, NamedSharding(mesh, spec)) for arg, spec in zip(args, specs, strict=True)
        )
    fn, donated = step.fn, step.donate_argnums
    if type(fn).__module__.startswith("equinox."):
        fn, args, donated = _without_filter_jit(fn, args)
    if not hasattr(fn, "lower"):
        fn = jax.jit(fn, donate_argnums=donated or None)
    if mesh is not None:
        with jax.set_mesh(mesh):
            lowered = fn.lower(*args)
    else:
        lowered = fn.lower(*args)
    lowered = getattr(lowered, "lowered", lowered)  # nnx.jit wraps it
    # Compiling alone cannot pass Python functions to a device that is not there.
    lowered._lowering.compile_args["host_callbacks"] = []
    analysis = lowered.compile(compiler_options=OPTIONS).memory_analysis()
    return {kind: int(getattr(analysis, f"{kind}_size_in_bytes")) for kind in KINDS}


def _without_filter_jit(fn: Any, args: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """The function, arguments and donation of `eqx.filter_jit`, which takes no abstract arrays."""
    import equinox as eqx

    if type(fn).__name__ == "Partial":  # a method, bound to its module
        bound = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), fn.args)
        fn, args = fn.func, (*bound, *args)
    dynamic, static = eqx.partition(args, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def arrays_only(dynamic: Any) -> Any:
        outputs = fn.__wrapped__(*eqx.combine(dynamic, static))
        # filter_jit returns one more number, which it waits for.
        return jnp.array(0), eqx.filter(outputs, eqx.is_array)

    return arrays_only, (dynamic,), (0,) if fn.donate_first else ()


def _placed(tree: Any, sharding: Any) -> Any:
    """A tree with abstract leaves; a variable of nnx that is in it twice stays one variable."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(tree, nnx.Pytree):
        graph, state = nnx.split(tree)
        return nnx.merge(graph, _placed(state, sharding))
    if nnx is not None and type(tree) is tuple:
        return tuple(_placed(item, sharding) for item in tree)
    return jax.tree.map(functools.partial(_leaf, sharding), tree)


def _leaf(sharding: Any, leaf: Any) -> Any:
    if not hasattr(leaf, "dtype"):
        return leaf
    return jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=sharding, weak_type=getattr(leaf, "weak_type", False)
    )


def main(config: str, result: Path, names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    # Lowering of a host callback asks for a client of the device, and uses it for TPUs only.
    mlir.ModuleContext.get_backend = lambda self, **_: None
    results: dict[str, Any] = {}
    for name in names:
        module, step = name.split(":")
        try:
            imported = importlib.import_module(f"tests.public.steps.{module}")
            count = getattr(imported, "DEVICE_COUNT", 1)
            devices = functools.partial(topology_devices, config, count)
            made = made_for(imported, step, devices)
            results[step] = totals(made, config)
        except Exception as error:  # noqa: BLE001 - a public project may raise anything
            traceback.print_exc()
            results[step] = {"error": f"{type(error).__name__}: {error}"}
    result.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(), Path(sys.argv[2]), sys.argv[3:])
