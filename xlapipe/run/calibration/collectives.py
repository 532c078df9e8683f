"""Programs of a calibration that time collectives between the GPUs of one host."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlapipe.run.calibration.timed_program import Arg, TimedProgram

_AXIS = "gpus"


def collective_programs(devices: Sequence[Any]) -> dict[str, TimedProgram]:
    """A program for each kind and size, over all devices; none for one device."""
    count = len(devices)
    if count < 2:
        return {}
    mesh = Mesh(np.array(devices), (_AXIS,))
    ring = [(number, (number + 1) % count) for number in range(count)]
    kinds: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda x: lax.psum(x, _AXIS),
        "all_gather": lambda x: lax.all_gather(x, _AXIS, tiled=True),
        "reduce_scatter": lambda x: lax.psum_scatter(x, _AXIS, tiled=True),
        "all_to_all": lambda x: lax.all_to_all(x, _AXIS, 0, 0, tiled=True),
        "permute": lambda x: lax.ppermute(x, _AXIS, ring),
    }
    programs = {}
    for kind, fn in kinds.items():
        for power in (10, 14, 16, 18, 20, 22, 24, 26):
            for dtype, tag in ((jnp.float32, "f32"), (jnp.bfloat16, "bf16")):
                if tag == "bf16" and power % 4 != 2:
                    continue
                sharding = NamedSharding(mesh, PartitionSpec(_AXIS))
                x = Arg((count << power,), dtype, sharding=sharding)
                programs[f"{kind}_{tag}_{1 << power}"] = TimedProgram(
                    jax.shard_map(
                        partial(_with_kernels, fn),
                        mesh=mesh,
                        in_specs=PartitionSpec(_AXIS),
                        out_specs=PartitionSpec(_AXIS),
                        check_vma=False,
                    ),
                    (x,),
                )
    return programs


def _with_kernels(collective: Callable[[Any], Any], x: Any) -> Any:
    """A collective between kernels, as in a step: the devices then start it at the same time."""
    before = lax.optimization_barrier(x * 2)
    return lax.optimization_barrier(collective(before)) + 1
