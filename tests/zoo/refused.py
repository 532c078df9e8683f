"""Steps that xlapipe refuses, what its message must state, and the step after the fix.

Each row of `_STEPS` is a step as a user may write it, and the step after the fix, which compiles.
`refused.toml` has what the message states: where (the leaf, or the user's line), the cause and the
fix.
"""

import functools
import os
import tomllib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax._src.sharding_impls import GSPMDSharding
from jax.experimental.layout import Format, Layout
from jax.sharding import AbstractMesh, AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
MESH, _OTHER_MESH = AbstractMesh((4,), ("x",)), AbstractMesh((2, 2), ("a", "b"))
_AUTO = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
_OVER_4 = NamedSharding(MESH, P("x"))


@dataclass(frozen=True)
class Refusal:
    """A step that is refused.

    Attributes:
      step: the step as written.
      message: words of the message, with ` … ` between them: where, cause and fix. `where` is a
        leaf, the name of the step, or part of the line of this file that the message names.
      fixed: the step that follows the fix; None if the fix is not a change of the step.
      options: of the command line, for both.
      reference: what the command line is given in place of the step.
    """

    message: str
    step: Callable[[], Any] | None = None
    fixed: Callable[[], Workload] | None = None
    options: Sequence[str] = ()
    reference: str | None = None


def refused(row: str) -> Any:
    """The step of a row, as the command line compiles it."""
    step = REFUSALS[row].step
    assert step is not None
    return _named(step(), row)


def fixed(row: str) -> Any:
    """The step of a row after the fix of its message."""
    step = REFUSALS[row].fixed
    assert step is not None
    return _named(step(), row)


def _named(workload: Any, row: str) -> Any:
    return replace(workload, name=row) if isinstance(workload, Workload) else workload


def of(fn: Any, *args: Any, **fields: Any) -> Workload:
    return Workload(name="step", fn=fn, args=args, **fields)


def sharded(
    mesh: AbstractMesh | jax.sharding.Mesh, spec: P, memory_kind: str | None = None
) -> jax.ShapeDtypeStruct:
    return in_place(NamedSharding(mesh, spec, memory_kind=memory_kind))


def in_place(sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=sharding)


def on_cpus(count: int, order: Sequence[int] = ()) -> jax.sharding.Mesh:
    """A mesh of this machine's devices, which stand for those of the target."""
    if jax.config.values["jax_num_cpu_devices"] != count:
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices()
    return jax.sharding.Mesh([devices[number] for number in order or range(count)], ("x",))


def first_two(mesh: jax.sharding.Mesh) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(mesh.devices.flat[:2], ("x",))


def add(x: Any, y: Any) -> Any:
    return x + y


@functools.partial(jax.jit, donate_argnums=0)
def update(state: Any, x: Any) -> Any:
    return state + x


def update_undonated(state: Any, x: Any) -> Any:
    return update(state, x)


def bytes_in_use(x: Any) -> Any:
    stats = jax.devices()[0].memory_stats()
    return x * stats["bytes_in_use"]


def asks_cudnn(x: Any) -> Any:
    from jax._src.lib import cuda_versions

    return x * cuda_versions.cudnn_get_version()  # type: ignore[union-attr]


def maps_over_another_mesh(x: Any) -> Any:
    mapped = jax.shard_map(lambda x: x, mesh=_OTHER_MESH, in_specs=P("a"), out_specs=P("a"))
    return mapped(x)


def maps_over_the_current_mesh(x: Any) -> Any:
    return jax.shard_map(lambda x: x, in_specs=P("a"), out_specs=P("a"))(x)


def mean_over_devices(x: Any) -> Any:
    return x - jax.lax.pmean(x, "i")


def lowers_another(x: Any) -> Any:
    costs = jax.jit(jnp.sin).lower(x)
    return x * float(costs is None)


def uses_a_leaked_value() -> Any:
    scales = []

    def make() -> jax.Array:
        scales.append(jnp.ones((64, 64)) * 2)
        return scales[0]

    jax.eval_shape(make)
    return lambda x: x * scales[0]


