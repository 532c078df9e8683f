"""A training step of a transformer in plain jax, with the shapes that MaxText's recipes state.

The parameters are float32, in shards over the axis `fsdp`; each layer casts its own to bfloat16 and
gathers them. The layers are one scan, with jax's rematerialisation. Attention is jax's own Pallas
kernel (`splash_attention`), the products of experts without capacity its `megablox.gmm`. Axis
letters: B rows, S positions, D features, H heads, K their size, F features within, E experts.
"""

from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu.megablox import ops as megablox
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

BF16, F32 = jnp.bfloat16, jnp.float32
Tree = Any


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes of a model, and how it is trained.

    Attributes:
      batch: rows of each device; with `context`, of each group of devices.
      windows: of attention in each layer of a period, 0 for all positions before.
      capacity: of experts, relative to an even load; 0 for no limit.
      saved, offloaded: names of activations that are kept in HBM or on the host; others are
        computed again.
      chunks: of positions, in which logits are computed.
      context: devices among which the positions of a row are divided.
      data: devices that have the same shards.
      float8: products of float8, with scales that are constant.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int
    batch: int
    length: int
    devices: int
    experts: int = 0
    chosen: int = 0
    capacity: float = 0.0
    gated: bool = True
    windows: tuple[int, ...] = (0,)
    saved: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()
    moment: Any = F32
    weight: Any = F32
    chunks: int = 1
    context: int = 1
    data: int = 1
    block: int = 2048
    float8: bool = False
    options: tuple[tuple[str, str], ...] = ()


def parameter_shapes(model: Model) -> Tree:
    """Shapes and partitions of the parameters, those of the layers stacked."""
    n, d, f, e = model.layers, model.width, model.inner, model.experts
    q, kv = model.heads * model.head, model.kv_heads * model.head
    into, out = P(None, "fsdp"), P(None, None, "fsdp")
    layer = {
        "norm1": ((n, d), P()),
        "norm2": ((n, d), P()),
        "query": ((n, d, q), into),
        "key": ((n, d, kv), into),
        "value": ((n, d, kv), into),
        "out": ((n, q, d), out),
    }
    names = ("gate", "up") if model.gated else ("up",)
    if e:
        # Along the experts where there are enough, as `fsdp_shard_on_exp` does.
        layer["router"] = ((n, d, e), P(None, "fsdp"))
        layer |= {name: ((n, e, d, f), P(None, None, "fsdp")) for name in names}
        layer["down"] = ((n, e, f, d), P(None, None, None, "fsdp"))
    else:
        layer |= dict.fromkeys(names, ((n, d, f), into))
        layer["down"] = ((n, f, d), out)
    return {
        "embedding": ((model.vocabulary, d), P(None, "fsdp")),
        "head": ((d, model.vocabulary), P("fsdp")),
        "norm": ((d,), P()),
        "layers": layer,
    }


def _rows(model: Model, *, along: bool = True) -> P:
    """How rows and positions are divided."""
    rows = ("data", "fsdp") if model.data > 1 else "fsdp"
    return P(rows, "context") if model.context > 1 and along else P(rows)


def _is_shape(item: object) -> bool:
    return isinstance(item, tuple) and isinstance(item[1], P)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(F32)
    wide *= jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return (wide * scale).astype(BF16)


