"""A nineteenth zoo: kernels of Pallas through Triton, networks that learn or answer, numerics.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

import math
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax
from eleventh import learned, started
from flax import linen as nn
from fourth import program, weight
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from ninth import carried
from seventeenth import (
    adamw,
    adamw_start,
    cross_entropy,
    half,
    heads,
    layer_norm,
    linen_weights,
    master,
    rms,
    rope,
    swiglu_weights,
    times,
    zeros,
)
from tenth import applied

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from jax.experimental.pallas.ops.gpu import attention as flash_attention
    from jax.experimental.pallas.ops.gpu import decode_attention
    from jax.experimental.pallas.ops.gpu import layer_norm as row_norm
    from jax.experimental.pallas.ops.gpu import paged_attention as page_attention
    from jax.experimental.pallas.ops.gpu import rms_norm as row_rms
    from jax.experimental.pallas.ops.gpu import softmax as row_softmax

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
I8, U32, F8 = jnp.int8, jnp.uint32, jnp.float8_e4m3fn
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def nineteenth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(flashes, decodings, tilings, losses, updates, roundings, drawings, recurrences),
        *(lookups, attractions),
        *(dictionaries, proteins, separation, centres, boards, policies, routed),
        *(maxwell, rates, spectra, pulses, radar, forests, programming),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def kernel(fn: Any, shape: Any, warps: int, stages: int, **kw: Any) -> Any:
    """A call of a kernel through Triton."""
    params = plgpu.CompilerParams(num_warps=warps, num_stages=stages)
    return pl.pallas_call(fn, out_shape=shape, compiler_params=params, **kw)


def like(x: Any, dtype: Any = None) -> Any:
    """An output shaped as an array."""
    return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)


# ------------------------------------------------------------------------------ Pallas: attention


def rotated(x: Any, cos: Any, sin: Any, rows: int = 16) -> Any:
    """RoPE of [b, s, h, size] by a kernel."""
    b, s, h, size = x.shape
    n = size // 2

    def body(x: Any, cos: Any, sin: Any, out: Any) -> None:
        one, two = x[:, :, :n].astype(F32), x[:, :, n:].astype(F32)
        c, z = cos[...][:, None], sin[...][:, None]
        out[:, :, :n] = (one * c - two * z).astype(out.dtype)
        out[:, :, n:] = (two * c + one * z).astype(out.dtype)

    row = pl.BlockSpec((None, rows, h, size), lambda i, j: (i, j, 0, 0))
    angle = pl.BlockSpec((rows, n), lambda i, j: (j, 0))
    call = kernel(
        body, like(x), 4, 2, grid=(b, s // rows), in_specs=[row, angle, angle], out_specs=row
    )
    return call(x, cos, sin)


def flashes() -> Zoo:
    """A prompt of Llama, packed patches in float16, and training of GPT-2, by flash attention."""
    d, size = 1024, 128

    def prompt(params: Any, tokens: Any) -> Any:
        """Four layers; norms, rotations and attention are kernels."""
        s = tokens.shape[1]
        angle = jnp.arange(s)[:, None] * 5e5 ** (-jnp.arange(0, size, 2) / size)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        even = jnp.zeros(d)
        blocks = flash_attention.BlockSizes(block_q=128, block_k=64)

        def layer(x: Any, p: Any) -> tuple[Any, Any]:
            y = row_rms.rms_norm(x, p["scale"][0], even)
            q, k, v = jnp.split(heads(y @ p["qkv"], size), 3, 2)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            y = flash_attention.mha(
                *(q, k, v, None), sm_scale=size**-0.5, causal=True, block_sizes=blocks
            )
            x = x + y.reshape(x.shape) @ p["out"]
            y = row_rms.rms_norm(x, p["scale"][1], even)
            y = (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
            return x + y, (k, v)

        x, caches = lax.scan(layer, params["table"][tokens], params["layers"])
        return rms(x[:, -1], params["last"]) @ params["head"], caches

    layer = {"qkv": weight(d, 3 * d), "out": weight(d, d), "scale": Arg((2, d))}
    layer |= swiglu_weights(d, 2816, weight)
    params = {"layers": times(4, layer), "table": Arg((32000, d), BF16), "last": Arg((d,))}
    params |= {"head": weight(d, 32000)}
    yield "llama_prompt", program(prompt, params, Arg((4, 2048), I32, below=32000))

    c = 768

    def packed(params: Any, patches: Any, breaks: Any) -> Any:
        """Pictures of several sizes in rows of 1,024 patches, which do not see each other."""
        own = jnp.cumsum(breaks == 0, 1, dtype=I32)
        blocks = flash_attention.BlockSizes(block_q=64, block_k=64)

        def layer(x: Any, p: Any) -> tuple[Any, None]:
            y = layer_norm(x, p["scale"][0], p["shift"][0])
            q, k, v = jnp.split(heads(y @ p["qkv"], 64), 3, 2)
            y = flash_attention.mha(
                *(q, k, v, own), sm_scale=0.125, block_sizes=blocks, num_warps=4, num_stages=3
            )
            x = x + y.reshape(x.shape) @ p["out"]
            y = layer_norm(x, p["scale"][1], p["shift"][1])
            return x + jax.nn.gelu(y @ p["up"]) @ p["down"], None

        x = patches @ params["in"] + params["places"]
        x, _ = lax.scan(layer, x, params["layers"])
        sums = jax.vmap(lambda x, i: jax.ops.segment_sum(x.astype(F32), i, 32))(x, own)
        return layer_norm(sums).astype(F16) @ params["head"]

    short = partial(weight, dtype=F16)
    layer = {"qkv": short(c, 3 * c), "out": short(c, c), "up": short(c, 4 * c)}
    layer |= {"down": short(4 * c, c), "scale": Arg((2, c)), "shift": Arg((2, c), scale=0.02)}
    params = {"layers": times(6, layer), "in": short(588, c), "head": short(c, 1000)}
    params |= {"places": Arg((1024, c), F16, 0.02)}
    given = (Arg((6, 1024, 588), F16), Arg((6, 1024), I32, below=120))
    yield "packed_patches", program(packed, params, *given)

    words = 50304

    def gpt2(state: Any, tokens: Any) -> Any:
        """Forward and backward kernels of attention and of LayerNorm."""

        def normed(x: Any, p: Any, i: int) -> Any:
            return row_norm.layer_norm(x, p["scale"][i], p["shift"][i])

        def layer(x: Any, p: Any) -> tuple[Any, None]:
            y = normed(x, p, 0)
            q, k, v = jnp.split(heads(y @ p["qkv"] + p["b_qkv"], 64), 3, 2)
            y = flash_attention.mha(q, k, v, None, sm_scale=0.125, causal=True)
            x = x + y.reshape(x.shape) @ p["out"]
            y = jax.nn.gelu(normed(x, p, 1) @ p["up"] + p["b_up"])
            return x + y @ p["down"], None

        def loss(params: Any) -> Any:
            p = half(params)
            x = p["table"][tokens[:, :-1]] + p["places"]
            x, _ = lax.scan(layer, x, p["layers"])
            return cross_entropy(layer_norm(x, p["last"]) @ p["table"].T, tokens[:, 1:]).mean()

        return adamw(state, loss)

    layer = {"qkv": master(c, 3 * c), "b_qkv": Arg((3 * c,), scale=0.02), "out": master(c, c)}
    layer |= {"up": master(c, 4 * c), "b_up": Arg((4 * c,), scale=0.02), "down": master(4 * c, c)}
    layer |= {"scale": Arg((2, c)), "shift": Arg((2, c), scale=0.02)}
    params = {"layers": times(4, layer), "table": Arg((words, c), scale=0.02), "last": Arg((c,))}
    params |= {"places": Arg((1024, c), scale=0.02)}
    tokens = Arg((4, 1025), I32, below=words)
    yield "gpt2_steps", carried(gpt2, adamw_start(params), tokens)


def decodings() -> Zoo:
    """A token of sixteen replies with shared keys, and one of 32 with pages in float16."""
    rows, most, h, g, size, d = 16, 4096, 16, 4, 128, 2048

    def shared(caches: Any, params: Any, tokens: Any, lengths: Any) -> Any:
        x = params["table"][tokens][:, None]
        lengths = 1000 + lengths
        write = jax.vmap(lambda c, new, i: lax.dynamic_update_slice(c, new, (i, 0, 0)))
        kept = []
        for p, (k_old, v_old) in zip(params["layers"], caches, strict=True):
            y = heads(rms(x, p["scale"][0]) @ p["qkv"], size)
            q, k, v = jnp.split(y, [h, h + g], 2)
            q, k = rope(q, lengths[:, None]), rope(k, lengths[:, None])
            k, v = write(k_old, k, lengths), write(v_old, v, lengths)
            kept.append((k, v))
            y = decode_attention.gqa(q[:, 0], k, v, kv_seq_len=lengths + 1, block_k=128, k_splits=8)
            x = x + y.reshape(rows, 1, h * size).astype(BF16) @ p["out"]
            y = rms(x, p["scale"][1])
            x = x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
        logits = (rms(x[:, 0], params["last"]) @ params["head"]).astype(F32)
        return kept, logits.argmax(-1)

    layer = {"qkv": weight(d, (h + 2 * g) * size), "out": weight(h * size, d)}
    layer |= swiglu_weights(d, 5632, weight) | {"scale": Arg((2, d))}
    params = {"layers": [layer] * 4, "table": Arg((64000, d), BF16), "last": Arg((d,))}
    params |= {"head": weight(d, 64000)}
    caches = [(Arg((rows, most, g, size), BF16),) * 2] * 4
    given = (Arg((rows,), I32, below=64000), Arg((rows,), I32, below=3000))
    yield "shared_keys", carried(shared, caches, params, *given)

    n, pages, page, each, q_heads = 32, 2048, 16, 64, 32

    def paged(caches: Any, params: Any, tokens: Any, tables: Any, lengths: Any) -> Any:
        """A new key and value go to the last page of each reply."""
        lengths = 64 + lengths
        here = jnp.take_along_axis(tables, (lengths // page)[:, None], 1)[:, 0]
        place = lengths % page
        x = params["table"][tokens]
        kept = []
        for p, (k_old, v_old) in zip(params["layers"], caches, strict=True):
            y = heads(rms(x, p["scale"][0]) @ p["qkv"], 64)
            q, k, v = jnp.split(y, [q_heads, q_heads + 8], 1)
            q, k = rope(q, lengths), rope(k, lengths)
            k = k_old.at[:, here, place].set(k.swapaxes(0, 1))
            v = v_old.at[:, here, place].set(v.swapaxes(0, 1))
            kept.append((k, v))
            y = page_attention.paged_attention(
                *(q * 0.125, k, v, tables, lengths + 1),
                k_splits=4,
                pages_per_compute_block=8,
                num_warps=4,
            )
            x = x + y.reshape(n, -1) @ p["out"]
            y = rms(x, p["scale"][1])
            x = x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
        return kept, (rms(x, params["last"]) @ params["head"]).argmax(-1)

    short = partial(weight, dtype=F16)
    layer = {"qkv": short(d, (q_heads + 16) * 64), "out": short(q_heads * 64, d)}
    layer |= swiglu_weights(d, 8192, short) | {"scale": Arg((2, d))}
    params = {"layers": [layer] * 3, "table": Arg((32000, d), F16), "last": Arg((d,))}
    params |= {"head": short(d, 32000)}
    caches = [(Arg((8, pages, page, 64), F16),) * 2] * 3
    tables = Arg((n, each), I32, below=pages)
    given = (Arg((n,), I32, below=32000), tables, Arg((n,), I32, below=900))
    yield "pages_f16", carried(paged, caches, params, *given)


# ------------------------------------------------------------------------------- Pallas: products


def tiled(x: Any, w: Any, shift: Any, bm: int, bn: int, bk: int, bend: bool, **how: int) -> Any:
    """A product with a bias and perhaps a GELU, whose tiles go in groups of eight rows."""
    (m, k), n, group = x.shape, w.shape[1], 8
    tall, wide = m // bm, n // bn

    def body(x: Any, w: Any, shift: Any, out: Any) -> None:
        here = pl.program_id(0)
        first = here // (group * wide) * group
        many = jnp.minimum(tall - first, group)
        inside = here % (group * wide)
        i, j = first + inside % many, inside // many
        rows, columns = pl.ds(i * bm, bm), pl.ds(j * bn, bn)

        def part(t: Any, total: Any) -> Any:
            depth = pl.ds(t * bk, bk)
            return total + plgpu.dot(x[rows, depth], w[depth, columns])

        y = lax.fori_loop(0, k // bk, part, jnp.zeros((bm, bn), F32))
        y = y + shift[columns].astype(F32)
        if bend:
            y = 0.5 * y * (1 + jnp.tanh(0.79788456 * (y + 0.044715 * y * y * y)))
        out[rows, columns] = y.astype(out.dtype)

    shape = jax.ShapeDtypeStruct((m, n), x.dtype)
    return kernel(body, shape, grid=(tall * wide,), **how)(x, w, shift)


def narrow(x: Any, w: Any, scale: Any, bn: int, parts: int) -> Any:
    """A product with weights of int8 that have a scale for every 128 rows, in parts of depth."""
    (m, k), n, bk = x.shape, w.shape[1], 128
    deep = k // parts

    def body(x: Any, w: Any, scale: Any, out: Any) -> None:
        def part(t: Any, total: Any) -> Any:
            depth = pl.ds(t * bk, bk)
            wide = w[depth, :].astype(BF16)
            return total + plgpu.dot(x[:, depth], wide) * scale[t, :].astype(F32)[None]

        out[...] = lax.fori_loop(0, deep // bk, part, jnp.zeros((m, bn), F32))

    call = kernel(
        *(body, jax.ShapeDtypeStruct((parts, m, n), F32), 4, 4),
        grid=(n // bn, parts),
        in_specs=[
            pl.BlockSpec((m, deep), lambda i, j: (0, j)),
            pl.BlockSpec((deep, bn), lambda i, j: (j, i)),
            pl.BlockSpec((deep // bk, bn), lambda i, j: (j, i)),
        ],
        out_specs=pl.BlockSpec((None, m, bn), lambda i, j: (j, 0, i)),
    )
    return call(x, w, scale).sum(0).astype(x.dtype)


def grouped(x: Any, w: Any, rows: Any, owners: Any, block: int, bn: int, bk: int) -> Any:
    """Rows times the weights of their block's expert; rows beyond the last one are empty."""
    (count, k), n = x.shape, w.shape[2]

    def body(x: Any, w: Any, rows: Any, owners: Any, out: Any) -> None:
        i = pl.program_id(0)
        expert = owners[i]
        index = rows[...]
        real = (index < count)[:, None]

        def part(t: Any, total: Any) -> Any:
            depth = pl.ds(t * bk, bk)
            left = plgpu.load(x.at[index, depth], mask=real, other=0.0)
            return total + plgpu.dot(left, w[expert, depth, :])

        y = lax.fori_loop(0, k // bk, part, jnp.zeros((block, bn), F32))
        out[...] = y.astype(out.dtype)

    blocks = owners.shape[0]
    call = kernel(
        *(body, jax.ShapeDtypeStruct((blocks * block, n), x.dtype), 4, 3),
        grid=(blocks, n // bn),
        in_specs=[
            pl.BlockSpec(x.shape, lambda i, j: (0, 0)),
            pl.BlockSpec((w.shape[0], k, bn), lambda i, j: (0, 0, j)),
            pl.BlockSpec((block,), lambda i, j: (i,)),
            pl.BlockSpec((blocks,), lambda i, j: (0,)),
        ],
        out_specs=pl.BlockSpec((block, bn), lambda i, j: (i, j)),
    )
    return call(x, w, rows, owners)


def tilings() -> Zoo:
    """Perceptrons by tiles: with a bias, from int8, of sorted experts, and with a gate."""

    def biased(params: Any, x: Any) -> Any:
        for up, b_up, down, b_down in params:
            y = tiled(x, up, b_up, 128, 256, 64, True, warps=8, stages=3)
            x = x + tiled(y, down, b_down, 128, 128, 32, False, warps=4, stages=4)
        return x

    short = partial(weight, dtype=F16)
    layer = (short(1536, 6144), Arg((6144,), F16, 0.1), short(6144, 1536), Arg((1536,), F16, 0.1))
    yield "biased_gelu", program(biased, [layer] * 3, Arg((4096, 1536), F16))

    def int8(params: Any, x: Any) -> Any:
        """Sixty-four tokens by three perceptrons of Llama 8B."""

        def layer(x: Any, p: Any) -> tuple[Any, None]:
            y = rms(x, p["norm"])
            y = narrow(y, p["in"], p["in_scale"], 64, 1)
            gate, up = jnp.split(y, 2, -1)
            y = jax.nn.silu(gate) * up
            return x + narrow(y, p["out"], p["out_scale"], 64, 4), None

        return lax.scan(layer, x, params)[0]

    d, wide = 4096, 14336
    layer = {"in": Arg((d, 2 * wide), I8, below=127), "out": Arg((wide, d), I8, below=127)}
    layer |= {"in_scale": Arg((d // 128, 2 * wide), BF16, 2e-4), "norm": Arg((d,))}
    layer |= {"out_scale": Arg((wide // 128, d), BF16, 1e-4)}
    yield "int8_in_kernel", program(int8, times(3, layer), Arg((64, d), BF16))

    count, c, high, experts, block = 5000, 1024, 2048, 16, 64
    blocks = -(-2 * count // block) + experts

    def moe(params: Any, x: Any) -> Any:
        """Two of sixteen experts; rows are sorted and every expert starts a block."""
        share, chosen = lax.top_k(jax.nn.softmax((x @ params["router"]).astype(F32)), 2)
        share = share / share.sum(-1, keepdims=True)
        owner = chosen.reshape(-1)
        order = jnp.argsort(owner)
        sizes = jnp.bincount(owner, length=experts)
        padded = (sizes + block - 1) // block * block
        start, ends = jnp.cumsum(sizes) - sizes, jnp.cumsum(padded)
        place = jnp.arange(2 * count) - start[owner[order]] + (ends - padded)[owner[order]]
        rows = jnp.full((blocks * block,), count, I32).at[place].set((order // 2).astype(I32))
        owners = jnp.searchsorted(ends, jnp.arange(blocks) * block, side="right")
        owners = jnp.minimum(owners, experts - 1).astype(I32)
        y = grouped(x, params["in"], rows, owners, block, 128, 32)
        gate, up = jnp.split(y, 2, -1)
        same = jnp.arange(blocks * block, dtype=I32)
        y = grouped(jax.nn.silu(gate) * up, params["out"], same, owners, block, 128, 64)
        back = jnp.zeros(2 * count, I32).at[order].set(place.astype(I32))
        return x + jnp.einsum("tkd,tk->td", y[back].reshape(count, 2, c), share.astype(x.dtype))

    params = {"router": weight(c, experts), "in": weight(experts, c, 2 * high)}
    params |= {"out": weight(experts, high, c)}
    yield "sorted_experts", program(moe, params, Arg((count, c), BF16))

    bm, bn, bk = 128, 64, 32

    @jax.custom_vjp
    def gated(x: Any, gate: Any, up: Any) -> Any:
        def body(x: Any, gate: Any, up: Any, out: Any) -> None:
            def part(t: Any, sums: Any) -> Any:
                depth = pl.ds(t * bk, bk)
                left, pair = x[:, depth], (gate[depth, :], up[depth, :])
                return tuple(a + plgpu.dot(left, w) for a, w in zip(sums, pair, strict=True))

            start = (jnp.zeros((bm, bn), F32),) * 2
            one, two = lax.fori_loop(0, x.shape[1] // bk, part, start)
            out[...] = (one * jax.nn.sigmoid(one) * two).astype(out.dtype)

        (m, k), n = x.shape, gate.shape[1]
        column = pl.BlockSpec((k, bn), lambda i, j: (0, j))
        call = kernel(
            *(body, jax.ShapeDtypeStruct((m, n), x.dtype), 8, 3),
            grid=(m // bm, n // bn),
            in_specs=[pl.BlockSpec((bm, k), lambda i, j: (i, 0)), column, column],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        )
        return call(x, gate, up)

    def forward(x: Any, gate: Any, up: Any) -> Any:
        return gated(x, gate, up), (x, gate, up)

    def backward(kept: Any, slope: Any) -> Any:
        return jax.vjp(lambda x, gate, up: jax.nn.silu(x @ gate) * (x @ up), *kept)[1](slope)

    gated.defvjp(forward, backward)

    def train(state: Any, tokens: Any) -> Any:
        """Two layers of Llama: RMSNorm by kernels both ways, SwiGLU by one forward."""

        def loss(params: Any) -> Any:
            p = half(params)
            x = p["table"][tokens[:, :-1]]
            b, s, d = x.shape
            even = jnp.zeros(d, BF16)
            for q in p["layers"]:
                y = row_rms.rms_norm(x, q["scale"][0], even)
                a, k, v = jnp.split(heads(y @ q["qkv"], 64), 3, 2)
                a, k = rope(a, jnp.arange(s)), rope(k, jnp.arange(s))
                y = jax.nn.dot_product_attention(a, k, v, is_causal=True)
                x = x + y.reshape(b, s, d) @ q["out"]
                y = row_rms.rms_norm(x, q["scale"][1], even).reshape(b * s, d)
                x = x + (gated(y, q["gate"], q["up"]) @ q["down"]).reshape(b, s, d)
            return cross_entropy(rms(x, p["last"]) @ p["head"], tokens[:, 1:]).mean()

        return adamw(state, loss)

    layer = {"qkv": master(c, 3 * c), "out": master(c, c), "scale": Arg((2, c))}
    layer |= swiglu_weights(c, 2816)
    params = {"layers": [layer] * 2, "table": Arg((16000, c), scale=0.02), "last": Arg((c,))}
    params |= {"head": master(c, 16000)}
    yield "gated_training", carried(train, adamw_start(params), Arg((8, 513), I32, below=16000))


# --------------------------------------------------------------------- Pallas: losses and updates


@jax.custom_vjp
def vocabulary_loss(logits: Any, goals: Any) -> Any:
    """The mean loss over a vocabulary, whose kernel writes the slopes over the logits."""
    return _vocabulary(logits, goals)[1].mean()


def _vocabulary(logits: Any, goals: Any, size: int = 8192) -> Any:
    n, words = logits.shape

    def body(x: Any, goals: Any, slope: Any, loss: Any) -> None:
        goal = goals[0]
        columns = jnp.arange(size)

        def read(i: Any, carry: Any) -> Any:
            most, total, right = carry
            index = i * size + columns
            y = plgpu.load(x.at[index], mask=index < words, other=-float("inf")).astype(F32)
            new = jnp.maximum(most, y.max())
            total = total * jnp.exp(most - new) + jnp.exp(y - new).sum()
            return new, total, right + jnp.where(index == goal, y, 0.0).sum()

        parts = pl.cdiv(words, size)
        start = (jnp.float32(-1e30), jnp.float32(0), jnp.float32(0))
        most, total, right = lax.fori_loop(0, parts, read, start)

        def write(i: Any, _: Any) -> None:
            index = i * size + columns
            y = plgpu.load(x.at[index], mask=index < words, other=-float("inf")).astype(F32)
            y = jnp.exp(y - most) / total - jnp.where(index == goal, 1.0, 0.0)
            plgpu.store(slope.at[index], (y / n).astype(slope.dtype), mask=index < words)

        lax.fori_loop(0, parts, write, None)
        loss[0] = jnp.log(total) + most - right

    row, one = pl.BlockSpec((None, words), lambda i: (i, 0)), pl.BlockSpec((1,), lambda i: (i,))
    call = kernel(
        *(body, (like(logits), jax.ShapeDtypeStruct((n,), F32)), 16, 2),
        grid=(n,),
        in_specs=[row, one],
        out_specs=[row, one],
        input_output_aliases={0: 0},
    )
    return call(logits, goals)


def _vocabulary_forward(logits: Any, goals: Any) -> Any:
    slopes, loss = _vocabulary(logits, goals)
    return loss.mean(), slopes


def _vocabulary_backward(slopes: Any, scale: Any) -> Any:
    return slopes * scale.astype(slopes.dtype), None


vocabulary_loss.defvjp(_vocabulary_forward, _vocabulary_backward)


def losses() -> Zoo:
    """Training of a head of 128,256 words on what a frozen body said of 3,000 tokens."""
    words, d = 128256, 1024
    rule = optax.adamw(1e-4, mu_dtype=BF16)

    def step(state: Any, x: Any, goals: Any) -> Any:
        def loss(p: Any) -> Any:
            y = rms(x @ p["in"].astype(BF16), p["norm"])
            return vocabulary_loss(y @ p["head"].astype(BF16), goals)

        return learned(rule, loss, state)

    params = {"in": master(d, d), "norm": Arg((d,)), "head": master(d, words)}
    given = (Arg((3000, d), BF16), Arg((3000,), I32, below=words))
    yield "vocabulary", carried(step, started(rule, params), *given)


def updates() -> Zoo:
    """Training of nine layers in bfloat16, whose weights move by a kernel of AdamW in place."""
    block = 2048

    def moved(w: Any, m: Any, v: Any, g: Any, rates: Any) -> Any:
        n, shape = w.size, w.shape

        def body(w: Any, m: Any, v: Any, g: Any, rates: Any, *out: Any) -> None:
            index = pl.program_id(0) * block + jnp.arange(block)
            here = index < n
            w, m, v, g = (plgpu.load(a.at[index], mask=here, other=0.0) for a in (w, m, v, g))
            g = g * rates[0]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            way = m * rates[1] / (jnp.sqrt(v * rates[2]) + 1e-8)
            w = w - 3e-4 * (way + 0.1 * w)
            for ref, x in zip(out, (w, m, v), strict=True):
                plgpu.store(ref.at[index], x, mask=here)

        flat = [a.reshape(-1) for a in (w, m, v, g)]
        call = kernel(
            *(body, [like(a) for a in flat[:3]], 4, 1),
            grid=(pl.cdiv(n, block),),
            input_output_aliases={0: 0, 1: 1, 2: 2},
        )
        return [a.reshape(shape) for a in call(*flat, rates)]

    def step(state: Any, x: Any, kinds: Any) -> Any:
        params, first, second, count = state

        def loss(params: Any) -> Any:
            y = x
            for w, b in params[:-1]:
                new = jax.nn.relu(y @ w.astype(BF16) + b.astype(BF16))
                y = new + y if new.shape == y.shape else new
            w, b = params[-1]
            return cross_entropy(y @ w.astype(BF16) + b.astype(BF16), kinds).mean()

        value, grads = jax.value_and_grad(loss)(params)
        count = count + 1
        t = count.astype(F32)
        clip = jnp.minimum(1.0, 1 / (optax.global_norm(grads) + 1e-6))
        rates = jnp.stack([clip, 1 / (1 - 0.9**t), 1 / (1 - 0.999**t), t])
        leaves, tree = jax.tree.flatten(params)
        groups = zip(leaves, *map(jax.tree.leaves, (first, second, grads)), strict=True)
        new = zip(*(moved(*group, rates) for group in groups), strict=True)
        return (*(tree.unflatten(a) for a in new), count), value

    wide = [1500, *[2000] * 8, 1003]
    pairs = pairwise(wide)
    params = [(master(a, b), Arg((b,), scale=0.02)) for a, b in pairs]
    state = (params, zeros(params), zeros(params), Arg((), I32, below=1))
    given = (Arg((4096, 1500), BF16), Arg((4096,), I32, below=1003))
    yield "adamw_in_place", carried(step, state, *given)


def roundings() -> Zoo:
    """Perceptrons whose rows a kernel rounds to float8 before each product."""

    def rounded(x: Any) -> Any:
        m, n = x.shape

        def body(x: Any, out: Any, scale: Any) -> None:
            y = x[...].astype(F32)
            most = jnp.maximum(jnp.abs(y).max(1), 1e-6) / 448
            out[...] = (y / most[:, None]).astype(F8)
            scale[...] = most

        row = pl.BlockSpec((2, n), lambda i: (i, 0))
        call = kernel(
            *(body, (like(x, F8), jax.ShapeDtypeStruct((m,), F32)), 8, 1),
            grid=(m // 2,),
            in_specs=[row],
            out_specs=(row, pl.BlockSpec((2,), lambda i: (i,))),
        )
        return call(x)

    def product(x: Any, w: Any, scale: Any) -> Any:
        small, rows = rounded(x)
        y = jnp.dot(small, w, preferred_element_type=F32)
        return (y * rows[:, None] * scale).astype(BF16)

    def answer(params: Any, x: Any) -> Any:
        def layer(x: Any, p: Any) -> tuple[Any, None]:
            y = product(rms(x, p["norm"]), p["up"], p["up_scale"])
            y = jax.nn.gelu(y)
            return x + product(y, p["down"], p["down_scale"]), None

        return lax.scan(layer, x, params)[0]

    d, wide = 2048, 8192
    layer = {"up": Arg((d, wide), F8), "down": Arg((wide, d), F8), "norm": Arg((d,))}
    layer |= {"up_scale": Arg((wide,), scale=0.02), "down_scale": Arg((d,), scale=0.01)}
    yield "float8_rows", program(answer, times(4, layer), Arg((6144, d), BF16))


def drawings() -> Zoo:
    """A word for each of 192 rows: counts of past words, a softmax, and sums along the best."""
    rows, words, past, best = 192, 50257, 1024, 512

    def counted(tokens: Any) -> Any:
        def body(tokens: Any, _: Any, counts: Any) -> None:
            plgpu.atomic_add(counts, (tokens[...],), jnp.ones((past,), I32))

        row = pl.BlockSpec((None, words), lambda i: (i, 0))
        empty = jnp.zeros((rows, words), I32)
        call = kernel(
            *(body, like(empty), 4, 1),
            grid=(rows,),
            in_specs=[pl.BlockSpec((None, past), lambda i: (i, 0)), row],
            out_specs=row,
            input_output_aliases={1: 0},
        )
        return call(tokens, empty)

    def chosen(likely: Any, chance: Any, most: Any) -> Any:
        """Where the sums of each row pass a chance within its nucleus."""

        def body(likely: Any, chance: Any, most: Any, out: Any) -> None:
            y = likely[...]
            sums = jnp.cumsum(y)
            kept = jnp.where(sums - y < most[0], y, 0.0)
            sums = jnp.cumsum(kept)
            out[0] = jnp.sum((sums < chance[0] * jnp.sum(kept)).astype(I32))

        one = pl.BlockSpec((1,), lambda i: (i,))
        call = kernel(
            *(body, jax.ShapeDtypeStruct((rows,), I32), 2, 1),
            grid=(rows,),
            in_specs=[pl.BlockSpec((None, best), lambda i: (i, 0)), one, one],
            out_specs=one,
        )
        return call(likely, chance, most)

    def draw(x: Any, head: Any, tokens: Any, heat: Any, most: Any, key: Any) -> Any:
        logits = (x @ head).astype(F32)
        count = counted(tokens)
        logits = logits - 0.5 * (count > 0) - 0.1 * count
        logits = logits / (0.5 + jnp.abs(heat))[:, None]
        likely, index = lax.top_k(row_softmax.softmax(logits, num_warps=16), best)
        place = chosen(likely, jax.random.uniform(key, (rows,)), jax.nn.sigmoid(2 + most))
        place = jnp.minimum(place, best - 1)[:, None]
        return jnp.take_along_axis(index, place, 1)[:, 0]

    given = (Arg((rows, 1600), BF16), weight(1600, words), Arg((rows, past), I32, below=words))
    yield "nucleus_sums", program(draw, *given, Arg((rows,)), Arg((rows,)), _KEY)


# ------------------------------------------------------------------------------- Pallas: the rest


def recurrences() -> Zoo:
    """Two layers of Mamba on three rows of 1,536 tokens, whose states pass through time."""
    b, s, d, e, n, rank = 3, 1536, 768, 1536, 16, 48
    block = 32

    def scanned(x: Any, delta: Any, a: Any, kin: Any, kout: Any) -> Any:
        def body(x: Any, delta: Any, a: Any, kin: Any, kout: Any, out: Any) -> None:
            decay = a[...]

            def step(t: Any, h: Any) -> Any:
                now = delta[t, :].astype(F32)
                given = (now * x[t, :].astype(F32))[:, None] * kin[t, :].astype(F32)[None]
                h = jnp.exp(now[:, None] * decay) * h + given
                out[t, :] = jnp.sum(h * kout[t, :].astype(F32)[None], 1).astype(out.dtype)
                return h

            lax.fori_loop(0, s, step, jnp.zeros((block, n), F32))

        wide = pl.BlockSpec((None, s, block), lambda i, j: (i, 0, j))
        thin = pl.BlockSpec((None, s, n), lambda i, j: (i, 0, 0))
        decays = pl.BlockSpec((block, n), lambda i, j: (j, 0))
        call = kernel(
            *(body, like(x), 1, 2),
            grid=(b, e // block),
            in_specs=[wide, wide, decays, thin, thin],
            out_specs=wide,
        )
        return call(x, delta, a, kin, kout)

    def answer(params: Any, tokens: Any) -> Any:
        x = params["table"][tokens]
        for p in params["layers"]:
            y, gate = jnp.split(rms(x, p["norm"]) @ p["in"], 2, -1)
            y = lax.conv_general_dilated(
                *(y, p["window"], (1,), [(3, 0)]),
                dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=e,
            )
            y = jax.nn.silu(y)
            low, kin, kout = jnp.split(y @ p["kinds"], [rank, rank + n], -1)
            delta = jax.nn.softplus(low @ p["delta"] + p["start"])
            z = scanned(y, delta, -jnp.exp(p["decay"]), kin, kout) + y * p["skip"]
            x = x + (z * jax.nn.silu(gate)) @ p["out"]
        return rms(x[:, -1], params["last"]) @ params["table"].T

    layer = {"in": weight(d, 2 * e), "window": Arg((4, 1, e), BF16, 0.5), "skip": Arg((e,), BF16)}
    layer |= {"kinds": weight(e, rank + 2 * n), "delta": weight(rank, e), "out": weight(e, d)}
    layer |= {"start": Arg((e,), BF16), "decay": Arg((e, n)), "norm": Arg((d,))}
    params = {"layers": [layer] * 2, "table": Arg((50280, d), BF16, 0.02), "last": Arg((d,))}
    yield "mamba_in_time", program(answer, params, Arg((b, s), I32, below=50280))


def lookups() -> Zoo:
    """Clicks by 26 bags of up to 20 rows each, which a kernel gathers and adds."""
    batch, bags, hot, size, many, block = 3072, 26, 20, 128, 1500000, 8

    def gathered(table: Any, ids: Any, counts: Any) -> Any:
        def body(table: Any, ids: Any, counts: Any, out: Any) -> None:
            limit = counts[...]

            def add(t: Any, total: Any) -> Any:
                here = (t < limit)[:, None]
                return total + plgpu.load(table.at[ids[:, t], :], mask=here, other=0.0)

            total = lax.fori_loop(0, hot, add, jnp.zeros((block, size), F32))
            out[...] = total / jnp.maximum(limit, 1).astype(F32)[:, None]

        n = ids.shape[0]
        call = kernel(
            *(body, jax.ShapeDtypeStruct((n, size), F32), 4, 2),
            grid=(n // block,),
            in_specs=[
                pl.BlockSpec(table.shape, lambda i: (0, 0)),
                pl.BlockSpec((block, hot), lambda i: (i, 0)),
                pl.BlockSpec((block,), lambda i: (i,)),
            ],
            out_specs=pl.BlockSpec((block, size), lambda i: (i, 0)),
        )
        return call(table, ids, counts)

    def clicks(params: Any, table: Any, dense: Any, ids: Any, counts: Any) -> Any:
        x = jnp.log1p(jnp.abs(dense))
        for w, b in params["low"]:
            x = jax.nn.relu(x @ w + b)
        y = gathered(table, ids, counts).reshape(batch, bags, size)
        y = jnp.concatenate([x[:, None], y], 1)
        pairs = jnp.einsum("bid,bjd->bij", y, y)
        i, j = jnp.tril_indices(bags + 1, -1)
        x = jnp.concatenate([x, pairs[:, i, j]], -1)
        for w, b in params["high"][:-1]:
            x = jax.nn.relu(x @ w + b)
        w, b = params["high"][-1]
        return jax.nn.sigmoid(x @ w + b)[:, 0]

    def full(*sizes: int) -> Any:
        pairs = pairwise(sizes)
        return [(master(a, b), Arg((b,), scale=0.1)) for a, b in pairs]

    params = {"low": full(13, 512, 256, size), "high": full(size + 351, 1024, 512, 1)}
    ids = Arg((batch * bags, hot), I32, below=many)
    given = (Arg((many, size), scale=0.05), Arg((batch, 13)), ids)
    yield "bags_in_kernel", program(clicks, params, *given, Arg((batch * bags,), I32, below=21))


def attractions() -> Zoo:
    """Four leaps of 24,576 bodies that attract each other, all pairs in a kernel."""
    n, block, many = 24576, 64, 32

    def pulled(places: Any, masses: Any) -> Any:
        def body(x: Any, y: Any, z: Any, m: Any, *out: Any) -> None:
            own = [a[pl.ds(pl.program_id(0) * block, block)][:, None] for a in (x, y, z)]

            def part(t: Any, sums: Any) -> Any:
                index = pl.ds(t * many, many)
                gaps = [a[index][None] - b for a, b in zip((x, y, z), own, strict=True)]
                far = lax.rsqrt(sum(a * a for a in gaps) + 1e-3)
                pull = m[index][None] * far * far * far
                return tuple(s + jnp.sum(pull * a, 1) for s, a in zip(sums, gaps, strict=True))

            sums = lax.fori_loop(0, n // many, part, (jnp.zeros(block, F32),) * 3)
            for ref, total in zip(out, sums, strict=True):
                ref[...] = total

        own = pl.BlockSpec((block,), lambda i: (i,))
        call = kernel(
            *(body, [like(masses)] * 3, 4, 2),
            grid=(n // block,),
            in_specs=[pl.BlockSpec((n,), lambda i: (0,))] * 4,
            out_specs=[own] * 3,
        )
        return jnp.stack(call(*places, masses))

    def leaps(state: Any, masses: Any) -> Any:
        masses = jnp.abs(masses) / n

        def leap(_: Any, state: Any) -> Any:
            places, speeds, pull = state
            speeds = speeds + 0.005 * pull
            places = places + 0.01 * speeds
            pull = pulled(places, masses)
            return places, speeds + 0.005 * pull, pull

        state = lax.fori_loop(0, 4, leap, state)
        return state, 0.5 * (masses * jnp.square(state[1])).sum()

    yield "all_pairs", carried(leaps, (Arg((3, n)),) * 3, Arg((n,)))


# ----------------------------------------------------------------------------------- mainstream


def dictionaries() -> Zoo:
    """Training of a sparse autoencoder: 32 of 16,384 features explain each of 2,048 states."""
    d, features, k = 1152, 16384, 32
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-4, b1=0.0))

    def step(state: Any, x: Any) -> Any:
        inner, quiet = state

        def loss(p: Any) -> Any:
            y = (x - p["centre"]).astype(BF16) @ p["in"].astype(BF16)
            value, index = lax.top_k(jax.nn.relu(y.astype(F32) + p["shift"]), k)
            found = jnp.einsum("nk,nkd->nd", value, p["out"][index]) + p["centre"]
            missed = jnp.square(found - x).sum(-1)
            return (missed / jnp.square(x - x.mean(0)).sum(-1).mean()).mean(), (value, index)

        params, memory = inner
        (value, (strong, index)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        unit = params["out"]
        along = jnp.sum(grads["out"] * unit, -1, keepdims=True)
        grads["out"] = grads["out"] - along * unit
        params, memory = applied(rule, params, memory, grads)
        size = jnp.linalg.norm(params["out"], axis=-1, keepdims=True)
        params["out"] = params["out"] / (size + 1e-6)
        fired = jnp.zeros(features, bool).at[index.reshape(-1)].max(strong.reshape(-1) > 0)
        quiet = jnp.where(fired, 0, quiet + 1)
        return ((params, memory), quiet), (value, (quiet > 1000).mean())

    params = {"in": master(d, features), "out": Arg((features, d), scale=d**-0.5)}
    params |= {"centre": Arg((d,), scale=0.1), "shift": Arg((features,), scale=0.01)}
    quiet = Arg((features,), I32, below=900)
    yield "sparse_features", carried(step, (started(rule, params), quiet), Arg((2048, d)))


class Residues(nn.Module):
    """ProteinMPNN: messages among near residues, then letters in a random order."""

    size: int = 128
    near: int = 32

    @nn.compact
    def __call__(self, atoms: Any, letters: Any, order: Any) -> Any:
        b, n = letters.shape
        ca = atoms[:, :, 1]
        far = jnp.sqrt(jnp.square(ca[:, :, None] - ca[:, None]).sum(-1) + 1e-6)
        _, index = lax.top_k(-far, self.near)

        def read(x: Any) -> Any:
            return jax.vmap(lambda x, i: x[i])(x, index)

        gaps = atoms[:, :, None, :, None] - read(atoms)[:, :, :, None]
        gaps = jnp.sqrt(jnp.square(gaps).sum(-1) + 1e-6).reshape(b, n, self.near, -1)
        bumps = jnp.exp(-jnp.square((gaps[..., None] - jnp.linspace(2, 22, 16)) / 1.25))
        offset = jnp.clip(index - jnp.arange(n)[:, None] + 32, 0, 64)
        place = nn.Embed(65, 16)(offset)
        edges = jnp.concatenate([bumps.reshape(*index.shape, -1), place], -1)
        edges = nn.Dense(self.size)(nn.LayerNorm()(nn.Dense(self.size, use_bias=False)(edges)))
        nodes = jnp.zeros((b, n, self.size))

        def told(x: Any) -> Any:
            x = nn.gelu(nn.Dense(self.size)(x))
            return nn.Dense(self.size)(nn.gelu(nn.Dense(self.size)(x)))

        def dropped(x: Any) -> Any:
            return nn.Dropout(0.1, deterministic=False)(x)

        def changed(nodes: Any, news: Any) -> Any:
            nodes = nn.LayerNorm()(nodes + dropped(told(news).sum(2) / 30))
            y = nn.Dense(self.size)(nn.gelu(nn.Dense(4 * self.size)(nodes)))
            return nn.LayerNorm()(nodes + dropped(y))

        def pairs(nodes: Any, edges: Any) -> Any:
            own = jnp.broadcast_to(nodes[:, :, None], edges.shape[:3] + nodes.shape[-1:])
            return jnp.concatenate([own, edges], -1)

        for _ in range(3):
            nodes = changed(nodes, pairs(nodes, jnp.concatenate([read(nodes), edges], -1)))
            news = told(pairs(nodes, jnp.concatenate([read(nodes), edges], -1)))
            edges = nn.LayerNorm()(edges + dropped(news))

        words = nn.Embed(21, self.size)(letters)
        rank = jnp.argsort(jnp.argsort(order, -1), -1)
        seen = (read(rank) < rank[:, :, None])[..., None]
        first = jnp.concatenate([read(nodes), jnp.zeros_like(edges), edges], -1)
        for _ in range(3):
            now = jnp.concatenate([read(nodes), read(words), edges], -1)
            nodes = changed(nodes, pairs(nodes, jnp.where(seen, now, first)))
        return nn.Dense(21)(nodes)


def proteins() -> Zoo:
    """Training of ProteinMPNN on six chains of 250 residues."""
    model = Residues()
    rule = optax.adam(1e-3, b2=0.98, eps=1e-9)

    def step(state: Any, atoms: Any, letters: Any, order: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        atoms = 12 * atoms + 0.2 * jax.random.normal(one, atoms.shape)

        def loss(params: Any) -> Any:
            logits = model.apply(params, atoms, letters, order, rngs={"dropout": two})
            goal = optax.smooth_labels(jax.nn.one_hot(letters, 21), 0.1)
            return optax.softmax_cross_entropy(logits, goal).mean()

        return learned(rule, loss, state)

    given = (Arg((6, 250, 5, 3)), Arg((6, 250), I32, below=21), Arg((6, 250)))
    params = linen_weights(model, *given)
    yield "mpnn", carried(step, started(rule, params), *given, _KEY)


class Voices(nn.Module):
    """Conv-TasNet for two voices."""

    size: int = 128
    wide: int = 256
    depth: int = 6

    @nn.compact
    def __call__(self, sound: Any) -> Any:
        x = nn.relu(nn.Conv(256, (16,), (8,), padding="VALID", use_bias=False)(sound[..., None]))
        y = nn.Dense(self.size)(nn.LayerNorm()(x))
        skips = 0.0
        for i in range(2 * self.depth):
            z = nn.PReLU()(nn.Dense(self.wide)(y))
            z = nn.GroupNorm(1)(z)
            z = nn.Conv(
                self.wide,
                (3,),
                kernel_dilation=(2 ** (i % self.depth),),
                feature_group_count=self.wide,
            )(z)
            z = nn.GroupNorm(1)(nn.PReLU()(z))
            skips = skips + nn.Dense(self.size)(z)
            y = y + nn.Dense(self.size)(z)
        masks = nn.sigmoid(nn.Dense(2 * 256)(nn.PReLU()(skips)))
        parts = heads(masks, 256) * x[:, :, None]
        out = nn.ConvTranspose(1, (16,), (8,), padding="VALID", use_bias=False)
        b, n = x.shape[:2]
        return out(parts.swapaxes(1, 2).reshape(2 * b, n, 256)).reshape(b, 2, -1)


def separation() -> Zoo:
    """Training of Conv-TasNet on four mixtures of two voices, whose order does not matter."""
    model = Voices()
    rule = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(1e-3))

    def step(state: Any, voices: Any, loud: Any) -> Any:
        voices = voices * (1 + 0.3 * jnp.tanh(loud))[..., None]
        mixed = voices.sum(1)

        def loss(params: Any) -> Any:
            found = model.apply(params, mixed)
            found = found - found.mean(-1, keepdims=True)
            goal = voices - voices.mean(-1, keepdims=True)
            dots = jnp.einsum("bin,bjn->bij", found, goal)
            power = jnp.square(goal).sum(-1)[:, None]
            along = jnp.square(dots) / (power + 1e-8)
            noise = jnp.square(found).sum(-1)[:, :, None] - along
            ratio = 10 * jnp.log10((along + 1e-8) / (jnp.maximum(noise, 0) + 1e-8))
            same = ratio[:, 0, 0] + ratio[:, 1, 1]
            return -jnp.maximum(same, ratio[:, 0, 1] + ratio[:, 1, 0]).mean() / 2

        return learned(rule, loss, state)

    params = linen_weights(model, Arg((4, 16000)))
    given = (Arg((4, 2, 16000), scale=0.1), Arg((4, 2)))
    yield "two_voices", carried(step, started(rule, params), *given)


class Centres(nn.Module):
    """A ResNet that is halved and doubled again, and three heads at a quarter of the size."""

    kinds: int = 20

    @nn.compact
    def __call__(self, x: Any) -> Any:
        norm = partial(nn.BatchNorm, use_running_average=False, momentum=0.9, dtype=BF16)
        conv = partial(nn.Conv, use_bias=False, dtype=BF16)
        x = nn.relu(norm()(conv(64, (7, 7), (2, 2))(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            y = nn.relu(norm()(conv(width, (3, 3), (stride, stride))(x)))
            y = norm()(conv(width, (3, 3))(y))
            if y.shape != x.shape:
                x = norm()(conv(width, (1, 1), (stride, stride))(x))
            x = nn.relu(x + y)
        for width in (256, 128, 64):
            x = nn.ConvTranspose(width, (4, 4), (2, 2), use_bias=False, dtype=BF16)(x)
            x = nn.relu(norm()(x))

        def head(n: int) -> Any:
            y = nn.relu(nn.Conv(64, (3, 3), dtype=BF16)(x))
            return nn.Conv(n, (1, 1), dtype=F32)(y)

        return head(self.kinds), head(2), head(2)


def centres() -> Zoo:
    """Training of CenterNet on 16 pictures of 320 x 320 with up to 24 things each."""
    model, b, n, m = Centres(), 16, 80, 24
    rule = optax.adam(5e-4)

    def step(state: Any, pictures: Any, boxes: Any, kinds: Any, counts: Any) -> Any:
        (params, memory), stats = state
        real = jnp.arange(m) < counts[:, None]
        middle = n * jax.nn.sigmoid(boxes[..., :2])
        size = 2 + 8 * jnp.abs(boxes[..., 2:])
        cell = jnp.clip(middle.astype(I32), 0, n - 1)
        wide = jnp.maximum(size.mean(-1) / 6, 0.6)[..., None, None]
        line = jnp.arange(n)
        gap = jnp.square(line[:, None] - cell[..., 0, None, None])
        gap = gap + jnp.square(line - cell[..., 1, None, None])
        bump = jnp.where(real[..., None, None], jnp.exp(-gap / (2 * wide**2)), 0.0)

        def drawn(bump: Any, kinds: Any) -> Any:
            return jnp.zeros((20, n, n)).at[kinds].max(bump)

        goal = jax.vmap(drawn)(bump, kinds).transpose(0, 2, 3, 1)
        number = real.sum() + 1.0

        def loss(params: Any) -> Any:
            given = {"params": params, "batch_stats": stats}
            (heat, sizes, offsets), new = model.apply(given, pictures, mutable=["batch_stats"])
            log, p = jax.nn.log_sigmoid(heat), jax.nn.sigmoid(heat)
            hit = jnp.square(1 - p) * log
            miss = (1 - goal) ** 4 * jnp.square(p) * jax.nn.log_sigmoid(-heat)
            total = -jnp.where(goal > 0.9999, hit, miss).sum() / number
            at = jax.vmap(lambda x, c: x[c[:, 0], c[:, 1]])
            gap = 0.1 * jnp.abs(at(sizes, cell) - size)
            gap = gap + jnp.abs(at(offsets, cell) - (middle - cell))
            return total + jnp.where(real[..., None], gap, 0).sum() / number, new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return (applied(rule, params, memory, grads), new["batch_stats"]), value

    pictures = Arg((b, 320, 320, 3), BF16)
    weights = linen_weights(model, pictures)
    state = (started(rule, weights["params"]), weights["batch_stats"])
    given = (pictures, Arg((b, m, 4)), Arg((b, m), I32, below=20), Arg((b,), I32, below=m))
    yield "center_net", carried(step, state, *given)


class Board(nn.Module):
    """AlphaZero's tower with a policy and a value."""

    width: int = 128
    depth: int = 6

    @nn.compact
    def __call__(self, x: Any) -> Any:
        norm = partial(nn.BatchNorm, use_running_average=False, momentum=0.9, dtype=BF16)
        conv = partial(nn.Conv, use_bias=False, dtype=BF16)
        x = nn.relu(norm()(conv(self.width, (3, 3))(x)))
        for _ in range(self.depth):
            y = nn.relu(norm()(conv(self.width, (3, 3))(x)))
            x = nn.relu(x + norm()(conv(self.width, (3, 3))(y)))
        y = nn.relu(norm()(conv(2, (1, 1))(x))).reshape(x.shape[0], -1)
        policy = nn.Dense(362, dtype=F32)(y)
        y = nn.relu(norm()(conv(1, (1, 1))(x))).reshape(x.shape[0], -1)
        value = nn.tanh(nn.Dense(1, dtype=F32)(nn.relu(nn.Dense(256, dtype=BF16)(y))))
        return policy, value[:, 0]


def boards() -> Zoo:
    """Training of AlphaZero on 640 boards of Go, each turned or mirrored by chance."""
    model, b = Board(), 640
    rule = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.02, momentum=0.9))

    def step(state: Any, games: Any, visits: Any, wins: Any, key: Any) -> Any:
        (params, memory), stats = state
        one, two = jax.random.split(key)
        index = jax.random.randint(one, (b,), 0, games.shape[0])
        flips = jax.random.bernoulli(two, 0.5, (3, b))
        x, policy = games[index].astype(BF16), visits[index]
        grid, rest = policy[:, :361].reshape(b, 19, 19, 1), policy[:, 361:]

        def turned(x: Any) -> Any:
            up, left, over = (f[:, None, None, None] for f in flips)
            x = jnp.where(up, x[:, ::-1], x)
            x = jnp.where(left, x[:, :, ::-1], x)
            return jnp.where(over, x.swapaxes(1, 2), x)

        x, grid = turned(x), turned(grid).reshape(b, -1)
        policy = jax.nn.softmax(4 * jnp.concatenate([grid, rest], -1))
        won = 2.0 * wins[index] - 1

        def loss(params: Any) -> Any:
            given = {"params": params, "batch_stats": stats}
            (logits, value), new = model.apply(given, x, mutable=["batch_stats"])
            total = optax.softmax_cross_entropy(logits, policy).mean()
            return total + jnp.square(value - won).mean(), new["batch_stats"]

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return (applied(rule, params, memory, grads), stats), value

    weights = linen_weights(model, Arg((b, 19, 19, 17), BF16))
    state = (started(rule, weights["params"]), weights["batch_stats"])
    given = (Arg((40000, 19, 19, 17), jnp.bool_), Arg((40000, 362)), Arg((40000,), I32))
    yield "alpha_zero", carried(step, state, *given, _KEY)


class Moves(nn.Module):
    """The noise in sixteen actions, by a U along time that a state scales."""

    @nn.compact
    def __call__(self, x: Any, time: Any, seen: Any) -> Any:
        speed = jnp.exp(-jnp.arange(64) * math.log(10000) / 63)
        angle = time[:, None] * speed
        t = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
        t = nn.Dense(128)(nn.silu(nn.Dense(512)(t)))
        given = jnp.concatenate([t, seen], -1)

        def bent(x: Any, width: int) -> Any:
            y = nn.GroupNorm(8)(nn.Conv(width, (5,))(x))
            return y * jnp.tanh(nn.softplus(y))

        def block(x: Any, width: int) -> Any:
            y = bent(x, width)
            scale, shift = jnp.split(nn.Dense(2 * width)(nn.silu(given))[:, None], 2, -1)
            y = bent(y * scale + shift, width)
            return y + (x if x.shape[-1] == width else nn.Dense(width)(x))

        kept = []
        for width in (256, 512):
            x = block(block(x, width), width)
            kept.append(x)
            x = nn.Conv(width, (3,), (2,))(x)
        x = block(block(x, 512), 512)
        for width, old in zip((512, 256), kept[::-1], strict=True):
            x = nn.ConvTranspose(width, (4,), (2,))(x)
            x = block(block(jnp.concatenate([x, old], -1), width), width)
        return nn.Dense(7)(bent(x, 256))


def policies() -> Zoo:
    """Training of a diffusion policy on 256 windows of shown moves, with a slow copy."""
    model, b = Moves(), 256
    steps = optax.warmup_cosine_decay_schedule(0.0, 1e-4, 500, 100000)
    rule = optax.adamw(steps, b1=0.95, weight_decay=1e-6)

    def step(state: Any, shown: Any, seen: Any, starts: Any, key: Any) -> Any:
        inner, slow = state
        one, two = jax.random.split(key)
        moves = shown[starts[:, None] + jnp.arange(16)]
        views = seen[starts[:, None] + jnp.arange(2)].reshape(b, -1)
        time = jax.random.randint(one, (b,), 0, 100)
        noise = jax.random.normal(two, moves.shape)
        keep = jnp.cos((time + 1) / 101 * jnp.pi / 2)[:, None, None] ** 2
        mixed = jnp.sqrt(keep) * moves + jnp.sqrt(1 - keep) * noise

        def loss(params: Any) -> Any:
            found = model.apply(params, mixed, time.astype(F32), views)
            return jnp.square(found - noise).mean()

        inner, value = learned(rule, loss, inner)
        slow = jax.tree.map(lambda a, b: a + 0.001 * (b - a), slow, inner[0])
        return (inner, slow), value

    params = linen_weights(model, Arg((b, 16, 7)), Arg((b,)), Arg((b, 120)))
    given = (Arg((100000, 7)), Arg((100000, 60)), Arg((b,), I32, below=99000))
    yield "diffusion_policy", carried(step, (started(rule, params), params), *given, _KEY)


def routed() -> Zoo:
    """A token of ten replies by Qwen 3's experts, whose weights are gathered for each token."""
    b, d, h, g, size, most, experts, k, wide, depth = 10, 1536, 24, 4, 64, 2048, 48, 4, 640, 6

    def token(caches: Any, params: Any, tokens: Any, place: Any, key: Any) -> Any:
        here = 1500 + place

        def layer(x: Any, given: Any) -> Any:
            p, (k_old, v_old) = given
            y = heads(rms(x, p["scale"][0]) @ p["qkv"], size)
            q, new, v = jnp.split(y, [h, h + g], 1)
            at = jnp.full((b,), here)
            q, new = rope(rms(q, p["q_scale"]), at, 1e6), rope(rms(new, p["k_scale"]), at, 1e6)
            k_new = lax.dynamic_update_slice(k_old, new[:, None], (0, here, 0, 0))
            v_new = lax.dynamic_update_slice(v_old, v[:, None], (0, here, 0, 0))
            q = q.reshape(b, g, h // g, size)
            scores = jnp.einsum("bgrd,bsgd->bgrs", q, k_new).astype(F32) * size**-0.5
            scores = jnp.where(jnp.arange(most) <= here, scores, -1e30)
            shares = jax.nn.softmax(scores, -1).astype(BF16)
            y = jnp.einsum("bgrs,bsgd->bgrd", shares, v_new).reshape(b, -1)
            x = x + y @ p["out"]
            y = rms(x, p["scale"][1])
            share, index = lax.top_k(jax.nn.softmax((y @ p["router"]).astype(F32)), k)
            share = (share / share.sum(-1, keepdims=True)).astype(BF16)
            up = jnp.einsum("bd,bkdf->bkf", y, p["up"][index])
            gate, up = jnp.split(up, 2, -1)
            y = jnp.einsum("bkf,bkfd->bkd", jax.nn.silu(gate) * up, p["down"][index])
            return x + jnp.einsum("bkd,bk->bd", y, share), (k_new, v_new)

        x, caches = lax.scan(layer, params["table"][tokens], (params["layers"], caches))
        logits = (rms(x, params["last"]) @ params["head"]).astype(F32) / 0.7
        best, index = lax.top_k(logits, 20)
        drawn = jax.random.categorical(key, best)
        return caches, jnp.take_along_axis(index, drawn[:, None], 1)[:, 0]

    layer = {"qkv": weight(d, (h + 2 * g) * size), "out": weight(h * size, d)}
    layer |= {"router": weight(d, experts), "up": weight(experts, d, 2 * wide)}
    layer |= {"down": weight(experts, wide, d), "scale": Arg((2, d))}
    layer |= {"q_scale": Arg((size,)), "k_scale": Arg((size,))}
    params = {"layers": times(depth, layer), "table": Arg((100000, d), BF16), "last": Arg((d,))}
    params |= {"head": weight(d, 100000)}
    caches = (Arg((depth, b, most, g, size), BF16),) * 2
    given = (Arg((b,), I32, below=100000), Arg((), I32, below=500), _KEY)
    yield "qwen_experts", carried(token, caches, params, *given)


# ------------------------------------------------------------------------------------- numerics


def maxwell() -> Zoo:
    """Light in glass by Yee's scheme: 16 steps on 150 x 150 x 180 cells with lossy borders."""
    shape = (150, 150, 180)

    def waves(state: Any, glass: Any, start: Any) -> Any:
        glass = 1 / (1 + 1.25 * (glass > 0.5))
        edge = [jnp.minimum(jnp.arange(n), jnp.arange(n)[::-1]) for n in shape]
        edge = jnp.minimum(edge[0][:, None, None], edge[1][:, None])[..., :1], edge[2]
        loss = 0.03 * jnp.square(jnp.maximum(10 - jnp.minimum(*edge), 0) / 10)
        keep, gain = (1 - loss) / (1 + loss), 0.5 * glass / (1 + loss)

        def curl(f: Any, back: bool) -> Any:
            def slope(x: Any, axis: int) -> Any:
                if back:
                    return x - jnp.roll(x, 1, axis)
                return jnp.roll(x, -1, axis) - x

            x, y, z = f
            return (
                slope(z, 1) - slope(y, 2),
                slope(x, 2) - slope(z, 0),
                slope(y, 0) - slope(x, 1),
            )

        def step(t: Any, state: Any) -> Any:
            e, h = state
            h = tuple(keep * a - 0.5 * b for a, b in zip(h, curl(e, False), strict=True))
            e = tuple(keep * a + gain * b for a, b in zip(e, curl(h, True), strict=True))
            pulse = jnp.sin(0.3 * (start + t)) * jnp.exp(-jnp.square((start + t - 40) / 20.0))
            return (e[0], e[1], e[2].at[75, 75, 20:160].add(pulse)), h

        state = lax.fori_loop(0, 16, step, state)
        flow = state[0][0] * state[1][1] - state[0][1] * state[1][0]
        return state, flow[:, :, 140].sum()

    fields = ((Arg(shape, scale=0.01),) * 3,) * 2
    yield "yee", carried(waves, fields, Arg(shape), Arg((), I32, below=30))


def rates() -> Zoo:
    """A market of 40 forward rates on 30,000 paths: swaptions, and how they change."""
    n, paths, factors, period = 40, 30000, 3, 0.25

    def prices(forwards: Any, loads: Any, strikes: Any, key: Any) -> Any:
        spread = 0.15 * jnp.tanh(loads) / math.sqrt(factors)

        def worth(forwards: Any, spread: Any) -> Any:
            start = jnp.broadcast_to(0.03 + 0.005 * jnp.tanh(forwards), (paths, n))

            def step(carry: Any, i: Any) -> Any:
                x, key = carry
                key, one = jax.random.split(key)
                shock = jax.random.normal(one, (paths // 2, factors))
                shock = jnp.concatenate([shock, -shock])
                alive = jnp.arange(n) > i
                part = jnp.where(alive, period * x / (1 + period * x), 0.0)
                drift = jnp.cumsum(part[..., None] * spread, 1)
                drift = (drift * spread).sum(-1) - 0.5 * jnp.square(spread).sum(-1)
                new = x * jnp.exp(period * drift + math.sqrt(period) * (shock @ spread.T))
                fixed = 1 / (1 + period * x[:, i])
                return (jnp.where(alive, new, x), key), fixed

            (x, _), bonds = lax.scan(step, (start, key), jnp.arange(16))
            discount = jnp.prod(bonds, 0)
            chain = jnp.cumprod(1 / (1 + period * x[:, 16:]), 1)
            annuity = period * jnp.cumsum(chain, 1)[:, 3::4]
            swap = (1 - chain[:, 3::4]) / annuity
            strike = 0.03 + 0.002 * strikes
            pay = annuity[..., None] * jax.nn.relu(swap[..., None] - strike)
            values = (discount[:, None, None] * pay).mean(0)
            return values.sum(), values

        grads, values = jax.grad(worth, (0, 1), has_aux=True)(forwards, spread)
        return values, grads

    yield "forward_rates", program(prices, Arg((n,)), Arg((n, factors)), Arg((7,)), _KEY)


def spectra() -> Zoo:
    """How the eigenvalues of a graph of 150,000 nodes lie, by 28 of Lanczos' rounds."""
    n, edges, probes, rounds = 150000, 1300000, 8, 28

    def density(start: Any, ends: Any, strong: Any, key: Any) -> Any:
        strong, ends = 0.1 + jnp.abs(strong), jnp.roll(ends, 54321)  # The arguments are equal.
        degree = jax.ops.segment_sum(strong, ends, n) + jax.ops.segment_sum(strong, start, n)
        scale = lax.rsqrt(jnp.maximum(degree, 1e-6))
        strong = strong * scale[start] * scale[ends]

        def product(x: Any) -> Any:
            y = jnp.zeros_like(x).at[ends].add(strong[:, None] * x[start])
            return x - y.at[start].add(strong[:, None] * x[ends])

        x = jax.random.rademacher(key, (n, probes), F32) / math.sqrt(n)

        def step(carry: Any, _: Any) -> Any:
            old, x, size = carry
            y = product(x) - size * old
            along = (y * x).sum(0)
            y = y - along * x
            size = jnp.sqrt(jnp.square(y).sum(0))
            return (x, y / size, size), (along, size)

        begin = (jnp.zeros_like(x), x, jnp.zeros(probes))
        _, (along, size) = lax.scan(step, begin, None, length=rounds)

        def small(a: Any, b: Any) -> Any:
            values, vectors = jnp.linalg.eigh(jnp.diag(a) + jnp.diag(b, 1) + jnp.diag(b, -1))
            return values, jnp.square(vectors[0])

        values, shares = jax.vmap(small)(along.T, size[:-1].T)
        line = jnp.linspace(0, 2, 400)
        bumps = jnp.exp(-jnp.square((line[:, None, None] - values) / 0.03) / 2)
        return (bumps * shares).sum(-1).mean(-1), (shares * jnp.log1p(values)).sum(-1)

    ids = Arg((edges,), I32, below=n)
    yield "lanczos", program(density, ids, ids, Arg((edges,)), _KEY)


def pulses() -> Zoo:
    """A step of GRAPE: 12 pulses of 96 slices that turn four coupled qubits, and their slopes."""
    size, controls, slices, many = 16, 8, 96, 12
    rule = optax.adam(0.02)

    def step(state: Any, drift: Any, drives: Any, goal: Any) -> Any:
        own = drift + drift.T
        push = drives + drives.swapaxes(1, 2)
        goal = jnp.linalg.qr(goal.astype(jnp.complex64))[0]

        def exponential(h: Any) -> Any:
            x = -1j * h / 8
            eye = jnp.eye(size, dtype=x.dtype)
            y = eye + x / 7
            for i in range(6, 0, -1):
                y = eye + x @ y / i
            for _ in range(3):
                y = y @ y
            return y

        def loss(wave: Any) -> Any:
            field = 2 * jnp.tanh(wave)
            h = 0.2 * own + 0.1 * jnp.einsum("msc,cij->msij", field, push)
            parts = exponential(h.astype(jnp.complex64))

            def turn(u: Any, part: Any) -> tuple[Any, None]:
                return part @ u, None

            begin = jnp.broadcast_to(jnp.eye(size, dtype=parts.dtype), (many, size, size))
            whole, _ = lax.scan(turn, begin, parts.swapaxes(0, 1))
            overlap = jnp.einsum("ij,mij->m", goal.conj(), whole) / size
            rough = jnp.square(jnp.diff(field, axis=1)).mean()
            return (1 - jnp.square(jnp.abs(overlap))).sum() + 0.01 * rough

        return learned(rule, loss, state)

    given = (Arg((size, size)), Arg((controls, size, size)), Arg((size, size)))
    wave = Arg((many, slices, controls), scale=0.1)
    yield "grape", carried(step, started(rule, wave), *given)


def radar() -> Zoo:
    """A radar's picture of 400 x 500 cells from 384 echoes, which are projected back."""
    pulses_, bins, tall, wide = 384, 4096, 400, 500

    def picture(real: Any, imaginary: Any, chirp: Any, shake: Any) -> Any:
        echo = lax.complex(real, imaginary)
        model = jnp.exp(1j * jnp.cumsum(chirp * 0.01 + jnp.linspace(0, 0.3, 1024)))
        model = jnp.fft.fft(model, bins)
        near = jnp.fft.ifft(jnp.fft.fft(echo, axis=1) * model.conj(), axis=1)
        window = 0.54 - 0.46 * jnp.cos(2 * jnp.pi * jnp.arange(pulses_) / (pulses_ - 1))
        near = near * window[:, None]
        along = jnp.linspace(-300, 300, pulses_)
        path = jnp.stack([along, -5000 + shake[0], 3000 + shake[1]], -1)
        y, x = jnp.linspace(-200, 200, tall)[:, None], jnp.linspace(-250, 250, wide)

        def add(total: Any, given: Any) -> tuple[Any, None]:
            rows, places = given
            gap = jnp.square(x - places[:, 0, None, None])
            gap = gap + jnp.square(y - places[:, 1, None, None])
            far = jnp.sqrt(gap + jnp.square(places[:, 2, None, None]))
            cell = (far - 5400) * 4
            low = jnp.clip(jnp.floor(cell).astype(I32), 0, bins - 2)
            part = jnp.clip(cell - low, 0, 1)
            at = jax.vmap(lambda r, i: r[i])
            value = (1 - part) * at(rows, low) + part * at(rows, low + 1)
            return total + (value * jnp.exp(1j * jnp.mod(4 * far, 2 * jnp.pi))).sum(0), None

        parts = (near.reshape(-1, 8, bins), path.reshape(-1, 8, 3))
        total, _ = lax.scan(add, jnp.zeros((tall, wide), jnp.complex64), parts)
        bright = 20 * jnp.log10(jnp.abs(total) + 1e-6)
        return bright, jnp.percentile(bright, jnp.array([2.0, 98.0]))

    echo = Arg((pulses_, bins))
    yield "projected_back", program(picture, echo, echo, Arg((1024,)), Arg((2, pulses_)))


def forests() -> Zoo:
    """The least forest that joins 100,000 places along 700,000 ways, by Boruvka's rounds."""
    n, edges = 100000, 700000

    def forest(one: Any, two: Any, long: Any) -> Any:
        long, two = jnp.abs(long), jnp.roll(two, 54321)  # The arguments are equal.
        order = jnp.argsort(long)
        rank = jnp.zeros(edges, I32).at[order].set(jnp.arange(edges, dtype=I32))

        def going(carry: Any) -> Any:
            _, _, more, t = carry
            return more & (t < 12)

        def round_(carry: Any) -> Any:
            part, kept, _, t = carry
            a, b = part[one], part[two]
            cost = jnp.where(a == b, edges, rank)
            best = jnp.full(n, edges, I32).at[a].min(cost).at[b].min(cost)
            found = best < edges
            way = order[jnp.minimum(best, edges - 1)]
            own = jnp.arange(n, dtype=I32)
            other = jnp.where(a[way] == own, b[way], a[way])
            parent = jnp.where(found, other, own)
            twice = parent[parent] == own
            parent = jnp.where(twice & (own < parent), own, parent)
            parent = lax.fori_loop(0, 10, lambda _, p: p[p], parent)
            kept = kept.at[jnp.where(found, way, edges)].set(True, mode="drop")
            return parent[part], kept, found.any(), t + 1

        begin = (jnp.arange(n, dtype=I32), jnp.zeros(edges, bool), jnp.bool_(True), 0)
        part, kept, _, count = lax.while_loop(going, round_, begin)
        return part, kept, jnp.where(kept, long, 0).sum(), count

    ids = Arg((edges,), I32, below=n)
    yield "boruvka", program(forest, ids, ids, Arg((edges,)))


def programming() -> Zoo:
    """Quadratic programs of 200 planners at once, by 80 rounds of OSQP's operator splitting."""
    many, n, m = 200, 144, 216

    def plans(root: Any, linear: Any, rows: Any, room: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            square = jnp.einsum("bij,bkj->bik", root, root) / n + 0.1 * jnp.eye(n)
            size = jnp.sqrt(jnp.square(rows).sum(-1, keepdims=True))
            rows = rows / size
            high = 0.1 + jnp.abs(room)
            rho, sigma = 0.8, 1e-6
            whole = square + sigma * jnp.eye(n) + rho * jnp.einsum("bmi,bmj->bij", rows, rows)
            factor = jnp.linalg.cholesky(whole)
            eye = jnp.broadcast_to(jnp.eye(n), whole.shape)
            inverse = lax.linalg.triangular_solve(factor, eye, left_side=True, lower=True)
            inverse = jnp.einsum("bki,bkj->bij", inverse, inverse)

            def step(_: Any, carry: Any) -> Any:
                x, z, y = carry
                right = sigma * x - linear + jnp.einsum("bmi,bm->bi", rows, rho * z - y)
                new = jnp.einsum("bij,bj->bi", inverse, right)
                image = 1.6 * jnp.einsum("bmi,bi->bm", rows, new) - 0.6 * z
                new = 1.6 * new - 0.6 * x
                fixed = jnp.clip(image + y / rho, -high, high)
                return new, fixed, y + rho * (image - fixed)

            begin = (jnp.zeros((many, n)), jnp.zeros((many, m)), jnp.zeros((many, m)))
            x, z, y = lax.fori_loop(0, 80, step, begin)
            primal = jnp.abs(jnp.einsum("bmi,bi->bm", rows, x) - z).max(-1)
            slope = jnp.einsum("bij,bj->bi", square, x) + linear
            dual = jnp.abs(slope + jnp.einsum("bmi,bm->bi", rows, y)).max(-1)
        return x, primal, dual

    given = (Arg((many, n, n)), Arg((many, n)), Arg((many, m, n)), Arg((many, m)))
    yield "splitting", program(plans, *given)