class Wrapped:
    """A wrapper of another library around `jax.jit`."""

    def __init__(self, fn: Any) -> None:
        self.__wrapped__ = fn

    def __call__(self, x: Any) -> Any:
        return self.__wrapped__(x)

    def lower(self, x: Any) -> Any:
        return jax.jit(self.__wrapped__).lower(x)


def replicated(mesh: jax.sharding.Mesh) -> GSPMDSharding:
    return GSPMDSharding.get_replicated(tuple(mesh.devices.flat))


def constrained_to(sharding: Any) -> Any:
    def constrained(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x * 2, sharding)

    return constrained


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
        return of(jax.jit(jnp.sin, backend="cpu"), X)


def without_jit(value: bool) -> Workload:
    jax.config.update("jax_disable_jit", value)
    return of(add, X, X)


def under_set_mesh(**fields: Any) -> Workload:
    jax.config.update("jax_num_cpu_devices", 4)
    jax.set_mesh(jax.make_mesh((4,), ("x",)))
    return of(jnp.sin, X, **fields)


class ShardingMetadata:
    """As of orbax: says how an array was sharded, without being a sharding of jax."""


class ArrayMetadata:
    """As of orbax: describes an array of a checkpoint."""

    def __init__(self) -> None:
        self.shape, self.dtype, self.sharding = (64, 64), jnp.float32, ShardingMetadata()


class Described:
    """An array of another library, with a layout of that library."""

    shape, dtype, format = (64, 64), jnp.float32, SimpleNamespace(layout="row-major")


class Tensor:
    """As of torch: a shape, and a dtype that is not one of numpy."""

    shape, dtype = (64, 64), "torch.float32"


def apply(state: Any, x: Any) -> Any:
    return state["w"] @ x


METADATA = {"w": ArrayMetadata()}


def cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype)


def scaled(x: Any, mode: str) -> Any:
    return x * len(mode)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def scale_both(x: Any, y: Any) -> Any:
    return x * 2, y * 2


def calls_scale_both(x: Any, y: Any) -> Any:
    return scale_both(x, y)


def calls(fn: Any, *args: Any) -> Any:
    return fn(*args)


def transposed_on_this_machine() -> Any:
    form = Format(Layout((1, 0)), SingleDeviceSharding(jax.devices()[0]))

    def transposed(x: Any) -> Any:
        return jnp.tanh(x)

    return jax.jit(transposed, in_shardings=form)


def sin_on_the_cpu() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return jax.jit(jnp.sin, backend="cpu")


ADD_WITH_OPTIONS = jax.jit(add, compiler_options={"xla_gpu_enable_triton_gemm": False})


FIRST = jax.jit(lambda x, y: x * 2, keep_unused=True)


def with_variable(name: str, value: str) -> Workload:
    os.environ[name] = value
    return of(add, X, X)


def with_setting(name: str, value: Any) -> Workload:
    os.environ[name.upper()] = str(value)
    jax.config.update(name, value)
    return of(add, X, X)


def _library_update() -> Any:
    source = "import jax\n_step = jax.jit(lambda state, x: state + x, donate_argnums=0)"
    names: dict[str, Any] = {}
    exec(compile(source, "/venv/lib/python3.12/site-packages/library/steps.py", "exec"), names)
    return names["_step"]


_LIBRARY_STEP = _library_update()


def call_library(state: Any, x: Any) -> Any:
    return _LIBRARY_STEP(state, x)


def of_size(size: int) -> Workload:
    return of(add, *(jax.ShapeDtypeStruct((size,), jnp.float32) for _ in range(2)))


def prints() -> Workload:
    def step(x: Any) -> Any:
        jax.debug.print("{}", x[0, 0])
        return x + 1

    return Workload(name="prints", fn=step, args=(X,))


