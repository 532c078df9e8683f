"""Example of a zoo: 30 whole programs whose predicted times are compared with measured ones.

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
        encoders,
        mixtures_of_experts,
        attentions,
        losses,
        optimizers,
        convolutional,
        recurrent,
        spectral,
        linear_algebra,
        sorting,
        graphs,
        simulations,
        host_loops,
        products,
        learning,
        statistics,
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


def encoders() -> Zoo:
    def classify(params: Any, images: Any, labels: Any) -> Any:
        batch, size, _, _ = images.shape
        side = size // 16
        patches = images.reshape(batch, side, 16, side, 16, 3).transpose(0, 1, 3, 2, 4, 5)
        x = patches.reshape(batch, side * side, -1) @ params["patches"]
        for p in params["layers"]:
            x = block(p, x, 6, partial(attend, causal=False), layer_norm)
        return cross_entropy(x.mean(1) @ params["head"], labels)

    params = {
        "patches": Arg((768, 384), BF16, scale=0.03),
        "layers": [layer_params(384, 1536, BF16, gated=False)] * 4,
        "head": Arg((384, 1000), BF16, scale=0.03),
    }
    images, labels = Arg((32, 224, 224, 3), BF16), Arg((32,), I32, below=1000)
    yield "vision_transformer", train_program(classify, params, images, labels)


def mixtures_of_experts() -> Zoo:
    experts, width, hidden, tokens = 8, 512, 1408, 4096

    def capacity(params: Any, x: Any) -> Any:
        room = tokens * 2 // experts
        weights = jax.nn.softmax((x @ params["router"]).astype(F32))
        top, index = lax.top_k(weights, 2)
        flat = index.reshape(-1)
        one_hot = jax.nn.one_hot(flat, experts, dtype=I32)
        position = (jnp.cumsum(one_hot, 0) * one_hot).sum(-1) - 1
        slot = jnp.where(position < room, flat * room + position, experts * room)
        buffers = jnp.zeros((experts * room, width), x.dtype)
        buffers = buffers.at[slot].set(jnp.repeat(x, 2, 0), mode="drop")
        y = jnp.einsum("ecd,edh->ech", buffers.reshape(experts, room, width), params["up"])
        y = jnp.einsum("ech,ehd->ecd", jax.nn.silu(y), params["down"]).reshape(-1, width)
        gathered = y.at[slot].get(mode="fill", fill_value=0)
        return (gathered.reshape(tokens, 2, width) * top[..., None].astype(x.dtype)).sum(1)

    def sorted_ragged(params: Any, x: Any) -> Any:
        index = jnp.argmax(x @ params["router"], -1)
        order = jnp.argsort(index)
        sizes = jnp.bincount(index, length=experts)
        y = lax.ragged_dot(x[order], params["up"], sizes)
        y = lax.ragged_dot(jax.nn.silu(y), params["down"], sizes)
        return jnp.zeros_like(x).at[order].set(y)

    params = {
        "router": Arg((width, experts), BF16),
        "up": Arg((experts, width, hidden), BF16, scale=0.04),
        "down": Arg((experts, hidden, width), BF16, scale=0.04),
    }
    x = Arg((tokens, width), BF16)
    yield (
        "capacity_gradient",
        program(jax.grad(lambda p, x: capacity(p, x).astype(F32).sum()), params, x),
    )
    yield "ragged", program(sorted_ragged, params, x)


def attentions() -> Zoo:
    def chunked(q: Any, k: Any, v: Any) -> Any:
        size = 256
        batch, length, heads, width = q.shape
        blocks = [x.reshape(batch, -1, size, heads, width).swapaxes(0, 1) for x in (k, v)]

        def step(carry: Any, kv: Any) -> Any:
            total, weight, most = carry
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, kv[0]).astype(F32) * width**-0.5
            new = jnp.maximum(most, scores.max(-1))
            exps = jnp.exp(scores - new[..., None])
            scale = jnp.exp(most - new)
            update = jnp.einsum("bhqk,bkhd->bhqd", exps.astype(q.dtype), kv[1]).astype(F32)
            return (total * scale[..., None] + update, weight * scale + exps.sum(-1), new), None

        start = jnp.zeros((batch, heads, length, width), F32)
        rows = jnp.zeros((batch, heads, length), F32)
        (total, weight, _), _ = lax.scan(step, (start, rows, rows - 1e30), tuple(blocks))
        return (total / weight[..., None]).astype(q.dtype)

    q = Arg((4, 2048, 8, 64), BF16)
    yield "chunked", program(chunked, q, q, q)


def losses() -> Zoo:
    hidden, vocab = Arg((4096, 1024), BF16), Arg((1024, 50304), BF16, scale=0.03)
    labels = Arg((4096,), I32, below=50304)

    def chunks(x: Any, w: Any, y: Any) -> Any:
        def step(total: Any, part: Any) -> Any:
            return total + cross_entropy(part[0] @ w, part[1]), None

        parts = x.reshape(8, -1, x.shape[1]), y.reshape(8, -1)
        return lax.scan(jax.checkpoint(step), jnp.float32(0), parts)[0]

    yield (
        "cross_entropy_chunks",
        program(jax.value_and_grad(chunks, (0, 1)), hidden, vocab, labels),
    )

    def ctc(logits: Any, labels: Any) -> Any:
        zeros = jnp.zeros(logits.shape[:2]), jnp.zeros(labels.shape)
        return optax.ctc_loss(logits, zeros[0], labels, zeros[1]).mean()

    yield (
        "ctc",
        program(jax.grad(ctc), Arg((16, 128, 64)), Arg((16, 24), I32, below=64)),
    )


def optimizers() -> Zoo:
    def muon(momentum: Any, gradient: Any) -> Any:
        momentum = jax.tree.map(lambda m, g: 0.95 * m + g, momentum, gradient)

        def orthogonal(matrix: Any) -> Any:
            x = (matrix / (jnp.linalg.norm(matrix) + 1e-7)).astype(BF16)
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            return x

        return momentum, jax.tree.map(orthogonal, momentum)

    weights = [Arg((1024, 2048))] * 4
    yield "muon", program(muon, weights, weights, carried=True)


def conv(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    spatial = x.ndim - 2
    names = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC")}[spatial]
    return lax.conv_general_dilated(
        x,
        w,
        (stride,) * spatial,
        "SAME",
        dimension_numbers=names,
        feature_group_count=groups,
    )


def batch_norm(x: Any) -> Any:
    axes = tuple(range(x.ndim - 1))
    mean, var = x.astype(F32).mean(axes), x.astype(F32).var(axes)
    return ((x - mean) * lax.rsqrt(var + 1e-5)).astype(x.dtype)


def convolutional() -> Zoo:
    def kernel(window: int, inputs: int, outputs: int, dtype: Any = F32) -> Arg:
        return Arg((window, window, inputs, outputs), dtype, scale=0.1)

    def residual(params: Any, x: Any, labels: Any) -> Any:
        x = conv(x, params["stem"])
        for stage in params["stages"]:
            x = conv(x, stage["down"], 2)
            for first, second in stage["blocks"]:
                y = jax.nn.relu(batch_norm(conv(x, first)))
                x = jax.nn.relu(x + batch_norm(conv(y, second)))
        return cross_entropy(x.mean((1, 2)) @ params["head"], labels)

    stages = [
        {"down": kernel(3, c // 2, c, BF16), "blocks": [(kernel(3, c, c, BF16),) * 2] * 2}
        for c in (32, 64, 128)
    ]
    params = {"stem": kernel(3, 3, 16, BF16), "stages": stages, "head": Arg((128, 10), BF16)}
    images, labels = Arg((128, 32, 32, 3), BF16), Arg((128,), I32, below=10)
    yield "residual_bf16", train_program(residual, params, images, labels)

    def unet(params: Any, x: Any) -> Any:
        x = conv(x, params["in"])
        skips = []
        for w in params["down"]:
            x = jax.nn.silu(conv(x, w))
            skips.append(x)
            x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        for w, skip in zip(params["up"], reversed(skips), strict=True):
            x = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
            x = jax.nn.silu(conv(jnp.concatenate([x, skip], -1), w))
        return x

    params = {
        "in": kernel(3, 3, 32, BF16),
        "down": [kernel(3, 32, 64, BF16), kernel(3, 64, 128, BF16), kernel(3, 128, 256, BF16)],
        "up": [kernel(3, 512, 128, BF16), kernel(3, 256, 64, BF16), kernel(3, 128, 32, BF16)],
    }
    image = Arg((8, 128, 128, 3), BF16)
    yield (
        "unet_gradient",
        program(jax.grad(lambda p, x: unet(p, x).astype(F32).mean()), params, image),
    )


def recurrent() -> Zoo:
    def lstm(params: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, c = state
            gates = x @ params["x"] + h @ params["h"]
            i, f, g, o = jnp.split(gates, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((xs.shape[1], 512))
        return lax.scan(step, (zeros, zeros), xs)[1]

    params = {"x": Arg((256, 2048), scale=0.05), "h": Arg((512, 2048), scale=0.05)}
    xs = Arg((128, 64, 256))
    yield "lstm_gradient", program(jax.grad(lambda p, x: lstm(p, x).sum()), params, xs)

    def selective(params: Any, x: Any) -> Any:
        delta = jax.nn.softplus(x @ params["delta"])
        b, c = x @ params["b"], x @ params["c"]
        decay = jnp.exp(-delta[..., None] * jnp.exp(params["a"]))
        inputs = (delta * x)[..., None] * b[:, :, None]

        def combine(p: Any, q: Any) -> Any:
            return p[0] * q[0], q[0] * p[1] + q[1]

        _, states = lax.associative_scan(combine, (decay, inputs), axis=1)
        return jnp.einsum("blds,bls->bld", states, c)

    params = {
        "delta": Arg((256, 256), scale=0.05),
        "a": Arg((256, 16)),
        "b": Arg((256, 16), scale=0.1),
        "c": Arg((256, 16), scale=0.1),
    }
    x = Arg((2, 1024, 256))
    yield "state_space", program(selective, params, x)


def spectral() -> Zoo:
    def fourier_operator(params: Any, x: Any) -> Any:
        for weight, skip in params:
            spectrum = jnp.fft.rfft2(x, axes=(1, 2))
            low = jnp.einsum("bxyc,xycd->bxyd", spectrum[:, :16, :16], weight + 0j)
            padded = jnp.zeros_like(spectrum).at[:, :16, :16].set(low)
            x = jax.nn.gelu(jnp.fft.irfft2(padded, axes=(1, 2)) + x @ skip)
        return x

    layer = Arg((16, 16, 32, 32), scale=0.05), Arg((32, 32), scale=0.1)
    x = Arg((8, 128, 128, 32))
    yield (
        "fourier_operator_gradient",
        program(jax.grad(lambda p, x: fourier_operator(p, x).sum()), [layer] * 3, x),
    )


def linear_algebra() -> Zoo:
    def gaussian_process(x: Any, y: Any, new: Any) -> Any:
        def kernel(a: Any, b: Any) -> Any:
            squares = (a * a).sum(-1)[:, None] + (b * b).sum(-1) - 2 * a @ b.T
            return jnp.exp(-0.5 * squares)

        factor = jnp.linalg.cholesky(kernel(x, x) + jnp.eye(x.shape[0]))
        weights = jax.scipy.linalg.cho_solve((factor, True), y)
        half = jax.scipy.linalg.solve_triangular(factor, kernel(x, new), lower=True)
        return kernel(new, x) @ weights, 1 - (half * half).sum(0), jnp.log(jnp.diag(factor)).sum()

    args = Arg((768, 8)), Arg((768,)), Arg((256, 8))
    yield "gaussian_process_768", program(gaussian_process, *args)

    def kalman(transition: Any, noise: Any, observed: Any) -> Any:
        def step(state: Any, y: Any) -> Any:
            mean, cov = state
            mean, cov = transition @ mean, transition @ cov @ transition.T + noise
            factor = jnp.linalg.cholesky(cov + noise)
            gain = jax.scipy.linalg.cho_solve((factor, True), cov).T
            mean = mean + gain @ (y - mean)
            return (mean, cov - gain @ cov), mean

        return lax.scan(step, (observed[0], noise), observed)[1]

    system = Arg((32, 32), scale=0.05), Arg((32, 32), scale=0.001, identity=1.0)
    yield "kalman", program(kalman, *system, Arg((100, 32)))


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


def graphs() -> Zoo:
    nodes, edges, width = 16384, 131072, 64

    def messages(params: Any, x: Any, sources: Any, targets: Any) -> Any:
        for w, update in params:
            sent = jax.nn.relu(jnp.concatenate([x[sources], x[targets]], -1) @ w)
            x = x + jax.ops.segment_sum(sent, targets, nodes) @ update
        return x

    layer = Arg((2 * width, width), scale=0.1), Arg((width, width), scale=0.01)
    graph = Arg((edges,), I32, below=nodes), Arg((edges,), I32, below=nodes)
    x = Arg((nodes, width))
    yield (
        "message_passing_gradient",
        program(jax.grad(lambda p, *a: messages(p, *a).sum()), [layer] * 2, x, *graph),
    )


def simulations() -> Zoo:
    def lattice(f: Any) -> Any:
        shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        weights = jnp.array(
            [(4 if i == j == 0 else 1 if i * j == 0 else 0.25) / 9 for i, j in shifts]
        )
        velocities = jnp.array(shifts, F32)

        def step(f: Any, _: Any) -> Any:
            f = jnp.stack([jnp.roll(f[k], shift, (0, 1)) for k, shift in enumerate(shifts)])
            density = f.sum(0) + 10
            u = jnp.einsum("kxy,kd->dxy", f, velocities) / density
            along = jnp.einsum("dxy,kd->kxy", u, velocities)
            rest = 1 + 3 * along + 4.5 * along**2 - 1.5 * (u * u).sum(0)
            return f + 0.6 * (weights[:, None, None] * density * rest - f), None

        return lax.scan(step, f, length=20)[0]

    yield "lattice_boltzmann", program(lattice, Arg((9, 512, 512), scale=0.01))

    def paths(key: Any, start: Any) -> Any:
        def step(x: Any, key: Any) -> Any:
            return x * jnp.exp(0.01 * jax.random.normal(key, x.shape)), None

        x, _ = lax.scan(step, start, jax.random.split(key, 32))
        return jnp.maximum(x - 1, 0).mean()

    yield "monte_carlo", program(paths, Arg((2,), jnp.uint32, below=1 << 30), Arg((1 << 20,)))


def host_loops() -> Zoo:
    def relax(x: Any) -> Any:
        def step(state: Any) -> Any:
            x, _, count = state
            new = 0.25 * sum(jnp.roll(x, s, a) for s in (1, -1) for a in (0, 1))
            return new, jnp.abs(new - x).max(), count + 1

        start = x, jnp.float32(1.0), 0
        return lax.while_loop(lambda s: (s[1] > 0) & (s[2] < 60), step, start)[0]

    yield "relaxation", program(relax, Arg((1024, 1024)))


def products() -> Zoo:
    def quantised(x: Any, weights: Any, scales: Any) -> Any:
        for w, scale in zip(weights, scales, strict=True):
            step = jnp.abs(x).max(-1, keepdims=True) / 127
            small = jnp.round(x / (step + 1e-6)).astype(jnp.int8)
            y = jnp.matmul(small, w, preferred_element_type=I32)
            x = jax.nn.relu(y.astype(F32) * step * scale)
        return x

    weights = [Arg((2048, 2048), jnp.int8, below=100)] * 4
    yield "int8", program(quantised, Arg((512, 2048)), weights, [Arg((2048,), scale=1e-3)] * 4)


def learning() -> Zoo:
    def advantage(rewards: Any, values: Any) -> Any:
        def step(carry: Any, item: Any) -> Any:
            reward, value, following = item
            carry = reward + 0.99 * following - value + 0.95 * 0.99 * carry
            return carry, carry

        following = jnp.concatenate([values[1:], values[-1:]])
        return lax.scan(
            step, jnp.zeros(values.shape[1]), (rewards, values, following), reverse=True
        )[1]

    def clipped(params: Any, states: Any, actions: Any, rewards: Any) -> Any:
        x = states
        for w in params["body"]:
            x = jnp.tanh(x @ w)
        logits, values = x @ params["policy"], (x @ params["value"])[..., 0]
        gains = lax.stop_gradient(advantage(rewards, values))
        logs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], -1)[..., 0]
        ratio = jnp.exp(logs - lax.stop_gradient(logs))
        losses = jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains)
        return ((values - gains) ** 2).mean() - losses.mean()

    params = {
        "body": [Arg((32, 256), scale=0.1), Arg((256, 256), scale=0.1)],
        "policy": Arg((256, 8), scale=0.1),
        "value": Arg((256, 1), scale=0.1),
    }
    batch = Arg((128, 256, 32)), Arg((128, 256), I32, below=8), Arg((128, 256))
    yield "policy_gradient", train_program(clipped, params, *batch)


def statistics() -> Zoo:
    def forward(transition: Any, emission: Any, observed: Any) -> Any:
        logs = jax.nn.log_softmax(transition)

        def step(alpha: Any, y: Any) -> Any:
            alpha = jax.nn.logsumexp(alpha[:, :, None] + logs, 1) + emission.T[y]
            return alpha, None

        start = jnp.zeros((observed.shape[1], transition.shape[0]))
        return jax.nn.logsumexp(lax.scan(step, start, observed)[0], -1)

    observed = Arg((64, 32), I32, below=50)
    yield "hidden_markov", program(forward, Arg((128, 128)), Arg((128, 50)), observed)


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
