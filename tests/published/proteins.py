"""Inference of AlphaFold 3, with the shapes and data types of its first release.

Left out: masks, biases of products, scales of normalisation, random rotations and features that
the host computes. Attention in pairs is cuDNN's instead of a Triton kernel, and gated products are
not one kernel.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.published.weights import Weights, gated, linear, norm, workload
from xlapipe import Workload

F32, BF16 = jnp.float32, jnp.bfloat16
PAIR, SINGLE, TOKEN, ATOM = 128, 384, 768, 128
QUERIES, KEYS, SAMPLES, ALIGNED = 32, 128, 5, 1024
# Features of relative positions.
RELATIVE = 139


def structure(
    *, tokens: int, recycles: int = 11, steps: int = 200, options: Any = None
) -> Workload:
    """Passes of the trunk, denoising steps of five samples, and their confidences."""
    windows = tokens * 24 // QUERIES

    def infer(w: Weights, inputs: dict[str, Any]) -> Any:
        def recycle(carry: Any, _: Any) -> Any:
            return trunk(w, "trunk", inputs, *carry), None

        zeros = jnp.zeros((tokens, tokens, PAIR), F32), jnp.zeros((tokens, SINGLE), F32)
        (pair, single), _ = lax.scan(recycle, zeros, None, recycles)

        def steps_of_trip(atoms: Any, noises: Any) -> Any:
            # Four steps are a trip, in which XLA computes once what they share.
            shared = conditions(w, "conditions", inputs, pair, single)

            def step(atoms: Any, noise: Any) -> Any:
                return denoise(w, "denoise", inputs, shared, atoms, noise), None

            return lax.scan(step, atoms, noises)[0], None

        noises = inputs["noises"].reshape(-1, 4, SAMPLES)
        atoms, _ = lax.scan(steps_of_trip, inputs["atoms"], noises)
        return atoms, lax.map(lambda one: confidence(w, "trust", inputs, pair, single, one), atoms)

    inputs = {
        "target": ((tokens, 447), BF16),
        "relative": ((tokens, tokens, RELATIVE), BF16),
        "templates": ((4, tokens, tokens, 108), BF16),
        "alignment": ((ALIGNED, tokens, 34), BF16),
        "atoms": ((SAMPLES, windows, QUERIES, 3), F32),
        "noises": ((steps, SAMPLES), F32),
        "reference": ((windows, QUERIES, 389), F32),
        "offsets": ((windows, QUERIES, KEYS, 5), F32),
        "keys": ((windows, KEYS), jnp.int32),
        "token_of_atom": ((windows, QUERIES), jnp.int32),
        "token_of_key": ((windows, KEYS), jnp.int32),
    }
    return workload("structure", infer, inputs, options)


def transition(w: Weights, name: str, x: Any, factor: int) -> Any:
    hidden = gated(w, f"{name} up", norm(x), factor * x.shape[-1], jax.nn.silu)
    return x + linear(w, f"{name} down", hidden, x.shape[-1])


# --- The trunk, in bfloat16


def trunk(w: Weights, name: str, inputs: Any, pair: Any, single: Any) -> Any:
    target = inputs["target"]
    x = linear(w, f"{name} left", target, PAIR)[:, None]
    x = x + linear(w, f"{name} right", target, PAIR)[None]
    x = x + linear(w, f"{name} before", norm(pair.astype(BF16)), PAIR)
    x = x + linear(w, f"{name} relative", inputs["relative"], PAIR)
    y = norm(x)

    def template(total: Any, features: Any) -> Any:
        one = linear(w, f"{name} features", features, 64) + linear(w, f"{name} query", y, 64)
        one = w.stack(f"{name} templates", 2, lambda w, one: pair_block(w, one, 2), one)
        return total + norm(one), None

    found, _ = lax.scan(template, jnp.zeros((*x.shape[:2], 64), BF16), inputs["templates"])
    x = x + linear(w, f"{name} found", jax.nn.relu(found), PAIR)
    rows = linear(w, f"{name} rows", inputs["alignment"], 64)
    x, _ = w.stack(f"{name} aligned", 4, aligned, (x, rows))
    s = linear(w, f"{name} single", target, SINGLE)
    s = s + linear(w, f"{name} single before", norm(single.astype(BF16)), SINGLE)
    x, s = w.stack(f"{name} pairformer", 48, pairformer, (x, s))
    return x.astype(F32), s.astype(F32)


def pair_block(w: Weights, x: Any, factor: int = 4) -> Any:
    count, width = x.shape[0], x.shape[-1]
    for way in ("cik,cjk->cij", "ckj,cki->cij"):
        y = norm(x)
        both = gated(w, f"{way} in", y, 2 * width, jax.nn.sigmoid).transpose(2, 0, 1)
        both = both.reshape(width, 2, count, count)
        mixed = norm(jnp.einsum(way, both[:, 0], both[:, 1]), axis=0).transpose(1, 2, 0)
        gate = jax.nn.sigmoid(linear(w, f"{way} gate", y, width))
        x = x + linear(w, f"{way} out", mixed, width) * gate
    chunk = 128 if count <= 1536 else 32
    for way in ("rows", "columns"):
        y = norm(x)
        bias = linear(w, f"{way} bias", y, 4).transpose(2, 0, 1)[None]
        y = (y if way == "rows" else y.swapaxes(0, 1)).reshape(-1, chunk, count, width)
        y = lax.map(lambda part, way=way, bias=bias: of_rows(w, way, part, bias), y)
        y = y.reshape(x.shape)
        x = x + (y if way == "rows" else y.swapaxes(0, 1))
    return transition(w, "transition", x, factor)


def of_rows(w: Weights, name: str, x: Any, bias: Any) -> Any:
    width = x.shape[-1]
    q, k, v = (
        linear(w, f"{name} {part}", x, width).reshape(*x.shape[:2], 4, width // 4) for part in "qkv"
    )
    # While weights are noted, no cuDNN is needed.
    flash: Any = partial(jax.nn.dot_product_attention, implementation="cudnn")
    mixed = v if w.noted else flash(q, k, v, bias)
    gate = jax.nn.sigmoid(linear(w, f"{name} gate", x, width))
    return linear(w, f"{name} out", mixed.reshape(x.shape) * gate, width)


def aligned(w: Weights, carry: Any) -> Any:
    x, m = carry
    y = norm(m)
    left, right = linear(w, "left", y, 32), linear(w, "right", y, 32)
    weights = w("mean", 32, 32, PAIR, dtype=BF16)

    def means(part: Any) -> Any:
        outer = jnp.einsum("mci,mjd->jcdi", part.swapaxes(1, 2), right)
        return jnp.einsum("jcdi,cdf->jif", outer, weights).swapaxes(0, 1)

    parts = left.reshape(ALIGNED, -1, 128, 32).swapaxes(0, 1)
    x = x + lax.map(means, parts).reshape(x.shape)
    share = jax.nn.softmax(linear(w, "bias", norm(x), 8).transpose(2, 0, 1), axis=-1)
    v = linear(w, "v", y, 64).reshape(*m.shape[:2], 8, 8)
    mixed = jnp.einsum("hqk,bkhc->bqhc", share, v).reshape(m.shape)
    m = m + linear(w, "o", mixed * jax.nn.sigmoid(linear(w, "gate", y, 64)), 64)
    m = transition(w, "rows", m, 4)
    return pair_block(w, x), m


def pairformer(w: Weights, carry: Any) -> Any:
    x, s = carry
    x = pair_block(w, x)
    bias = linear(w, "bias", norm(x), 16).transpose(2, 0, 1)
    s = s + attention(w, "single", norm(s), norm(s), bias, 16)
    return x, transition(w, "single transition", s, 4)


def attention(w: Weights, name: str, x: Any, keys: Any, bias: Any, heads: int) -> Any:
    """Attention whose scores are in float32 in memory."""
    width = x.shape[-1]
    q = linear(w, f"{name} q", x, width)
    k, v = linear(w, f"{name} k", keys, width), linear(w, f"{name} v", keys, width)
    q, k, v = (part.reshape(*part.shape[:-1], heads, -1) for part in (q, k, v))
    q = q.astype(F32) * q.shape[-1] ** -0.5
    scores = jnp.einsum("...qhc,...khc->...hqk", q, k.astype(F32)) + bias
    mixed = jnp.einsum("...hqk,...khc->...qhc", jax.nn.softmax(scores).astype(v.dtype), v)
    gate = jax.nn.sigmoid(linear(w, f"{name} gate", x, width))
    return linear(w, f"{name} out", mixed.reshape(x.shape) * gate, width)


# --- Denoising, in float32


def exact(w: Weights, name: str, x: Any, width: int) -> Any:
    return linear(w, name, x, width, precision="highest")


def conditions(w: Weights, name: str, inputs: Any, pair: Any, single: Any) -> dict[str, Any]:
    """What steps do not change: conditions by pairs, and the biases of attention in atoms."""
    x = norm(jnp.concatenate([pair, inputs["relative"].astype(F32)], -1))
    x = exact(w, f"{name} pair", x, PAIR)
    for number in range(2):
        x = transition(w, f"{name} pair {number}", x, 2)
    s = norm(jnp.concatenate([single, inputs["target"].astype(F32)], -1))
    s = exact(w, f"{name} single", s, SINGLE)
    atoms = linear(w, f"{name} reference", inputs["reference"], ATOM)
    atoms = atoms + exact(w, f"{name} of tokens", norm(single), ATOM)[inputs["token_of_atom"]]
    keys = atoms.reshape(-1, ATOM)[inputs["keys"]]
    y = exact(w, f"{name} of pairs", norm(x), 16)
    y = y[inputs["token_of_atom"][:, :, None], inputs["token_of_key"][:, None]]
    y = y + linear(w, f"{name} row", jax.nn.relu(atoms), 16)[:, :, None]
    y = y + linear(w, f"{name} column", jax.nn.relu(keys), 16)[:, None]
    y = y + exact(w, f"{name} offsets", inputs["offsets"], 16)
    z = y
    for number in range(3):
        z = linear(w, f"{name} mlp {number}", jax.nn.relu(z), 16)
    y = norm(y + z)
    shared = {"pair": norm(x), "single": s, "atoms": atoms, "keys": keys}
    for part in ("encoder", "decoder"):
        biases = linear(w, f"{name} {part}", y, 12).reshape(*y.shape[:3], 3, 4)
        shared[part] = biases.transpose(3, 0, 4, 1, 2)
    return shared


def denoise(w: Weights, name: str, inputs: Any, shared: Any, noisy: Any, noise: Any) -> Any:
    tokens, home = len(shared["single"]), inputs["token_of_atom"]
    waves = jnp.cos(noise[:, None] * w(f"{name} waves", 256))
    s = shared["single"] + exact(w, f"{name} noise", norm(waves), SINGLE)[:, None]
    for number in range(2):
        s = transition(w, f"{name} single {number}", s, 2)
    atoms = exact(w, f"{name} positions", noisy, ATOM) + shared["atoms"]
    atoms = of_atoms(w, f"{name} encoder", inputs, shared, atoms, shared["encoder"])
    x = jax.nn.relu(linear(w, f"{name} aggregate", atoms, TOKEN))
    # A token's 24 atoms are adjacent.
    x = x.reshape(SAMPLES, tokens, 24, TOKEN).mean(2)
    x = x + exact(w, f"{name} condition", norm(s), TOKEN)

    def four(w: Weights, x: Any) -> Any:
        biases = linear(w, "bias", shared["pair"], 64).reshape(tokens, tokens, 4, 16)
        return w.stack(
            "blocks",
            4,
            lambda w, x, bias: adaptive(w, x, x, s, s, bias, 16),
            x,
            biases.transpose(2, 3, 0, 1),
        )

    x = norm(w.stack(f"{name} tokens", 6, four, x))
    atoms = atoms + linear(w, f"{name} spread", x, ATOM)[:, home]
    atoms = of_atoms(w, f"{name} decoder", inputs, shared, atoms, shared["decoder"])
    return noisy - noise[:, None, None, None] * exact(w, f"{name} moved", norm(atoms), 3)


def of_atoms(w: Weights, name: str, inputs: Any, shared: Any, x: Any, biases: Any) -> Any:
    """Three blocks of attention from windows of 32 atoms to 128."""

    def block(w: Weights, x: Any, bias: Any) -> Any:
        keys = x.reshape(SAMPLES, -1, ATOM)[:, inputs["keys"]]
        return adaptive(w, x, keys, shared["atoms"], shared["keys"], bias, 4)

    return w.stack(name, 3, block, x, biases)


def adaptive(w: Weights, x: Any, keys: Any, s: Any, keys_s: Any, bias: Any, heads: int) -> Any:
    """Attention and a transition, each normalised and scaled by conditions `s`."""
    width = x.shape[-1]

    def scaled(name: str, x: Any, s: Any) -> Any:
        y = norm(s)
        scale = jax.nn.sigmoid(linear(w, f"{name} scale", y, width))
        return norm(x) * scale + linear(w, f"{name} shift", y, width)

    def out(name: str, x: Any) -> Any:
        return x * jax.nn.sigmoid(linear(w, f"{name} out scale", s, width))

    y = scaled("queries", x, s)
    keys = scaled("keys", keys, keys_s) if keys is not x else y
    x = x + out("attention", attention(w, "", y, keys, bias, heads))
    y = gated(w, "up", scaled("transition", x, s), 2 * width, jax.nn.silu)
    return x + out("transition", linear(w, "down", y, width))


# --- Confidences of one sample


def confidence(w: Weights, name: str, inputs: Any, pair: Any, single: Any, atoms: Any) -> Any:
    tokens, target = len(single), inputs["target"]
    x = pair.astype(BF16) + linear(w, f"{name} left", target, PAIR)[:, None]
    x = x + linear(w, f"{name} right", target, PAIR)[None]
    places = atoms.reshape(tokens, 24, 3)[:, 1]
    distances = ((places[:, None] - places) ** 2).sum(-1, keepdims=True)
    x = x + linear(w, f"{name} bins", (distances > jnp.arange(39.0)).astype(BF16), PAIR)
    x, s = w.stack(f"{name} pairformer", 4, pairformer, (x, single.astype(BF16)))
    x = norm(x.astype(F32))
    half = linear(w, f"{name} distances", x, 64)
    of_distances = jax.nn.softmax(half + half.swapaxes(0, 1)) @ jnp.arange(64.0)
    errors = jax.nn.softmax(linear(w, f"{name} errors", x, 64))
    plddt = linear(w, f"{name} atoms", norm(s.astype(F32)), 24 * 50).reshape(tokens, 24, 50)
    return (
        of_distances,
        errors @ jnp.arange(64.0),
        errors @ (1 / (1 + jnp.arange(64.0) ** 2)),
        jax.nn.softmax(plddt) @ jnp.arange(50.0),
    )
