"""What a user can say to jax of a step, and how xlapipe keeps it, as docs/coverage.md says.

A case of `CARRIED` is a step that jax compiles to another plan, or may, because of what it says.
Each is compiled by jax alone and by xlapipe, and the totals must be equal. This module imports
nothing of xlapipe: `carried_child.py` uses it for both.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.experimental.layout import Format, Layout
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

Devices = Sequence[Any]
N = 512


@dataclass(frozen=True)
class Step:
    """A step for some devices.

    Attributes:
      fields: further fields of the Workload.
      alone: the function and the arguments for jax alone, where it takes others.
    """

    fn: Any
    args: tuple[Any, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    alone: tuple[Any, tuple[Any, ...]] | None = None


@dataclass(frozen=True)
class Case:
    """A step that says something.

    Attributes:
      context: what is in force around it.
      alone: what is in force for jax alone, if the Workload says it with a field.
    """

    name: str
    step: Callable[[Devices], Step]
    context: Callable[[Devices], AbstractContextManager[Any]] = lambda devices: nullcontext()
    alone: Callable[[Devices], AbstractContextManager[Any]] = lambda devices: nullcontext()
    device_count: int = 1


def f32(*shape: int, sharding: Any = None, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


X = f32(N, N)
HALF = f32(N, N, dtype=jnp.bfloat16)


def product(x: Any, y: Any) -> Any:
    return jnp.tanh(x @ y) @ y


def mlp(weight: Any, x: Any) -> Any:
    return jnp.tanh(x @ weight) @ weight.T


def mesh_of(devices: Devices, *types: AxisType, names: tuple[str, ...] = ("d",)) -> Mesh:
    shape = (len(devices),) if len(names) == 1 else (2, len(devices) // 2)
    return Mesh(np.array(devices).reshape(shape), names, axis_types=types or None)


@contextmanager
def setting(name: str, value: Any) -> Any:
    """`jax.config.update(name, value)`, undone afterwards."""
    before = jax.config.values[name]
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _jit(args: Sequence[Any], fn: Any = product, **options: Any) -> Callable[[Devices], Step]:
    return lambda devices: Step(jax.jit(fn, **options), tuple(args))


def _under(context: Any, fn: Any, *args: Any) -> dict[str, Any]:
    return {"step": lambda devices: Step(jax.jit(fn), args), "context": lambda devices: context()}


def _in_shardings(types: AxisType) -> Callable[[Devices], Step]:
    def step(devices: Devices) -> Step:
        mesh = mesh_of(devices, types)
        shardings = NamedSharding(mesh, P(None, "d")), NamedSharding(mesh, P("d"))
        return Step(jax.jit(mlp, in_shardings=shardings), (X, X))

    return step


def _sharded_arguments(devices: Devices) -> Step:
    mesh = mesh_of(devices, AxisType.Auto)
    weight, x = NamedSharding(mesh, P(None, "d")), NamedSharding(mesh, P("d"))
    return Step(jax.jit(mlp), (f32(N, N, sharding=weight), f32(N, N, sharding=x)))


def _out_shardings(devices: Devices) -> Step:
    mesh = mesh_of(devices, AxisType.Auto)
    fn = jax.jit(mlp, out_shardings=NamedSharding(mesh, P(None, "d")))
    x = NamedSharding(mesh, P("d"))
    return Step(fn, (X, f32(N, N, sharding=x)))


def _constrained(devices: Devices) -> Step:
    sharding = NamedSharding(mesh_of(devices, AxisType.Auto), P("d"))

    def fn(x: Any, y: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ y, sharding) @ y

    return Step(jax.jit(fn), (f32(N, N, sharding=sharding), f32(N, N, sharding=sharding)))


def _constrained_inside(devices: Devices) -> Step:
    sharding = NamedSharding(mesh_of(devices, AxisType.Auto), P("d"))

    def fn(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x * 2, sharding) @ x

    return Step(jax.jit(fn), (X,))


def _legacy_mesh(devices: Devices) -> Step:
    mesh = mesh_of(devices, AxisType.Auto)

    def fn(x: Any) -> Any:
        with mesh:
            return jax.lax.with_sharding_constraint(x * 2, P("d")) @ x

    return Step(jax.jit(fn), (X,))


def _shard_map_inside(devices: Devices) -> Step:
    mesh = mesh_of(devices, AxisType.Auto)
    mapped = jax.shard_map(_mapped, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    return Step(mapped, (X,), alone=(jax.jit(mapped), (X,)))


def _mapped(x: Any) -> Any:
    total = jax.lax.psum(x @ x.T, "d")
    return total.sum() + x


def _shard_map_own_mesh(devices: Devices) -> Step:
    mesh = mesh_of(devices, AxisType.Auto)
    mapped = jax.shard_map(_mapped, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    return Step(jax.jit(mapped), (f32(N, N, sharding=NamedSharding(mesh, P("d"))),))


def _make_mesh_inside(devices: Devices) -> Step:
    def fn(x: Any) -> Any:
        mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
        return jax.shard_map(_mapped, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x)

    def alone(x: Any) -> Any:
        mesh = mesh_of(devices, AxisType.Auto)
        return jax.shard_map(_mapped, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x)

    sharding = NamedSharding(mesh_of(devices, AxisType.Auto), P("d"))
    argument = f32(N, N, sharding=sharding)
    return Step(fn, (X,), {"mesh": {"d": 4}, "in_specs": P("d")}, (jax.jit(alone), (argument,)))


def _workload_mesh(devices: Devices) -> Step:
    sharding = NamedSharding(mesh_of(devices, AxisType.Auto), P("d"))
    fields = {"mesh": {"d": 4}, "in_specs": (P("d"), P("d")), "out_specs": P(None, "d")}

    def alone(x: Any, y: Any) -> Any:
        return mlp(x, y)

    out = NamedSharding(sharding.mesh, P(None, "d"))
    argument = f32(N, N, sharding=sharding)
    return Step(mlp, (X, X), fields, (jax.jit(alone, out_shardings=out), (argument, argument)))


def _abstract_mesh(devices: Devices) -> Step:
    abstract = NamedSharding(AbstractMesh((4,), ("d",), axis_types=(AxisType.Auto,)), P("d"))
    concrete = NamedSharding(mesh_of(devices, AxisType.Auto), P("d"))
    arguments = [(f32(N, N, sharding=it), f32(N, N, sharding=it)) for it in (abstract, concrete)]
    return Step(jax.jit(mlp), arguments[0], alone=(jax.jit(mlp), arguments[1]))


def _one_device_output(devices: Devices) -> Step:
    sharding = SingleDeviceSharding(devices[0])
    return Step(jax.jit(lambda x: jnp.tanh(x @ x) @ x, out_shardings=sharding), (X,))


def _layout(place: str) -> Callable[[Devices], Step]:
    def step(devices: Devices) -> Step:
        form = Format(Layout(major_to_minor=(1, 0)), SingleDeviceSharding(devices[0]))
        fn = jax.jit(lambda x: jnp.tanh(x) @ x + jnp.cumsum(x, 0), **{place: form})
        return Step(fn, (X,))

    return step


def _reference(devices: Devices) -> Step:
    reference = jax.new_ref(jnp.zeros((N, N)))

    def fn(reference: Any, x: Any) -> Any:
        reference[...] += x
        return (x * 2).sum()

    def alone(value: Any, x: Any) -> Any:
        return (x * 2).sum(), value + x

    return Step(fn, (reference, X), alone=(jax.jit(alone, donate_argnums=0), (X, X)))


def _abstract_reference(devices: Devices) -> Step:
    def fn(reference: Any, x: Any) -> Any:
        return reference[...] @ x

    def reference(sharding: Any) -> Any:
        return jax.ShapeDtypeStruct((N, N), jnp.float32, is_ref=True, sharding=sharding)

    place = SingleDeviceSharding(devices[0])
    alone = jax.jit(fn), (reference(place), f32(N, N, sharding=place))
    return Step(jax.jit(fn), (reference(None), X), alone=alone)


def _closed_over_reference(devices: Devices) -> Step:
    reference = jax.new_ref(jnp.zeros((N, N)))

    def fn(x: Any) -> Any:
        reference[...] += x
        return (x * 2).sum()

    def alone(x: Any, value: Any) -> Any:
        return (x * 2).sum(), value + x

    return Step(fn, (X,), alone=(jax.jit(alone, donate_argnums=1), (X, X)))


def _forward(model: Any, x: Any) -> Any:
    return model(x)


def _nnx(wrap: Any, *more: Any) -> Callable[[Devices], Step]:
    def step(devices: Devices) -> Step:
        model = nnx.Linear(N, N, rngs=nnx.Rngs(0))
        return Step(wrap(_forward), (model, X, *more))

    return step


def _nnx_update(devices: Devices) -> Step:
    def train(model: Any, x: Any) -> Any:
        loss, gradient = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        for variable, slope in zip(
            jax.tree.leaves(nnx.state(model), is_leaf=lambda it: isinstance(it, nnx.Variable)),
            jax.tree.leaves(gradient, is_leaf=lambda it: isinstance(it, nnx.Variable)),
            strict=True,
        ):
            variable.set_value(variable.get_value() - slope.get_value())
        return loss

    model = nnx.Linear(N, N, rngs=nnx.Rngs(0))
    return Step(nnx.jit(train, donate_argnames="model"), (model, X))


def _cached_partial(devices: Devices) -> Step:
    model = nnx.Linear(N, N, rngs=nnx.Rngs(0))
    fn = nnx.jit(_forward)
    return Step(nnx.cached_partial(fn, model), (X,), alone=(fn, (model, X)))


class _Tied(nnx.Module):
    """One weight in two places, a layer that is used twice, and a counter that two layers share."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(64, N, rngs=rngs)
        self.out = nnx.Linear(64, N, use_bias=False, rngs=rngs)
        self.out.kernel = self.embed.embedding
        self.layer = nnx.Linear(N, N, rngs=rngs)
        self.layers = nnx.List([self.layer, self.layer])
        self.dropouts = nnx.List([nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)])

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for layer, dropout in zip(self.layers, self.dropouts, strict=True):
            x = dropout(jnp.tanh(layer(x)))
        return x @ self.out.kernel.T


