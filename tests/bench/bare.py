"""A bare compile without xlapipe: lowers and compiles for a GPU that is not attached; XLA dumps.

python bare.py TARGET_CONFIG DUMP_FOLDER [MODULE:WORKLOAD]
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding


def main(config: str, folder: str, name: str = "programs:decode_28") -> None:
    module, _, function = name.partition(":")
    workload = getattr(importlib.import_module(module), function)()
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=Path(config).read_text(), topology="1x1x1"
    )
    sharding = SingleDeviceSharding(topology.devices[0])

    def on_target(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    arguments = jax.tree.map(on_target, tuple(workload.args))
    lowered = jax.jit(workload.fn, donate_argnums=workload.donated).lower(*arguments)
    options = {"xla_dump_hlo_as_text": True, "xla_dump_hlo_as_proto": True}
    lowered.compile(compiler_options={"xla_dump_to": folder, **options})


if __name__ == "__main__":
    main(*sys.argv[1:])
