"""Training and inference steps of transformers, with the shapes and shardings of published runs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

F32, BF16 = jnp.float32, jnp.bfloat16
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
BATCH = P(("data", "fsdp"))


def transformer(
    *,
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    length: int,
    batch: int,
    vocab: int = 0,
    classes: int = 0,
    patch: int = 0,
    kv_heads: int = 0,
    data: int = 1,
    fsdp: int = 1,
    gated: bool = False,
    rope: bool = False,
    tied: bool = True,
    causal: bool = True,
    attention: str = "cudnn",
    remat: str = "dots",
    scanned: bool = True,
    accumulated: int = 1,
    train: bool = True,
    dtype: str = "bfloat16",
    float8: bool = False,
    one_hot: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Workload:
    """A step of AdamW, or the forward pass.

    Args:
      batch: sequences of one GPU.
      vocab: tokens of a language model; 0 for an encoder of patches or of `vocab` words.
      classes: of a classifier; 0 for a language model.
      patch: pixels of a patch's side, for images; 0 for words.
      kv_heads: heads of keys and values; 0 for all.
      data, fsdp: GPUs over which parameters are whole and in shards.
      gated: SwiGLU and RMSNorm without biases, instead of GELU and LayerNorm with them.
      remat: products that are saved for the backward pass: `dots` all, with `flash` also those of
        attention, `attention` only those before and after it, `nothing`, or `none` for no
        checkpoint.
      accumulated: batches whose gradients are added before the update.
      one_hot: look words up by a product.
    """
    kind = jnp.dtype(dtype)
    head = width // heads
    keys = (kv_heads or heads) * head
    shapes: dict[str, tuple[int, ...]] = {
        "q": (width, heads * head),
        "k": (width, keys),
        "v": (width, keys),
        "o": (heads * head, width),
        "up": (width, hidden),
        "down": (hidden, width),
    }
    # The dimension of the model's width is what is in shards.
    specs = {
        name: P("fsdp") if shape[0] == width else P(None, "fsdp") for name, shape in shapes.items()
    }
    specs["o"] = P(None, "fsdp")
    if gated:
        shapes["gate"], specs["gate"] = (width, hidden), P("fsdp")
        vectors = {"n1": width, "n2": width}
    else:
        vectors = {"n1": width, "n2": width, "m1": width, "m2": width}
        vectors |= {f"b{name}": shape[1] for name, shape in shapes.items()}
    shapes |= {name: (size,) for name, size in vectors.items()}
    specs |= dict.fromkeys(vectors, P())
    layer = {name: jax.ShapeDtypeStruct(shape, F32) for name, shape in shapes.items()}
    params: Any
    param_specs: Any
    if scanned:
        params = {
            "layers": jax.tree.map(lambda it: jax.ShapeDtypeStruct((layers, *it.shape), F32), layer)
        }
        param_specs = {"layers": {name: P(None, *spec) for name, spec in specs.items()}}
    else:
        params, param_specs = {"layers": [layer] * layers}, {"layers": [specs] * layers}
    tops: dict[str, tuple[tuple[int, ...], P]] = {"norm": ((width,), P())}
    if patch:
        tops["patches"] = (3 * patch**2, width), P(None, "fsdp")
    else:
        tops["embedding"] = (vocab, width), P(None, "fsdp")
    if not rope:
        tops["positions"] = (length, width), P(None, "fsdp")
    if classes:
        tops["head"] = (width, classes), P("fsdp")
    elif not tied:
        tops["head"] = (width, vocab), P("fsdp")
    params |= {name: jax.ShapeDtypeStruct(shape, F32) for name, (shape, _) in tops.items()}
    param_specs |= {name: spec for name, (_, spec) in tops.items()}

    sharded = data * fsdp > 1
    flash: Any = partial(jax.nn.dot_product_attention, is_causal=causal, implementation="cudnn")
    if sharded:
        flash = jax.shard_map(flash, in_specs=(BATCH,) * 3, out_specs=BATCH)
    multiply = _float8_product if float8 else jnp.matmul
    run = partial(
        _forward,
        block=partial(
            _block,
            heads=heads,
            causal=causal,
            rope=rope,
            flash=flash if attention == "cudnn" else None,
            multiply=multiply,
        ),
        remat=remat if train else "none",
        kind=kind,
        scanned=scanned,
        classes=classes,
        sharded=sharded,
        one_hot=one_hot,
    )
    count = batch * data * fsdp // accumulated
    stacked = (accumulated,) if accumulated > 1 else ()
    if patch:
        inputs = jax.ShapeDtypeStruct((*stacked, count, length, 3 * patch**2), kind)
    else:
        inputs = jax.ShapeDtypeStruct((*stacked, count, length), jnp.int32)
    targets = jax.ShapeDtypeStruct((*stacked, count, *(() if classes else (length,))), jnp.int32)
    batch_spec = P(None, ("data", "fsdp")) if stacked else BATCH
    mesh = {"data": data, "fsdp": fsdp} if sharded else None
    if not train:
        return Workload(name="transformer", fn=run, args=(params, inputs), options=options or {})
    state = (params, params, params)
    state_specs = (param_specs, param_specs, param_specs)
    return Workload(
        name="transformer",
        fn=partial(adamw_step, partial(_loss, run), accumulated),
        args=(state, inputs, targets),
        donate_argnums=0,
        mesh=mesh,
        in_specs=(state_specs, batch_spec, batch_spec) if mesh else None,
        out_specs=(state_specs, P()) if mesh else None,
        options=options or {},
    )


def adamw_step(loss: Callable[..., Any], accumulated: int, state: Any, *batch: Any) -> Any:
    """One step of AdamW in float32, whose gradients are clipped by their norm."""
    params, first, second = state
    if accumulated == 1:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
    else:

        def add(total: Any, one: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(params, *one)
            return jax.tree.map(jnp.add, total, (value, gradients)), None

        zeros = jax.tree.map(jnp.zeros_like, (jnp.float32(0), params))
        (value, gradients), _ = lax.scan(add, zeros, batch)
    squares = sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(gradients))
    scale = jnp.minimum(1.0, lax.rsqrt(squares + 1e-6)) / accumulated

    def update(w: Any, m: Any, v: Any, g: Any) -> Any:
        g = g * scale
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        return w - 1e-4 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * w), m, v

    new = jax.tree.map(update, params, first, second, gradients)
    return tuple(jax.tree.map(lambda _, out, i=i: out[i], params, new) for i in range(3)), value


def _loss(run: Callable[..., Any], params: Any, inputs: Any, targets: Any) -> Any:
    logits = run(params, inputs).astype(F32)
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - chosen).mean()


def _forward(
    params: Any,
    inputs: Any,
    *,
    block: Callable[..., Any],
    remat: str,
    kind: Any,
    scanned: bool,
    classes: int,
    sharded: bool,
    one_hot: bool,
) -> Any:
    def constrained(x: Any) -> Any:
        return lax.with_sharding_constraint(x, BATCH) if sharded else x

    def step(x: Any, p: Any) -> tuple[Any, None]:
        return constrained(block({name: w.astype(kind) for name, w in p.items()}, x)), None

    if remat != "none":
        step = jax.checkpoint(step, policy=_policy(remat), prevent_cse=not scanned)
    if "patches" in params:
        x = inputs @ params["patches"].astype(kind)
    elif one_hot:
        words = params["embedding"].astype(kind)
        x = jax.nn.one_hot(inputs, len(words), dtype=kind) @ words
    else:
        x = params["embedding"].astype(kind)[inputs]
    if "positions" in params:
        x = x + params["positions"].astype(kind)
    x = constrained(x)
    if scanned:
        x, _ = lax.scan(step, x, params["layers"])
    else:
        for layer in params["layers"]:
            x, _ = step(x, layer)
    x = _norm(x, params["norm"].astype(kind), None)
    if classes:
        x = x[:, 0]
    head = params["head"] if "head" in params else params["embedding"].T
    return x @ head.astype(kind)


def _policy(remat: str) -> Callable[..., bool]:
    named = jax.checkpoint_policies.save_only_these_names
    if remat == "nothing":
        return jax.checkpoint_policies.nothing_saveable
    if remat == "attention":
        products: Any = named("q", "k", "v", "context", "o")
    else:
        products = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    if remat == "dots":
        return products  # type: ignore[no-any-return]

    def flash(primitive: Any, *args: Any, **params: Any) -> Any:
        if primitive.name.startswith("dot_product_attention_fwd"):
            return True
        return products(primitive, *args, **params)

    return flash


def _norm(x: Any, scale: Any, bias: Any) -> Any:
    wide = x.astype(F32)
    if bias is not None:
        wide = wide - wide.mean(-1, keepdims=True)
    out = (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale
    return out if bias is None else out + bias


def _rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angles)[:, None].astype(x.dtype), jnp.cos(angles)[:, None].astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _attended(q: Any, k: Any, v: Any, causal: bool) -> Any:
    if (several := q.shape[2] // k.shape[2]) > 1:
        k, v = (jnp.repeat(each, several, axis=2) for each in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)


def _block(
    p: Any,
    x: Any,
    *,
    heads: int,
    causal: bool,
    rope: bool,
    flash: Callable[..., Any] | None,
    multiply: Callable[..., Any],
) -> Any:
    head = p["q"].shape[1] // heads

    def product(y: Any, name: str) -> Any:
        out = checkpoint_name(multiply(y, p[name]), name)
        return out + p[f"b{name}"] if f"b{name}" in p else out

    y = _norm(x, p["n1"], p.get("m1"))
    q, k, v = (product(y, name).reshape(*x.shape[:2], -1, head) for name in "qkv")
    if rope:
        q, k = _rotated(q), _rotated(k)
    mixed = flash(q, k, v) if flash is not None else _attended(q, k, v, causal)
    x = x + product(checkpoint_name(mixed, "context").reshape(*x.shape[:2], -1), "o")
    y = _norm(x, p["n2"], p.get("m2"))
    if "gate" in p:
        return x + product(jax.nn.silu(product(y, "gate")) * product(y, "up"), "down")
    return x + product(jax.nn.gelu(product(y, "up")), "down")


def _codes(x: Any, kind: Any) -> Any:
    limit = float(jnp.finfo(kind).max)
    return jnp.clip(x, -limit, limit).astype(kind)


@jax.custom_vjp
def _float8_product(x: Any, w: Any) -> Any:
    """A product in float8. Delayed scales are 1: they are known before, and cost nothing."""
    return _float8_forward(x, w)[0]


def _float8_dot(a: Any, b: Any, kind: Any) -> Any:
    return lax.dot_general(
        a, b, (((a.ndim - 1,), (b.ndim - 1,)), ((), ())), preferred_element_type=kind
    )


def _float8_forward(x: Any, w: Any) -> Any:
    x_codes, w_codes = _codes(x, E4M3), _codes(w, E4M3)
    return _float8_dot(x_codes, w_codes.T, x.dtype), (x_codes, w_codes)


def _float8_backward(saved: Any, g: Any) -> Any:
    x_codes, w_codes = saved
    g_codes = _codes(g, E5M2)
    dx = _float8_dot(g_codes, w_codes, g.dtype)
    rows = x_codes.reshape(-1, x_codes.shape[-1])
    return dx, _float8_dot(rows.T, g_codes.reshape(-1, g.shape[-1]).T, g.dtype)


_float8_product.defvjp(_float8_forward, _float8_backward)