def convolves() -> Workload:
    def step(x: Any) -> Any:
        return jax.lax.conv(x, x, (1, 1), "SAME")

    return Workload(
        name="convolves", fn=step, args=(jax.ShapeDtypeStruct((8, 8, 3, 3), jnp.bfloat16),)
    )


def attends_with_cudnn() -> Workload:
    def step(q: Any) -> Any:
        return jax.nn.dot_product_attention(q, q, q, implementation="cudnn")

    return Workload(
        name="attends_with_cudnn",
        fn=step,
        args=(jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16),),
    )


_STEPS: dict[str, tuple[Callable[[], Any], Callable[[], Workload] | None]] = {
    # The arguments.
    "static_string": (
        lambda: of(scaled, X, "hello"),
        lambda: of(scaled, X, "hello", static_argnames="mode"),
    ),
    "dtype_as_argument": (
        lambda: of(cast, X, np.float16),
        lambda: of(cast, X, np.float16, static_argnames="dtype"),
    ),
    "jitted_string": (
        lambda: of(jax.jit(scaled), X, "hello"),
        lambda: of(jax.jit(scaled, static_argnames="mode"), X, "hello"),
    ),
    "shape_of_words": (
        lambda: of(jnp.sin, jax.ShapeDtypeStruct((4, "x"), jnp.float32)),  # type: ignore[arg-type]
        lambda: of(jnp.sin, jax.ShapeDtypeStruct((4, 8), jnp.float32)),
    ),
    "one_argument_less": (lambda: of(add, X), lambda: of(add, X, kwargs={"y": X})),
    "tensor_of_another_library": (
        lambda: of(jnp.sin, Tensor()),
        lambda: of(jnp.sin, jax.ShapeDtypeStruct(Tensor.shape, jnp.float32)),
    ),
    "metadata_of_a_checkpoint": (
        lambda: of(apply, METADATA, X),
        lambda: of(
            apply,
            *jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (METADATA, X)),
        ),
    ),
    "layout_of_another_library": (
        lambda: of(jnp.sin, Described()),
        lambda: of(
            jnp.sin, in_place(Format(Layout((1, 0)), SingleDeviceSharding(jax.devices()[0])))
        ),
    ),
    "layout_over_devices": (
        lambda: of(jnp.sin, in_place(Format(Layout((1, 0)), _OVER_4))),
        lambda: of(jnp.sin, in_place(_OVER_4)),
    ),
    "memory_on_one_device": (
        lambda: of(
            add,
            sharded(MESH, P("x")),
            in_place(SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")),
        ),
        lambda: of(
            lambda x, y: x + jax.device_put(y, jax.memory.Space.Device),
            sharded(MESH, P("x")),
            sharded(MESH, P("x"), "pinned_host"),
        ),
    ),
    "sharding_without_axes": (
        lambda: of(jnp.sin, in_place(replicated(on_cpus(4)))),
        lambda: of(jnp.sin, sharded(MESH, P())),
    ),
    # Specs and meshes.
    "specs_of_another_tree": (
        lambda: of(apply, {"w": X}, X, mesh={"x": 4}, in_specs=({"v": P("x")}, P())),
        lambda: of(apply, {"w": X}, X, mesh={"x": 4}, in_specs=({"w": P("x")}, P())),
    ),
    "specs_and_shardings": (
        lambda: of(jnp.sin, sharded(_AUTO, P("x")), mesh={"x": 4}, in_specs=P(None, "x")),
        lambda: of(jnp.sin, sharded(_AUTO, P("x")), mesh={"x": 4}),
    ),
    "spec_too_long": (
        lambda: of(jnp.sin, X, mesh={"x": 4}, in_specs=P(None, None, "x")),
        lambda: of(jnp.sin, X, mesh={"x": 4}, in_specs=P(None, "x")),
    ),
    "unknown_axis": (
        lambda: of(jnp.sin, X, mesh={"x": 4}, in_specs=P("y")),
        lambda: of(jnp.sin, X, mesh={"x": 4}, in_specs=P("x")),
    ),
    "indivisible": (
        lambda: of(jnp.sin, X, mesh={"x": 6}, in_specs=P("x")),
        lambda: of(
            jnp.sin, jax.ShapeDtypeStruct((66, 64), jnp.float32), mesh={"x": 6}, in_specs=P("x")
        ),
    ),
    "two_meshes": (
        lambda: of(add, sharded(MESH, P("x")), sharded(_OTHER_MESH, P("a"))),
        lambda: of(add, sharded(MESH, P("x")), sharded(MESH, P("x"))),
    ),
    "reordered_devices": (
        lambda: of(jnp.sin, sharded(on_cpus(4, (1, 0, 2, 3)), P("x"))),
        lambda: of(jnp.sin, sharded(on_cpus(4), P("x"))),
    ),
    "devices_inside": (
        lambda: of(constrained_to(replicated(on_cpus(4))), X),
        lambda: of(constrained_to(replicated(on_cpus(4))), sharded(MESH, P("x"))),
    ),
    "abstract_mesh_of_another_size": (
        lambda: of(
            constrained_to(NamedSharding(on_cpus(4), P("x"))),
            sharded(AbstractMesh((2,), ("x",)), P("x")),
        ),
        lambda: of(constrained_to(NamedSharding(on_cpus(4), P("x"))), sharded(MESH, P("x"))),
    ),
    "fewer_devices_than_inside": (
        lambda: of(
            constrained_to(NamedSharding(on_cpus(4), P("x"))),
            in_place(NamedSharding(first_two(on_cpus(4)), P("x"))),
        ),
        lambda: of(constrained_to(NamedSharding(on_cpus(4), P("x"))), sharded(MESH, P("x"))),
    ),
    "own_mesh_in_shard_map": (
        lambda: of(maps_over_another_mesh, X, mesh={"a": 2, "b": 2}),
        lambda: of(maps_over_the_current_mesh, X, mesh={"a": 2, "b": 2}),
    ),
    "jitted_shardings_and_mesh": (
        lambda: of(jax.jit(jnp.sin, in_shardings=_OVER_4), X, mesh={"x": 4}),
        lambda: of(jax.jit(jnp.sin, in_shardings=_OVER_4), X),
    ),
    "outputs_sharded_otherwise_and_mesh": (
        lambda: of(jax.jit(jnp.sin, out_shardings=_OVER_4), X, mesh={"a": 2, "b": 2}),
        lambda: of(jax.jit(jnp.sin, out_shardings=_OVER_4), X, mesh={"x": 4}),
    ),
    "sharded_otherwise_and_mesh": (
        lambda: of(jnp.sin, sharded(_OTHER_MESH, P("a")), mesh={"a": 4, "b": 1}),
        lambda: of(jnp.sin, sharded(_OTHER_MESH, P("a"))),
    ),
    "axis_types_and_mesh": (
        lambda: of(jnp.sin, sharded(MESH, P("x")), mesh={"x": 4}),
        lambda: of(jnp.sin, sharded(MESH, P("x"))),
    ),
    "devices_in_another_order_and_mesh": (
        lambda: of(jnp.sin, sharded(on_cpus(4, (1, 0, 2, 3)), P("x")), mesh={"x": 4}),
        lambda: of(jnp.sin, sharded(on_cpus(4), P("x")), mesh={"x": 4}),
    ),
    "set_mesh_and_mesh": (lambda: under_set_mesh(mesh={"x": 4}), under_set_mesh),
    "another_topology": (
        lambda: of(jnp.sin, X, mesh={"x": 4}),
        lambda: of(jnp.sin, X, mesh={"x": 2}),
    ),
    "topology_without_mesh": (lambda: of(jnp.sin, X), lambda: of(jnp.sin, X, mesh={"x": 2})),
    # The function.
    "pmapped": (
        lambda: of(jax.pmap(mean_over_devices, axis_name="i"), X),
        lambda: of(
            jax.shard_map(jax.vmap(mean_over_devices), in_specs=P("i"), out_specs=P("i")),
            X,
            mesh={"i": 4},
            in_specs=P("i"),
        ),
    ),
    "unknown_wrapper": (lambda: of(Wrapped(bytes_in_use), X), lambda: of(jnp.sin, X)),
    "jitted_and_donated": (
        lambda: of(jax.jit(add), X, X, donate_argnums=0),
        lambda: of(jax.jit(add, donate_argnums=0), X, X),
    ),
    "jitted_for_a_backend": (jitted_for_a_backend, lambda: of(jax.jit(jnp.sin), X)),
    "without_jit": (lambda: without_jit(True), lambda: without_jit(False)),
    "option_that_is_not_data": (
        lambda: of(jax.jit(add, compiler_options={"xla_embed_ir_in_executable": None}), X, X),
        lambda: of(jax.jit(add), X, X),
    ),
    "unknown_option": (
        lambda: of(jnp.sin, X, options={"xla_gpu_no_such_option": True}),
        lambda: of(jnp.sin, X),
    ),
    "lost_donation": (lambda: of(update_undonated, X, X), lambda: of(update, X, X)),
    "donation_in_a_library": (
        lambda: of(call_library, X, X),
        lambda: of(call_library, X, X, donate_argnums=0),
    ),
    "updates_in_place": (
        lambda: of(train, *trained(), X),
        lambda: of(nnx.jit(train), *trained(), X),
    ),
    "empty_program": (lambda: of(_Trainer().step), lambda: of(jnp.tanh, X)),
    "donation_of_another_argument": (
        lambda: of(calls_scale_both, X, X, donate_argnums=0),
        lambda: of(calls_scale_both, X, X, donate_argnums=(0, 1)),
    ),
    "donation_in_a_checkpoint": (
        lambda: of(lambda x, y: calls(jax.checkpoint(update), x, y), X, X),
        lambda: of(update, X, X),
    ),
    "layout_of_inner_jit": (
        lambda: of(lambda x: calls(transposed_on_this_machine(), x), X),
        lambda: of(transposed_on_this_machine(), X),
    ),
    "unused_of_inner_jit": (
        lambda: of(lambda x, y: calls(FIRST, x, y), X, X),
        lambda: of(jax.jit(lambda x, y: calls(FIRST, x, y), keep_unused=True), X, X),
    ),
    "device_of_inner_jit": (
        lambda: of(lambda x: calls(sin_on_the_cpu(), x), X),
        lambda: of(lambda x: calls(jax.jit(jnp.sin), x), X),
    ),
    "options_of_inner_jit": (
        lambda: of(lambda x, y: calls(ADD_WITH_OPTIONS, x, y), X, X),
        lambda: of(ADD_WITH_OPTIONS, X, X),
    ),
    "compiled_step": (
        lambda: of(jax.jit(add).lower(X, X).compile(), X, X),
        lambda: of(jax.jit(add), X, X),
    ),
    "variable_of_the_module": (
        lambda: with_variable("JAX_ENABLE_X64", "true"),
        lambda: with_setting("jax_enable_x64", True),
    ),
    "flags_of_the_module": (
        lambda: with_variable(
            "XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false --xla_dump_to=/tmp/unused"
        ),
        lambda: of(add, X, X, options={"xla_gpu_enable_triton_gemm": False}),
    ),
    # What it does while it is traced.
    "asks_for_memory": (lambda: of(bytes_in_use, X), lambda: of(add, X, X)),
    "asks_cudnn_itself": (lambda: of(asks_cudnn, X), None),
    "lowers_another": (lambda: of(lowers_another, X), lambda: of(jnp.sin, X)),
    "value_of_another_trace": (
        lambda: of(uses_a_leaked_value(), X),
        lambda: of(lambda x: x * (jnp.ones((64, 64)) * 2), X),
    ),
}

_MESSAGES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

REFUSALS: dict[str, Refusal] = {
    row: Refusal(**stated, **dict(zip(("step", "fixed"), _STEPS.get(row, ()), strict=False)))
    for row, stated in _MESSAGES.items()
}
