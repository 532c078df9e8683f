"""Steps that xlapipe refuses, because their plan would be of another program or of no machine."""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
MESH, _OTHER_MESH = AbstractMesh((4,), ("x",)), AbstractMesh((2, 2), ("a", "b"))


def sharded(mesh: AbstractMesh | jax.sharding.Mesh, spec: P) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, spec))


@functools.partial(jax.jit, donate_argnums=0)
def update(state: Any, x: Any) -> Any:
    return state + x


def _update_undonated(state: Any, x: Any) -> Any:
    return update(state, x)


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


def mean_over_devices(x: Any) -> Any:
    return x - jax.lax.pmean(x, "i")


pmapped = Workload(name="pmapped", fn=jax.pmap(mean_over_devices, axis_name="i"), args=(X,))
lost_donation = Workload(name="lost_donation", fn=_update_undonated, args=(X, X))
static_string = Workload(name="static_string", fn=lambda x, mode: x, args=(X, "hello"))
two_meshes = Workload(
    name="two_meshes",
    fn=lambda x, y: x + y,
    args=(sharded(MESH, P("x")), sharded(_OTHER_MESH, P("a"))),
)
specs_and_shardings = Workload(
    name="specs_and_shardings",
    fn=lambda x: x,
    args=(sharded(MESH, P("x")),),
    mesh={"x": 4},
    in_specs=P(None, "x"),
)
asks_for_memory = Workload(name="asks_for_memory", fn=_bytes_in_use, args=(X,))
prints = Workload(name="prints", fn=_prints, args=(X,))
asks_cudnn_itself = Workload(name="asks_cudnn_itself", fn=_asks_cudnn_itself, args=(X,))
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
    name="own_mesh_in_shard_map", fn=_own_mesh_in_shard_map, args=(X,), mesh={"a": 2, "b": 2}
)


_MESH_OF_4 = jax.sharding.AbstractMesh((4,), ("x",))
_OVER_4 = NamedSharding(_MESH_OF_4, P("x"))
jitted_shardings_and_mesh = Workload(
    name="jitted_shardings_and_mesh",
    fn=jax.jit(jnp.sin, in_shardings=_OVER_4),
    args=(X,),
    mesh={"x": 4},
)


def trained() -> tuple[nnx.Linear, nnx.Optimizer[nnx.Linear]]:
    model = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)


def train(model: nnx.Linear, optimizer: nnx.Optimizer[nnx.Linear], x: Any) -> Any:
    loss, gradient = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
    optimizer.update(model, gradient)
    return loss


class _Trainer:
    def __init__(self) -> None:
        self.weight = np.ones((64, 64), np.float32)

    def step(self) -> None:
        self.weight = jnp.tanh(self.weight)


def jitted_for_a_backend() -> Workload:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        fn = jax.jit(jnp.sin, backend="cpu")
    return Workload(name="jitted_for_a_backend", fn=fn, args=(X,))


def without_jit() -> Workload:
    jax.config.update("jax_disable_jit", True)
    return Workload(name="without_jit", fn=jnp.sin, args=(X,))


def set_mesh_and_mesh() -> Workload:
    jax.config.update("jax_num_cpu_devices", 4)
    jax.set_mesh(jax.make_mesh((4,), ("x",)))
    return Workload(name="set_mesh_and_mesh", fn=jnp.sin, args=(X,), mesh={"x": 4})


class ShardingMetadata:
    """As of orbax: says how an array was sharded, without being a sharding of jax."""


class ArrayMetadata:
    """As of orbax: describes an array of a checkpoint."""

    def __init__(self) -> None:
        self.shape, self.dtype, self.sharding = (64, 64), jnp.float32, ShardingMetadata()


def apply(state: Any, x: Any) -> Any:
    return state["w"] @ x


METADATA = {"w": ArrayMetadata()}
metadata_of_a_checkpoint = Workload(name="metadata_of_a_checkpoint", fn=apply, args=(METADATA, X))


def cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype)


dtype_as_argument = Workload(name="dtype_as_argument", fn=cast, args=(X, np.float16))


def iterator_step(state: Any, iterator: Any) -> Any:
    return state + next(iterator)


iterator_step.__module__ = "keras.src.backend.jax.trainer"
keras_train_function = Workload(name="keras_train_function", fn=iterator_step, args=(X, iter(())))


def _library_update() -> Any:
    source = "import jax\n_step = jax.jit(lambda state, x: state + x, donate_argnums=0)"
    names: dict[str, Any] = {}
    exec(compile(source, "/venv/lib/python3.12/site-packages/library/steps.py", "exec"), names)
    return names["_step"]


_LIBRARY_STEP = _library_update()


def _call_library(state: Any, x: Any) -> Any:
    return _LIBRARY_STEP(state, x)


donation_in_a_library = Workload(name="donation_in_a_library", fn=_call_library, args=(X, X))


def updates_in_place() -> Workload:
    return Workload(name="updates_in_place", fn=train, args=(*trained(), X))


def empty_program() -> Workload:
    return Workload(name="empty_program", fn=_Trainer().step, args=())


def reordered_devices() -> Workload:
    """An argument over four devices of this machine, the first two exchanged."""
    jax.config.update("jax_num_cpu_devices", 4)
    first, second, *others = jax.devices()
    mesh = jax.sharding.Mesh([second, first, *others], ("x",))
    return Workload(name="reordered_devices", fn=jnp.sin, args=(sharded(mesh, P("x")),))