def _nnx_tied(devices: Devices) -> Step:
    def train(model: Any, optimizer: Any, tokens: Any) -> Any:
        loss, gradient = nnx.value_and_grad(lambda model: jnp.mean(model(tokens) ** 2))(model)
        optimizer.update(model, gradient)
        return loss

    model = _Tied()
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    tokens = f32(8, 16, dtype=jnp.int32)
    return Step(nnx.jit(train, donate_argnums=(0, 1)), (model, optimizer, tokens))


class _Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def __call__(self, x: Any) -> Any:
        return jnp.tanh(x * self.factor)


def _jitted_call(devices: Devices) -> Step:
    scaled = _Scaled(3.0)
    alone = jax.jit(lambda x: jnp.tanh(x * 3.0), donate_argnums=0)
    return Step(scaled, (X,), alone=(alone, (X,)))


def _random(x: Any) -> Any:
    return jax.random.normal(jax.random.key(0), (N, N)) @ x


def _scan(x: Any) -> Any:
    body = jax.checkpoint(lambda carry, _: (jnp.tanh(carry @ x), None))
    return jax.grad(lambda x: jax.lax.scan(body, x, length=4)[0].sum())(x)


def _mixed(x: Any) -> Any:
    return (x + np.float64(1.5)) @ x


def _wide(x: Any) -> Any:
    return jnp.arange(N * N).reshape(N, N) * 1.5 + x


