"""Example of a zoo: ten whole programs whose predicted times are compared with measured ones.

To make another: write a module like this one, whose `programs()` returns `TimedProgram`s by
FAMILY/NAME, without a look at how kernels are predicted. Then, on a GPU, for at most ten minutes,

    python tests/gpu/time_zoo/time_zoo.py MODULE.py OUT 420 560

and, without a GPU,

    python tests/gpu/time_zoo/pack_records.py OUT records/NAME.tar.xz "NVIDIA H200" DRIVER DATE

and add NAME to `ZOOS` in `compare.py`. `records/README.md` states where the programs of the
recorded zoos are.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from xlapipe.run.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
Zoo = Iterator[tuple[str, TimedProgram]]


def programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        transformers,
        inference,
        sorting,
        host_loops,
        sharded,
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def program(fn: Callable[..., Any], *args: Any, carried: bool = False) -> TimedProgram:
    return TimedProgram(fn, args, carried)


def norm(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def layer_norm(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    centred = wide - wide.mean(-1, keepdims=True)
    return (centred * lax.rsqrt(centred.var(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def attend(q: Any, k: Any, v: Any, causal: bool = True) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * q.shape[-1] ** -0.5
    if causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool), scores.shape[-1] - scores.shape[-2])
        scores = jnp.where(mask, scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)


def rotate(x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angles)[:, None].astype(x.dtype), jnp.cos(angles)[:, None].astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def layer_params(width: int, hidden: int, dtype: Any, gated: bool = True) -> dict[str, Any]:
    scale = width**-0.5
    shapes = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width)}
    shapes |= {"up": (width, hidden), "down": (hidden, width)}
    if gated:
        shapes["gate"] = (width, hidden)
    params = {name: Arg(shape, dtype, scale=scale) for name, shape in shapes.items()}
    return params | {"n1": Arg((width,), dtype), "n2": Arg((width,), dtype)}


def block(p: Any, x: Any, heads: int, attention: Any = attend, normalise: Any = norm) -> Any:
    batch, length, width = x.shape
    y = normalise(x, p["n1"])
    q, k, v = ((y @ p[name]).reshape(batch, length, heads, -1) for name in "qkv")
    mixed = attention(rotate(q), rotate(k), v).reshape(batch, length, width)
    x = x + checkpoint_name(mixed, "attention") @ p["o"]
    y = normalise(x, p["n2"])
    if "gate" in p:
        return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
    return x + jax.nn.gelu(y @ p["up"]) @ p["down"]


def cross_entropy(logits: Any, labels: Any) -> Any:
    logits = logits.astype(F32)
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - chosen).mean()


def language_model(
    policy: Any, heads: int, scanned: bool, normalise: Any, attention: Any, params: Any, tokens: Any
) -> Any:
    step = partial(block, heads=heads, attention=attention, normalise=normalise)
    if policy != "none":
        step = jax.checkpoint(step, policy=policy)
    x = params["embedding"][tokens]
    if scanned:
        x, _ = lax.scan(lambda x, p: (step(p, x), None), x, params["layers"])
    else:
        for layer in params["layers"]:
            x = step(layer, x)
    return cross_entropy((x @ params["embedding"].T)[:, :-1], tokens[:, 1:])


def adamw(loss: Callable[..., Any], rate: float = 1e-4) -> tuple[Any, Any]:
    """A training step that updates (params, state), and the state of params."""
    optimizer = optax.adamw(rate)

    def step(carry: Any, *batch: Any) -> Any:
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), value

    return step, optimizer


def train_program(loss: Callable[..., Any], params: Any, *batch: Arg) -> TimedProgram:
    step, optimizer = adamw(loss)
    structs = jax.tree.map(Arg.struct, params)
    state = jax.eval_shape(optimizer.init, structs)
    as_args = jax.tree.map(lambda leaf: Arg(leaf.shape, leaf.dtype, scale=0.0), state)
    return program(step, (params, as_args), *batch, carried=True)


def lm_params(
    layers: int, width: int, hidden: int, vocab: int, dtype: Any, scanned: bool, gated: bool = True
) -> Any:
    layer = layer_params(width, hidden, dtype, gated)
    stacked = jax.tree.map(lambda a: Arg((layers, *a.shape), a.dtype, a.scale), layer)
    return {
        "embedding": Arg((vocab, width), dtype, scale=0.02),
        "layers": stacked if scanned else [layer] * layers,
    }


POLICIES = jax.checkpoint_policies


def transformers() -> Zoo:
    """Training steps under rematerialisation policies."""
    tokens = Arg((8, 512), I32, below=32000)
    dots = POLICIES.dots_with_no_batch_dims_saveable
    loss = partial(language_model, dots, 12, True, norm, attend)
    yield "scanned_dots", train_program(loss, lm_params(6, 768, 2048, 32000, BF16, True), tokens)
    params = lm_params(3, 1024, 4096, 16384, F32, False, gated=False)
    nothing = POLICIES.nothing_saveable
    loss = partial(language_model, nothing, 16, False, layer_norm, attend)
    tokens = Arg((4, 512), I32, below=16384)
    yield "unrolled_f32_nothing", train_program(loss, params, tokens)
    cudnn = partial(jax.nn.dot_product_attention, implementation="cudnn", is_causal=True)
    loss = partial(language_model, "none", 16, False, norm, cudnn)
    params = lm_params(3, 1024, 2816, 32000, BF16, False)
    yield "cudnn_attention", train_program(loss, params, Arg((8, 1024), I32, below=32000))


def inference() -> Zoo:
    width, hidden, heads, vocab = 1024, 2816, 16, 32000

    def decode(params: Any, cache: Any, tokens: Any, position: Any) -> Any:
        x = params["embedding"][tokens][:, None]
        new_cache = []
        for p, (keys, values) in zip(params["layers"], cache, strict=True):
            y = norm(x, p["n1"])
            q, k, v = ((y @ p[name]).reshape(x.shape[0], 1, heads, -1) for name in "qkv")
            all_keys = lax.dynamic_update_slice(keys, k, (0, position, 0, 0))
            all_values = lax.dynamic_update_slice(values, v, (0, position, 0, 0))
            mixed = attend(q, all_keys, all_values).reshape(x.shape)
            x = x + mixed @ p["o"]
            y = norm(x, p["n2"])
            x = x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
            new_cache.append((all_keys, all_values))
        return new_cache, jnp.argmax(x[:, 0] @ params["embedding"].T, -1)

    params = lm_params(4, width, hidden, vocab, BF16, False)
    cache = [(Arg((16, 1024, heads, 64), BF16),) * 2] * 4

    def step(cache: Any, params: Any, tokens: Any, position: Any) -> Any:
        return decode(params, cache, tokens, position)

    tokens, position = Arg((16,), I32, below=vocab), Arg((), I32, below=900)
    yield "decode_16", program(step, cache, params, tokens, position, carried=True)

    def sample(key: Any, logits: Any) -> Any:
        top, index = lax.top_k(logits, 50)
        ordered = jnp.sort(jax.nn.softmax(logits.astype(F32)), -1)
        threshold = jnp.take_along_axis(
            ordered, (jnp.cumsum(ordered, -1) < 0.1).sum(-1, keepdims=True), -1
        )
        chosen = jax.random.categorical(key, top.astype(F32))
        return jnp.take_along_axis(index, chosen[:, None], 1), threshold

    key = Arg((2,), jnp.uint32, below=1 << 30)
    yield "sampling", program(sample, key, Arg((64, 32000), BF16))


def sorting() -> Zoo:
    def k_means(points: Any, centres: Any) -> Any:
        def step(centres: Any, _: Any) -> Any:
            distances = (centres * centres).sum(-1) - 2 * points @ centres.T
            index = jnp.argmin(distances, -1)
            sums = jax.ops.segment_sum(points, index, centres.shape[0])
            counts = jax.ops.segment_sum(jnp.ones(points.shape[0]), index, centres.shape[0])
            return sums / (counts[:, None] + 1), None

        return lax.scan(step, centres, length=5)[0]

    yield "k_means", program(k_means, Arg((65536, 32)), Arg((256, 32)))

    def histogram(values: Any) -> Any:
        index = jnp.clip((values * 64 + 128).astype(I32), 0, 255)
        return jnp.bincount(index, length=256), jnp.quantile(values, jnp.array([0.1, 0.5, 0.9]))

    yield "histogram", program(histogram, Arg((1 << 20,)))

    def deduplicate(keys: Any, values: Any) -> Any:
        keys, values = lax.sort((keys, values), num_keys=1)
        first = jnp.concatenate([jnp.array([True]), keys[1:] != keys[:-1]])
        group = jnp.cumsum(first) - 1
        return jax.ops.segment_sum(values, group, keys.shape[0]), group[-1]

    keys = Arg((1 << 19,), I32, below=100000)
    yield "deduplicate", program(deduplicate, keys, Arg((1 << 19,)))


def host_loops() -> Zoo:
    def relax(x: Any) -> Any:
        def step(state: Any) -> Any:
            x, _, count = state
            new = 0.25 * sum(jnp.roll(x, s, a) for s in (1, -1) for a in (0, 1))
            return new, jnp.abs(new - x).max(), count + 1

        start = x, jnp.float32(1.0), 0
        return lax.while_loop(lambda s: (s[1] > 0) & (s[2] < 60), step, start)[0]

    yield "relaxation", program(relax, Arg((1024, 1024)))


def sharded() -> Zoo:
    """A data-parallel step over the GPUs of one host, if there are several."""
    count = len(jax.devices())
    if count < 2:
        return
    mesh = Mesh(np.array(jax.devices()), ("gpus",))
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("gpus"))

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jax.nn.relu(x @ w)
        return x.astype(F32).sum()

    weights = [Arg((1024, 1024), BF16, scale=0.03, sharding=whole)] * 4
    yield (
        "data_parallel",
        program(jax.grad(loss), weights, Arg((4096, 1024), BF16, sharding=split)),
    )
