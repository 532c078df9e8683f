"""The training steps as workloads, with the mesh and what is computed again as arguments."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from model import Form, Sizes, shapes, specs, training_step

from xlapipe import Workload


def gpt(mesh: str = "data", remat: str = "none", devices: int = 2, **sizes: int) -> Workload:
    """A GPT: `mesh` is data, fsdp, tensor or e.g. 2x2; `remat` none, block or products."""
    return _workload("gpt", mesh, remat, devices, Sizes(**sizes))


def moe(mesh: str = "data", remat: str = "none", devices: int = 2, **sizes: int) -> Workload:
    """A mixture of eight experts in each block; with `mesh="tensor"` each GPU has some of them."""
    return _workload("moe", mesh, remat, devices, Sizes(**{"width": 1024, "experts": 8, **sizes}))


def _workload(name: str, mesh: str, remat: str, devices: int, sizes: Sizes) -> Workload:
    form = Form.of(mesh, remat, devices)
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        shapes(sizes),
        is_leaf=lambda leaf: isinstance(leaf, tuple),
    )
    tokens = jax.ShapeDtypeStruct((sizes.batch, sizes.length + 1), jnp.int32)
    state: Any = (specs(sizes, form),) * 3
    return Workload(
        name=f"{name}-{mesh}-{remat}",
        fn=training_step(form),
        args=((params,) * 3, tokens),
        donate_argnums=0,
        mesh=form.axes,
        in_specs=(state, P("data")),
        out_specs=(state, P()),
    )