def _with_metadata(x: Any) -> Any:
    with set_xla_metadata(_xla_from="user"):
        return x @ x


def _constant(devices: Devices) -> Step:
    constant = jnp.full((N, N), 2.0)
    return Step(jax.jit(lambda x: x @ constant), (X,))


_NO_TRITON = {"xla_gpu_enable_triton_gemm": False}
_SPLIT: Any = functools.partial(mesh_of, names=("a", "b"))

CARRIED: tuple[Case, ...] = (
    Case("donate_argnums", _jit((X, X), donate_argnums=0)),
    Case("donate_argnames", _jit((X, X), donate_argnames="x")),
    Case(
        "static_argnums",
        _jit((X, np.float16), lambda x, kind: x.astype(kind) @ x.astype(kind), static_argnums=1),
    ),
    Case(
        "static_argnames",
        _jit(
            (X, 3), lambda x, times: x[:, : N // times] @ x[: N // times], static_argnames="times"
        ),
    ),
    Case("keep_unused", _jit((X, X), lambda x, y: x @ x, keep_unused=True)),
    Case("inline", _jit((X, X), inline=True)),
    Case("compiler_options", _jit((HALF, HALF), compiler_options=_NO_TRITON)),
    Case("build_option", _jit((X, X), compiler_options={"optimization_level": "O1"})),
    Case("in_shardings_explicit", _in_shardings(AxisType.Explicit), device_count=4),
    Case("in_shardings_auto", _in_shardings(AxisType.Auto), device_count=4),
    Case("out_shardings", _out_shardings, device_count=4),
    Case("out_shardings_one_device", _one_device_output),
    Case("layout_of_argument", _layout("in_shardings")),
    Case("layout_of_output", _layout("out_shardings")),
    Case("sharded_arguments", _sharded_arguments, device_count=4),
    Case("abstract_mesh", _abstract_mesh, device_count=4),
    Case("workload_mesh", _workload_mesh, device_count=4),
    Case(
        "set_mesh",
        lambda devices: Step(jax.jit(mlp, in_shardings=(P(None, "d"), P("d"))), (X, X)),
        lambda devices: jax.set_mesh(mesh_of(devices, AxisType.Explicit)),
        device_count=4,
    ),
    Case(
        "set_mesh_constraint",
        lambda devices: Step(
            jax.jit(lambda x, y: jax.lax.with_sharding_constraint(x @ y, P("a", "b")) @ y),
            tuple(f32(N, N, sharding=NamedSharding(_SPLIT(devices), P("a"))) for _ in range(2)),
        ),
        lambda devices: jax.set_mesh(_SPLIT(devices)),
        device_count=4,
    ),
    Case("constraint", _constrained, device_count=4),
    Case("shard_map", _shard_map_own_mesh, device_count=4),
    Case("constraint_inside", _constrained_inside, device_count=4),
    Case("legacy_mesh", _legacy_mesh, device_count=4),
    Case("shard_map_inside", _shard_map_inside, device_count=4),
    Case(
        "make_mesh_inside",
        _make_mesh_inside,
        alone=lambda devices: jax.set_mesh(mesh_of(devices, AxisType.Auto)),
        device_count=4,
    ),
    Case("reference", _reference),
    Case("closed_over_reference", _closed_over_reference),
    Case("abstract_reference", _abstract_reference),
    Case("jitted_call", _jitted_call),
    Case("weak_type", _jit((HALF, 0.5), lambda x, rate: x * rate @ x)),
    Case("nnx_jit", _nnx(nnx.jit)),
    Case("nnx_update", _nnx_update),
    Case("nnx_tied", _nnx_tied),
    Case("nnx_cached_partial", _cached_partial),
    Case(
        "workload_options",
        lambda devices: Step(
            jax.jit(product),
            (HALF, HALF),
            {"options": _NO_TRITON},
            (jax.jit(product, compiler_options=_NO_TRITON), (HALF, HALF)),
        ),
    ),
    Case(
        "matmul_precision",
        **_under(lambda: jax.default_matmul_precision("BF16_BF16_F32_X6"), product, X, X),
    ),
    Case("dtype_promotion", **_under(lambda: jax.numpy_dtype_promotion("strict"), product, X, X)),
    Case("rank_promotion", **_under(lambda: jax.numpy_rank_promotion("raise"), product, X, X)),
    Case("enable_x64", **_under(lambda: jax.enable_x64(True), _wide, X)),
    Case("config_x64", **_under(lambda: setting("jax_enable_x64", True), _mixed, X)),
    Case(
        "debug_nans",
        step=_jit((X, X), donate_argnums=0),
        context=lambda devices: jax.debug_nans(True),
    ),
    Case(
        "debug_infs",
        step=_jit((X, X), donate_argnums=0),
        context=lambda devices: jax.debug_infs(True),
    ),
    Case("transfer_guard", **_under(lambda: jax.transfer_guard("disallow"), product, X, X)),
    Case("prng_impl", **_under(lambda: jax.default_prng_impl("rbg"), _random, X)),
    Case("threefry", **_under(lambda: jax.threefry_partitionable(False), _random, X)),
    Case("seed_offset", **_under(lambda: setting("jax_random_seed_offset", 7), _random, X)),
    Case("checking_leaks", **_under(jax.checking_leaks, product, X, X)),
    Case("xla_metadata", **_under(nullcontext, _with_metadata, X)),
    Case("named_scope", **_under(lambda: jax.named_scope("outer"), product, X, X)),
    Case(
        "optimization_level",
        **_under(lambda: setting("jax_optimization_level", "O1"), product, HALF, HALF),
    ),
    Case("memory_fitting", **_under(lambda: setting("jax_memory_fitting_level", "O3"), _scan, X)),
    Case(
        "remat_pass", **_under(lambda: setting("jax_compiler_enable_remat_pass", False), _scan, X)
    ),
    Case(
        "few_optimizations",
        **_under(lambda: setting("jax_disable_most_optimizations", True), product, X, X),
    ),
    Case(
        "shardy",
        _sharded_arguments,
        lambda devices: setting("jax_use_shardy_partitioner", False),
        device_count=4,
    ),
    Case(
        "hoisted_constants",
        _constant,
        lambda devices: setting("jax_use_simplified_jaxpr_constants", True),
    ),
    Case(
        "default_device",
        **_under(lambda: jax.default_device(jax.local_devices(backend="cpu")[0]), product, X, X),
    ),
)


@contextmanager
def in_force(*contexts: AbstractContextManager[Any]) -> Any:
    """All contexts at once."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