def _rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    angles = positions[:, None] / 5e5 ** (jnp.arange(half) / half)
    sine, cosine = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    first, second = jnp.split(x.astype(F32), 2, axis=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(turned, axis=-1).astype(BF16)


def _float8(x: jax.Array, kind: Any) -> jax.Array:
    limit = float(jnp.finfo(kind).max)
    return jnp.clip(x.astype(F32) * (limit / 224), -limit, limit).astype(kind)


@jax.custom_vjp
def _product8(x: jax.Array, weight: jax.Array) -> jax.Array:
    return _forward8(x, weight)[0]


def _forward8(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, Tree]:
    x, weight = (_float8(item, jnp.float8_e4m3fn) for item in (x, weight))
    along = (((2,), (0,)), ((), ()))
    return jax.lax.dot_general(x, weight, along, preferred_element_type=BF16), (x, weight)


def _backward8(kept: Tree, given: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight = kept
    given = _float8(given, jnp.float8_e5m2)
    dx = jax.lax.dot_general(given, weight, (((2,), (1,)), ((), ())), preferred_element_type=BF16)
    both = (((0, 1), (0, 1)), ((), ()))
    return dx, jax.lax.dot_general(x, given, both, preferred_element_type=BF16)


_product8.defvjp(_forward8, _backward8)


def _product(model: Model, x: jax.Array, weight: jax.Array) -> jax.Array:
    weight = weight.astype(BF16)
    return _product8(x, weight) if model.float8 else x @ weight


def attention(model: Model, q: jax.Array, k: jax.Array, v: jax.Array, window: int) -> jax.Array:
    """Causal attention of the rows of a device. q [B S H K], k and v [B S KV K]."""

    def local(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        rows, columns = q.shape[1], k.shape[1]
        # Positions are divided so that each device has as much to do: half of what it sees.
        offset = (columns - rows) // 2
        shape = (rows, columns)
        mask = (
            masks.LocalMask(shape, (window - 1, 0), offset)
            if window
            else masks.CausalMask(shape, offset)
        )
        block = min(model.block, rows)
        names = ("block_q", "block_kv", "block_kv_compute")
        names += ("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
        sizes = splash.BlockSizes(**dict.fromkeys(names, block), use_fused_bwd_kernel=True)
        kernel = splash.make_splash_mha(
            masks.MultiHeadMask([mask] * q.shape[2]),
            head_shards=1,
            q_seq_shards=1,
            block_sizes=sizes,
            residual_checkpoint_name="context",
        )
        scaled = q * model.head**-0.5
        heads = (jnp.swapaxes(item, 1, 2) for item in (scaled, k, v))
        return jnp.swapaxes(jax.vmap(kernel)(*heads), 1, 2)

    along, whole = _rows(model), _rows(model, along=False)
    run = jax.shard_map(local, in_specs=(along, whole, whole), out_specs=along, check_vma=False)
    return run(q, k, v)


def _within(model: Model, layer: Tree, x: jax.Array) -> jax.Array:
    up = _product(model, x, layer["up"])
    gate = jax.nn.silu(_product(model, x, layer["gate"])) if model.gated else None
    up = jax.nn.gelu(up) if gate is None else gate * up
    return _product(model, checkpoint_name(up, "mlpwi"), layer["down"])


def _routes(model: Model, layer: Tree, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    weights, chosen = jax.lax.top_k((x @ layer["router"].astype(BF16)).astype(F32), model.chosen)
    return jax.nn.softmax(weights, -1).astype(BF16), chosen


def _unlimited_experts(model: Model, layer: Tree, x: jax.Array) -> jax.Array:
    """Every row goes to its experts: rows are sorted by expert."""
    weights, chosen = _routes(model, layer, x)
    gmm = partial(megablox.gmm, preferred_element_type=BF16, tiling=(512, 1024, 1024))

    def local(
        x: jax.Array, weights: jax.Array, chosen: jax.Array, *kernels: jax.Array
    ) -> jax.Array:
        rows = x.reshape(-1, model.width)
        flat = chosen.reshape(-1)
        order = jnp.argsort(flat)
        sizes = jnp.bincount(flat, length=model.experts).astype(jnp.int32)
        gate, up, down = kernels
        given = rows[order // model.chosen]
        inner = jax.nn.silu(gmm(given, gate, sizes)) * gmm(given, up, sizes)
        results = gmm(inner, down, sizes)[jnp.argsort(order)]
        results = results.reshape(-1, model.chosen, model.width)
        return jnp.einsum("tcd,tc->td", results, weights.reshape(-1, model.chosen)).reshape(x.shape)

    kernels = [layer[name].astype(BF16) for name in ("gate", "up", "down")]
    rows = _rows(model)
    run = jax.shard_map(
        local, in_specs=(rows, rows, rows, P(), P(), P()), out_specs=rows, check_vma=False
    )
    return run(x, weights, chosen, *kernels)


def _limited_experts(model: Model, layer: Tree, x: jax.Array) -> jax.Array:
    """Each expert takes as many rows as it has places for; products with one-hot masks."""
    weights, chosen = _routes(model, layer, x)
    places = int(model.length * model.chosen / model.experts * model.capacity)
    hot = jax.nn.one_hot(chosen, model.experts, dtype=jnp.int32)  # B S chosen E
    flat = hot.reshape(x.shape[0], -1, model.experts)
    place = (jnp.cumsum(flat, 1) * flat).reshape(hot.shape) - 1
    place = jax.nn.one_hot(place.max(-1), places, dtype=BF16)
    sent = jnp.einsum("bste,bstc->bsec", hot.astype(BF16), place)
    back = jnp.einsum("bste,bstc,bst->bsec", hot.astype(BF16), place, weights)
    given = jnp.einsum("bsd,bsec->ebcd", x, sent)
    kernels = {name: layer[name].astype(BF16) for name in ("gate", "up", "down")}
    gate = jnp.einsum("ebcd,edf->ebcf", given, kernels["gate"])
    inner = jax.nn.silu(gate) * jnp.einsum("ebcd,edf->ebcf", given, kernels["up"])
    results = jnp.einsum("ebcf,efd->ebcd", inner, kernels["down"])
    return jnp.einsum("ebcd,bsec->bsd", results, back)


def _layer(model: Model, window: int, x: jax.Array, layer: Tree) -> jax.Array:
    x = checkpoint_name(x, "decoder_layer_input")
    rows = _rows(model)
    normed = _norm(x, layer["norm1"])
    positions = jnp.arange(model.length, dtype=F32)

    def by_head(y: jax.Array) -> jax.Array:
        return y.reshape(*y.shape[:2], -1, model.head)

    q = _rotated(by_head(_product(model, normed, layer["query"])), positions)
    k = _rotated(by_head(_product(model, normed, layer["key"])), positions)
    v = by_head(_product(model, normed, layer["value"]))
    q, k, v = (
        checkpoint_name(item, name)
        for item, name in ((q, "query_proj"), (k, "key_proj"), (v, "value_proj"))
    )
    mixed = attention(model, q, k, v, window).reshape(*x.shape[:2], -1)
    x += checkpoint_name(_product(model, mixed, layer["out"]), "out_proj")
    normed = _norm(x, layer["norm2"])
    inner = _within
    if model.experts:
        inner = _limited_experts if model.capacity else _unlimited_experts
    x += checkpoint_name(inner(model, layer, normed), "mlpwo")
    return jax.lax.with_sharding_constraint(x, rows)


def loss(model: Model, params: Tree, tokens: jax.Array) -> jax.Array:
    """The mean loss of a batch of tokens [B S]."""
    rows = _rows(model)
    # A product with one-hot rows: `use_iota_embed`.
    hot = jax.nn.one_hot(tokens, model.vocabulary, dtype=BF16)
    x = hot @ params["embedding"].astype(BF16)
    x = jax.lax.with_sharding_constraint(x, rows)
    policy = jax.checkpoint_policies.nothing_saveable
    if model.saved or model.offloaded:
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=list(model.saved),
            names_which_can_be_offloaded=list(model.offloaded),
            offload_src="device",
            offload_dst="pinned_host",
        )
    period = len(model.windows)

    def body(x: jax.Array, layers: Tree) -> tuple[jax.Array, None]:
        for at, window in enumerate(model.windows):
            layer = layers if period == 1 else jax.tree.map(itemgetter(at), layers)
            x = _layer(model, window, x, layer)
        return x, None

    layers = params["layers"]
    if period > 1:
        layers = jax.tree.map(lambda w: w.reshape(-1, period, *w.shape[1:]), layers)
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy, prevent_cse=False), x, layers)
    x = _norm(x, params["norm"])
    head = params["head"].astype(BF16)

    def of_chunk(x: jax.Array, tokens: jax.Array) -> jax.Array:
        logits = (x @ head).astype(F32)
        hot = jax.nn.one_hot(tokens, model.vocabulary, dtype=F32)
        return jnp.sum(jax.nn.logsumexp(logits, -1) - jnp.sum(logits * hot, -1))

    if model.chunks == 1:
        total = of_chunk(x, tokens)
    else:

        def add(total: jax.Array, chunk: Tree) -> tuple[jax.Array, None]:
            return total + jax.checkpoint(of_chunk)(*chunk), None

        def cut(y: jax.Array) -> jax.Array:
            return jnp.moveaxis(y.reshape(y.shape[0], model.chunks, -1, *y.shape[2:]), 1, 0)

        total, _ = jax.lax.scan(add, jnp.zeros((), F32), (cut(x), cut(tokens)))
    return total / tokens.size


def step(model: Model, state: Tree, tokens: jax.Array) -> tuple[Tree, jax.Array]:
    """One step of AdamW, with gradients clipped to a norm of 1."""
    value, gradients = jax.value_and_grad(partial(loss, model))(state["params"], tokens)
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(F32))) for g in jax.tree.leaves(gradients)))
    scale = 1 / jnp.maximum(norm, 1.0)

    def update(w: jax.Array, m: jax.Array, v: jax.Array, g: jax.Array) -> Tree:
        g = g.astype(F32) * scale
        first = 0.9 * m.astype(F32) + 0.1 * g
        second = 0.95 * v.astype(F32) + 0.05 * g * g
        wide = w.astype(F32)
        change = first / (jnp.sqrt(second) + 1e-8) + 0.1 * wide
        return (wide - 1e-3 * change).astype(w.dtype), first.astype(m.dtype), second.astype(v.dtype)

    trees = [state[name] for name in ("params", "first", "second")]
    updated = jax.tree.map(update, *trees, gradients)
    parts = jax.tree.transpose(jax.tree.structure(gradients), None, updated)
    return dict(zip(("params", "first", "second"), parts, strict=True)), value


def workload_of(name: str, model: Model) -> Workload:
    """The step over the devices of a slice."""
    shapes = parameter_shapes(model)
    specs = jax.tree.map(lambda item: item[1], shapes, is_leaf=_is_shape)
    kinds = {"params": model.weight, "first": model.moment, "second": model.weight}

    def arrays(kind: Any) -> Tree:
        return jax.tree.map(
            lambda item: jax.ShapeDtypeStruct(item[0], kind), shapes, is_leaf=_is_shape
        )

    state = {key: arrays(kind) for key, kind in kinds.items()}
    parts = model.devices // model.context
    rows = model.batch * parts
    tokens = jax.ShapeDtypeStruct((rows, model.length), jnp.int32)
    placed = dict.fromkeys(kinds, specs)
    sizes = {"data": model.data, "fsdp": parts // model.data, "context": model.context}
    mesh = {axis: size for axis, size in sizes.items() if size > 1}
    return Workload(
        name=name,
        fn=partial(step, model),
        args=(state, tokens),
        donate_argnums=0,
        mesh=mesh,
        in_specs=(placed, _rows(model)),
        out_specs=(placed, P()),
        options=dict(model.options),
    )
