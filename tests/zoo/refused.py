"""Steps that xlapipe refuses, because their plan would be of another program or of no machine."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

_X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
_MESH, _OTHER_MESH = AbstractMesh((4,), ("x",)), AbstractMesh((2, 2), ("a", "b"))


def _sharded(mesh: AbstractMesh | jax.sharding.Mesh, spec: P) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, spec))


@functools.partial(jax.jit, donate_argnums=0)
def _update(state: Any, x: Any) -> Any:
    return state + x


def _update_undonated(state: Any, x: Any) -> Any:
    return _update(state, x)


def _bytes_in_use(x: Any) -> Any:
    stats = jax.devices()[0].memory_stats()
    return x * stats["bytes_in_use"]


def _prints(x: Any) -> Any:
    jax.debug.print("{}", x[0, 0])
    return x + 1


def _asks_cudnn_itself(x: Any) -> Any:
    from jax._src.lib import cuda_versions

    return x * cuda_versions.cudnn_get_version()  # type: ignore[union-attr]


def _own_mesh_in_shard_map(x: Any) -> Any:
    mapped = jax.shard_map(lambda x: x, mesh=_OTHER_MESH, in_specs=P("a"), out_specs=P("a"))
    return mapped(x)


def _convolves(x: Any) -> Any:
    return jax.lax.conv(x, x, (1, 1), "SAME")


def _attends_with_cudnn(q: Any) -> Any:
    return jax.nn.dot_product_attention(q, q, q, implementation="cudnn")


pmapped = Workload(name="pmapped", fn=jax.pmap(lambda x: x), args=(_X,))
lost_donation = Workload(name="lost_donation", fn=_update_undonated, args=(_X, _X))
static_string = Workload(name="static_string", fn=lambda x, mode: x, args=(_X, "hello"))
two_meshes = Workload(
    name="two_meshes",
    fn=lambda x, y: x + y,
    args=(_sharded(_MESH, P("x")), _sharded(_OTHER_MESH, P("a"))),
)
specs_and_shardings = Workload(
    name="specs_and_shardings",
    fn=lambda x: x,
    args=(_sharded(_MESH, P("x")),),
    mesh={"x": 4},
    in_specs=P(None, "x"),
)
asks_for_memory = Workload(name="asks_for_memory", fn=_bytes_in_use, args=(_X,))
prints = Workload(name="prints", fn=_prints, args=(_X,))
asks_cudnn_itself = Workload(name="asks_cudnn_itself", fn=_asks_cudnn_itself, args=(_X,))
convolves = Workload(
    name="convolves",
    fn=_convolves,
    args=(jax.ShapeDtypeStruct((8, 8, 3, 3), jnp.bfloat16),),
)
attends_with_cudnn = Workload(
    name="attends_with_cudnn",
    fn=_attends_with_cudnn,
    args=(jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16),),
)


own_mesh_in_shard_map = Workload(
    name="own_mesh_in_shard_map", fn=_own_mesh_in_shard_map, args=(_X,), mesh={"a": 2, "b": 2}
)


def reordered_devices() -> Workload:
    """An argument over four devices of this machine, the first two exchanged."""
    jax.config.update("jax_num_cpu_devices", 4)
    first, second, *others = jax.devices()
    mesh = jax.sharding.Mesh([second, first, *others], ("x",))
    return Workload(name="reordered_devices", fn=jnp.sin, args=(_sharded(mesh, P("x")),))
