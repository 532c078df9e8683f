"""Programs by how the step is wrapped, and by what its arguments are."""

import functools
from typing import Any, NamedTuple

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from step import f32, i32, step

from xlapipe import Workload
from xlapipe.expect import Donated, ParameterBytes


def jit_donating_by_position() -> Workload:
    fn = jax.jit(lambda cache, x: cache.at[0].set(x), donate_argnums=0)
    return step("jit_donating_by_position", fn, [f32(64, 128), f32(128)], expectations=[
        Donated("cache"),
    ])  # fmt: skip


def jit_donating_by_name() -> Workload:
    fn = jax.jit(lambda cache, x: {"k": cache["k"] + x}, donate_argnames="cache")
    return step("jit_donating_by_name", fn, [{"k": f32(64, 128)}, f32(128)], expectations=[
        Donated("cache"),
    ])  # fmt: skip


def jit_static_by_position() -> Workload:
    fn = jax.jit(lambda x, times, mode: x * times if mode == "scale" else x, static_argnums=(1, 2))
    return step("jit_static_by_position", fn, [f32(100), 3, "scale"])


def jit_static_by_name() -> Workload:
    fn = jax.jit(lambda x, mode="scale": x * 2 if mode == "scale" else x, static_argnames="mode")
    return step("jit_static_by_name", fn, [f32(100)], kwargs={"mode": "other"})


def partial_of_jitted() -> Workload:
    @functools.partial(jax.jit, static_argnames="double", donate_argnames="cache")
    def update(cache: Any, x: Any, double: bool = False) -> Any:
        return cache + x * (2 if double else 1)

    fn = functools.partial(update, double=True)
    return step("partial_of_jitted", fn, [f32(256), f32(256)], expectations=[Donated("cache")])


def partial_of_function() -> Workload:
    fn = functools.partial(lambda x, scale, *, shift: x * scale + shift, shift=2.0)
    return step("partial_of_function", fn, [f32(256), f32()])


def workload_donates_by_name() -> Workload:
    return step(
        "workload_donates_by_name",
        lambda x, *, rate, mode: x * rate if mode == "scale" else x,
        [f32(256)],
        kwargs={"rate": 0.1, "mode": "scale"},
        static_argnames="mode",
        donate_argnames="x",
        expectations=[Donated("x")],
    )


def workload_static_by_position() -> Workload:
    return step(
        "workload_static_by_position",
        lambda x, times, mode: x * times,
        [f32(256), 3, "scale"],
        static_argnums=(1, 2),
        donate_argnums=0,
        expectations=[Donated("x")],
    )


def keyword_arguments() -> Workload:
    return step("keyword_arguments", lambda *, a, b: a @ b["w"], [], kwargs={
        "a": f32(32, 64), "b": {"w": f32(64, 16)},
    })  # fmt: skip


def python_scalars() -> Workload:
    def fn(x: Any, rate: Any, count: Any, flag: Any) -> Any:
        return jnp.where(flag, x.astype(jnp.bfloat16) * rate, count)

    return step("python_scalars", fn, [f32(256), 0.5, 7, True], expectations=[
        # f32[256], and the scalars f32, s32 and pred.
        ParameterBytes(1024 + 4 + 4 + 1),
    ])  # fmt: skip


class Mlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(64, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.down = nnx.Linear(128, 64, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(self.dropout(self.norm(nnx.relu(self.up(x)))))


def _mlp() -> Mlp:
    return nnx.eval_shape(lambda: Mlp(nnx.Rngs(0)))


def nnx_jit() -> Workload:
    @nnx.jit
    def forward(model: Mlp, x: jax.Array) -> jax.Array:
        return model(x)

    return step("nnx_jit", forward, [_mlp(), f32(32, 64)])


def nnx_jit_donating() -> Workload:
    @functools.partial(nnx.jit, donate_argnums=(0, 1))
    def train(model: Mlp, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, gradients)
        return loss

    model = _mlp()
    optimizer = nnx.eval_shape(
        lambda: nnx.Optimizer(Mlp(nnx.Rngs(0)), optax.adam(1e-3), wrt=nnx.Param)
    )
    return step("nnx_jit_donating", train, [model, optimizer, f32(32, 64)])


def nnx_split_and_merge() -> Workload:
    graph, state = nnx.split(_mlp())

    def forward(state: Any, x: jax.Array) -> Any:
        model = nnx.merge(graph, state)
        y = model(x)
        return y, nnx.state(model)

    return step("nnx_split_and_merge", forward, [state, f32(32, 64)], donate_argnums=0)


class LinenCell(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.Conv(8, (3, 3))(x)
        x = linen.avg_pool(linen.relu(x), (2, 2), (2, 2)).reshape(x.shape[0], -1)
        return linen.Dense(10)(x)


def linen_train_state() -> Workload:
    model, optimizer = LinenCell(), optax.adamw(1e-3)
    params = jax.eval_shape(model.init, jax.random.key(0), f32(2, 8, 8, 1))

    def train(params: Any, state: Any, x: jax.Array) -> Any:
        gradients = jax.grad(lambda params: jnp.mean(model.apply(params, x) ** 2))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.eval_shape(optimizer.init, params)
    args = [params, state, f32(2, 8, 8, 1)]
    return step("linen_train_state", train, args, donate_argnums=(0, 1))


class Batch(NamedTuple):
    tokens: Any
    mask: Any


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["table"], meta_fields=["scale"]
)  # fmt: skip
class Embedding:
    def __init__(self, table: Any, scale: float) -> None:
        self.table, self.scale = table, scale


def named_tuples_and_registered_classes() -> Workload:
    def fn(model: Embedding, batch: Batch) -> dict[str, Any]:
        return {"y": model.table[batch.tokens] * model.scale * batch.mask[:, None]}

    args = [Embedding(f32(1000, 16), 2.0), Batch(i32(8), f32(8))]
    return step("named_tuples_and_registered_classes", fn, args)


def none_and_empty_trees() -> Workload:
    def fn(tree: Any, nothing: Any, empty: Any) -> Any:
        return {"a": tree["a"] + 1, "none": None, "empty": ()}

    return step("none_and_empty_trees", fn, [{"a": f32(10), "b": None}, None, {}])


def typed_key() -> Workload:
    key = jax.eval_shape(lambda: jax.random.key(0))
    return step("typed_key", lambda key: (jax.random.normal(key, (64,)), key), [key])


def typed_key_rbg() -> Workload:
    key = jax.eval_shape(lambda: jax.random.key(0, impl="rbg"))
    return step("typed_key_rbg", lambda key: jax.random.uniform(key, (64,)), [key])


def split_keys() -> Workload:
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))
    return step("split_keys", jax.vmap(lambda key: jax.random.bits(key, (16,))), [keys])


def raw_key() -> Workload:
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return step("raw_key", lambda key: jax.random.bernoulli(key, 0.3, (64,)), [key])


def identity() -> Workload:
    return step("identity", lambda x: x, [f32(1000)])


def identity_donated() -> Workload:
    return step("identity_donated", lambda x: x, [f32(1000)], donate_argnums=0)


def no_outputs() -> Workload:
    # Without keep_unused it would be an empty program, which is refused.
    fn = jax.jit(lambda x: None, keep_unused=True)
    return step("no_outputs", fn, [f32(1000)])


def constant_output() -> Workload:
    return step("constant_output", lambda x: (x + 1, jnp.arange(10), 3.0), [f32(1000)])


def one_output_twice() -> Workload:
    def fn(x: Any) -> Any:
        y = x * 2
        return y, y, x

    return step("one_output_twice", fn, [f32(1000)])


def donated_and_unused() -> Workload:
    fn = lambda used, unused, useless: used * 2  # noqa: E731
    args = [f32(1000), f32(77), f32(33)]
    return step("donated_and_unused", fn, args, donate_argnums=(0, 1))


def donated_without_a_match() -> Workload:
    return step("donated_without_a_match", lambda x: x.sum(), [f32(1000)], donate_argnums=0)


def zero_sized() -> Workload:
    return step("zero_sized", lambda x, y: (x * 2, y.sum(0)), [f32(0, 4), f32(3, 0)])


def concrete_arrays() -> Workload:
    args = [np.ones((4, 4), np.float32), jnp.ones((4,)), np.float32(2)]
    return step("concrete_arrays", lambda a, b, c: a @ b * c, args)


def closure_of_8_megabytes() -> Workload:
    table = np.arange(1 << 21, dtype=np.float32).reshape(2048, 1024)
    return step("closure_of_8_megabytes", lambda x: x @ jnp.asarray(table), [f32(4, 2048)])


def closure_of_a_device_array() -> Workload:
    table = jnp.arange(4096.0).reshape(64, 64)
    return step("closure_of_a_device_array", lambda x: table @ x, [f32(64)])


def nested_jit() -> Workload:
    @jax.jit
    def inner(x: Any) -> Any:
        return jnp.sin(x)

    return step("nested_jit", lambda x: inner(inner(x)) + inner(x * 2), [f32(1000)])


def asks_where_it_runs() -> Workload:
    def fn(x: jax.Array) -> jax.Array:
        device = jax.devices()[0]
        on_target = (
            jax.default_backend() == "gpu"
            and device.platform == "gpu"
            and device.device_kind.startswith("NVIDIA H200")
            and jax.local_devices()[0].compute_capability == "9.0"
            and jax.device_count() == jax.local_device_count() == 1
        )
        # Two outputs on the target, one elsewhere.
        return (x, x * 2) if on_target else x

    return step("asks_where_it_runs", fn, [f32(1000)])


def platform_dependent() -> Workload:
    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.platform_dependent(x, cpu=lambda x: x, cuda=jnp.sin)

    return step("platform_dependent", fn, [f32(1000)])
