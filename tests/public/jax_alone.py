"""Compiles the steps with jax alone: `python jax_alone.py TARGET_CONFIG RESULT`.

The result is a JSON file of totals by step. Of xlapipe, only the class Workload is imported.
"""

import functools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from tests.public.steps import STEPS

OPTIONS = {"xla_backend_optimization_level": 0}
KINDS = ("argument", "output", "alias", "temp")


def totals(step: Any, config: str) -> dict[str, int]:
    topology = topologies.get_topology_desc(platform="cuda", target_config=config, topology="1x1x1")
    args = _placed(step.args, SingleDeviceSharding(topology.devices[0]))
    fn, donated = step.fn, step.donate_argnums
    if type(fn).__module__.startswith("equinox."):
        fn, args, donated = _without_filter_jit(fn, args)
    if not hasattr(fn, "lower"):
        fn = jax.jit(fn, donate_argnums=donated or None)
    lowered = fn.lower(*args)
    lowered = getattr(lowered, "lowered", lowered)  # nnx.jit wraps it
    analysis = lowered.compile(compiler_options=OPTIONS).memory_analysis()
    return {kind: int(getattr(analysis, f"{kind}_size_in_bytes")) for kind in KINDS}


def _without_filter_jit(fn: Any, args: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """The function, arguments and donation of `eqx.filter_jit`, which takes no abstract arrays."""
    import equinox as eqx

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


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    CONFIG = Path(sys.argv[1]).read_text(encoding="utf-8")
    rows = {name: totals(step(), CONFIG) for name, step in STEPS.items()}
    Path(sys.argv[2]).write_text(json.dumps(rows), encoding="utf-8")
