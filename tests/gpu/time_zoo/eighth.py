"""An eighth zoo: hot steps as thirty public projects have them, in and beyond machine learning.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from fourth import attend, norm, program, weight
from jax import lax
from sixth import full, kernel

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
I8, U8, U32 = jnp.int8, jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def eighth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(proteins, voices, deltas, classifiers, retrieval, detectors, pretraining, preferences),
        *(drafts, grammars, samplers, tables, dreams, series),
        *(chemistry, fluids, geology, imaging, telescopes, options, solvers, posteriors),
        *(genetics, games, traffic, rendering, networks, quantum),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def turned(x: Any, places: Any) -> Any:
    """Heads whose halves are rotated by the places of their tokens."""
    speed = 10000.0 ** (-jnp.arange(0, 1, 2 / x.shape[-1]))
    angle = places[..., None, None] * speed
    first, second = jnp.split(x.astype(F32), 2, -1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    both = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(both, -1).astype(x.dtype)


def causal(x: Any, p: Any, heads: int) -> Any:
    """A block of a decoder, with GELU."""
    b, s, d = x.shape
    q, k, v = jnp.moveaxis((norm(x, 1.0) @ p["qkv"]).reshape(b, s, 3, heads, -1), 2, 0)
    mask = jnp.where(jnp.tril(jnp.ones((s, s), bool)), 0.0, -1e9)
    x = x + attend(q, k, v, mask).reshape(b, s, d) @ p["out"]
    return x + jax.nn.gelu(norm(x, 1.0) @ p["up"]) @ p["down"]


def proteins() -> Zoo:
    """Pairs of residues that change each other by way of every third residue."""

    def pairs(params: Any, z: Any, known: Any) -> Any:
        n = z.shape[0]
        mask = (known > 0)[:, None] & (known > 0)
        bias = jnp.where(mask, 0.0, -1e9)[:, None, None]

        def product(z: Any, p: Any, way: str) -> Any:
            y = norm(z, 1.0)
            sides = jax.nn.sigmoid(y @ p["gates"]) * (y @ p["sides"]) * mask[..., None]
            left, right = jnp.split(sides.astype(BF16), 2, -1)
            found = norm(jnp.einsum(way, left, right), 1.0) @ p["out"]
            return z + jax.nn.sigmoid(y @ p["gate"]) * found

        def rows(z: Any, p: Any) -> Any:
            y = norm(z, 1.0)
            q, k, v, gate = jnp.moveaxis((y @ p["parts"]).reshape(n, n, 4, 4, 32), 2, 0)
            found = attend(q, k, v, bias + (y @ p["bias"]).astype(F32).transpose(2, 0, 1))
            return z + (jax.nn.sigmoid(gate) * found).reshape(n, n, -1) @ p["back"]

        def block(z: Any, p: Any) -> Any:
            z = product(z, jax.tree.map(lambda x: x[0], p["products"]), "ikc,jkc->ijc")
            z = product(z, jax.tree.map(lambda x: x[1], p["products"]), "kic,kjc->ijc")
            z = rows(z, jax.tree.map(lambda x: x[0], p["rows"]))
            z = rows(z.swapaxes(0, 1), jax.tree.map(lambda x: x[1], p["rows"])).swapaxes(0, 1)
            return z + jax.nn.relu(norm(z, 1.0) @ p["up"]) @ p["down"], None

        return lax.scan(block, z, params)[0]

    c, two = 128, (2, 2)
    products = {"gates": weight(*two, c, 2 * c), "sides": weight(*two, c, 2 * c)}
    products |= {"gate": weight(*two, c, c), "out": weight(*two, c, c)}
    rows = {"parts": weight(*two, c, 4 * c), "bias": weight(*two, c, 4), "back": weight(*two, c, c)}
    params = {"products": products, "rows": rows}
    params |= {"up": weight(2, c, 4 * c), "down": weight(2, 4 * c, c)}
    yield "pairs", program(pairs, params, Arg((230, 230, c), BF16), Arg((230,), I32, below=12))


def voices() -> Zoo:
    """Spectra that become a wave, by transposed convolutions and dilated ones."""

    names = ("NWC", "WIO", "NWC")

    def vocoder(mel: Any, first: Any, stages: Any, last: Any) -> Any:
        x = lax.conv_general_dilated(mel, first, (1,), "SAME", dimension_numbers=names)
        for (up, blocks), stride in zip(stages, (8, 6, 4), strict=True):
            x = jax.nn.leaky_relu(x, 0.1)
            x = lax.conv_transpose(x, up, (stride,), "SAME", dimension_numbers=names)
            total = jnp.zeros_like(x)
            for pairs in blocks:
                y = x
                for pair, wide in zip(pairs, (1, 3), strict=True):
                    z = y
                    for w, by in zip(pair, (wide, 1), strict=True):
                        z = lax.conv_general_dilated(
                            jax.nn.leaky_relu(z, 0.1), w, (1,), "SAME",
                            rhs_dilation=(by,), dimension_numbers=names,
                        )  # fmt: skip
                    y = y + z
                total = total + y
            x = total / len(blocks)
        x = jax.nn.leaky_relu(x)
        return jnp.tanh(lax.conv_general_dilated(x, last, (1,), "SAME", dimension_numbers=names))

    stages = []
    for stride, width in ((8, 192), (6, 96), (4, 48)):
        blocks = [[[kernel(n, width, width)] * 2] * 2 for n in (3, 7)]
        stages.append((kernel(2 * stride, 2 * width, width), blocks))
    first, last = kernel(7, 80, 384), kernel(7, 48, 1)
    yield "vocoder", program(vocoder, Arg((5, 130, 80), BF16), first, stages, last)


def deltas() -> Zoo:
    """A memory that each token corrects and that decays, in chunks of 64 tokens."""

    def gated(weights: Any, x: Any) -> Any:
        heads, size = 8, 64

        def loss(weights: Any) -> Any:
            b, s, _ = x.shape
            y = norm(x, 1.0)
            mixed, gate, rates = y @ weights["in"], y @ weights["gate"], y @ weights["rates"]
            before = jnp.pad(mixed, ((0, 0), (3, 0), (0, 0)))
            mixed = jax.nn.silu(sum(before[:, n : n + s] * weights["taps"][n] for n in range(4)))
            parts = mixed.reshape(b, s // size, size, 3, heads, -1).astype(F32)
            q, k, v = parts.transpose(3, 0, 4, 1, 2, 5)
            q, k = (z * lax.rsqrt((z * z).sum(-1, keepdims=True) + 1e-6) for z in (q, k))
            rates = rates.reshape(b, s // size, size, 2, heads).astype(F32).transpose(3, 0, 4, 1, 2)
            beta = jax.nn.sigmoid(rates[0])[..., None]
            decay = jnp.cumsum(-jax.nn.softplus(rates[1] - 3), -1)
            apart = jnp.exp(jnp.tril(decay[..., :, None] - decay[..., None, :]))
            inner = jnp.tril(beta * (k @ k.swapaxes(-1, -2)) * apart, -1) + jnp.eye(size)
            given = beta * jnp.concatenate([v, k * jnp.exp(decay)[..., None]], -1)
            given = lax.linalg.triangular_solve(inner, given, left_side=True, lower=True)
            new, old = jnp.split(given, 2, -1)
            near = jnp.tril(q @ k.swapaxes(-1, -2) * apart)

            def chunk(state: Any, row: Any) -> Any:
                q, k, new, old, near, decay = row
                fresh = new - old @ state
                found = (q * jnp.exp(decay)[..., None]) @ state + near @ fresh
                left = jnp.exp(decay[..., -1:] - decay)[..., None]
                state = state * jnp.exp(decay[..., -1])[..., None, None]
                return state + (k * left).swapaxes(-1, -2) @ fresh, found

            rows = [jnp.moveaxis(z, 2, 0) for z in (q, k, new, old, near, decay)]
            _, found = lax.scan(chunk, jnp.zeros((b, heads, q.shape[-1], v.shape[-1])), rows)
            found = norm(found, 1.0).transpose(1, 0, 3, 2, 4).reshape(b, s, -1).astype(BF16)
            return ((x + (found * jax.nn.silu(gate)) @ weights["out"]).astype(F32) ** 2).mean()

        return jax.value_and_grad(loss)(weights)

    d = 768
    weights = {"in": weight(d, 3 * d), "gate": weight(d, d), "rates": weight(d, 16)}
    weights |= {"out": weight(d, d), "taps": Arg((4, 3 * d), BF16, scale=0.5)}
    yield "gated", program(gated, weights, Arg((3, 1344, d), BF16))


def classifiers() -> Zoo:
    """Wide depthwise windows with mixed pictures, and layers that are left out at random."""

    names = ("NHWC", "HWIO", "NHWC")

    def windows(params: Any, pictures: Any, labels: Any, key: Any) -> Any:
        def layer(x: Any, row: Any) -> Any:
            p, kept = row
            c = x.shape[-1]
            y = lax.conv_general_dilated(
                x, p["deep"], (1, 1), "SAME", dimension_numbers=names, feature_group_count=c
            )
            y = jax.nn.gelu(norm(y, p["scale"]) @ p["up"]) @ p["down"] * p["gain"]
            return x + jnp.where(kept[:, None, None, None], y / 0.9, 0).astype(BF16), None

        def loss(params: Any) -> Any:
            share, alive = jax.random.split(key)
            part = jax.random.uniform(share)
            x = (part * pictures + (1 - part) * pictures[::-1]).astype(BF16)
            goal = jax.nn.one_hot(labels, 1000)
            goal = part * goal + (1 - part) * goal[::-1]
            x = lax.conv_general_dilated(x, params["stem"], (16, 16), "SAME", None, None, names)
            kept = jax.random.bernoulli(alive, 0.9, (3, x.shape[0]))
            x, _ = lax.scan(jax.checkpoint(layer), norm(x, 1.0), (params["layers"], kept))
            logits = norm(x.mean((1, 2)), 1.0) @ params["head"]
            return -(goal * jax.nn.log_softmax(logits.astype(F32), -1)).sum(-1).mean()

        return jax.value_and_grad(loss)(params)

    c, n = 320, 3
    layers = {"deep": Arg((n, 7, 7, 1, c), BF16, scale=1 / 7), "scale": Arg((n, c))}
    layers |= {"up": weight(n, c, 4 * c), "down": weight(n, 4 * c, c), "gain": Arg((n, c), BF16)}
    params = {"layers": layers, "stem": kernel(16, 16, 3, c), "head": weight(c, 1000)}
    batch = (Arg((36, 224, 224, 3)), Arg((36,), I32, below=1000))
    yield "windows", program(windows, params, *batch, _KEY)


def retrieval() -> Zoo:
    """Two towers that tell items of a batch apart, and updates of only the rows they read."""

    def towers(table: Any, squares: Any, dense: Any, past: Any, item: Any, often: Any) -> Any:
        ids = jnp.concatenate([past, item[:, None]], 1)

        def loss(rows: Any, dense: Any) -> Any:
            seen = (past % 7 > 0)[..., None]
            user = (rows[:, :-1] * seen).sum(1) / (seen.sum(1) + 1)
            other = rows[:, -1]
            for w in dense[:2]:
                user = jax.nn.relu(user @ w)
            user, other = user @ dense[2], jax.nn.relu(other @ dense[3]) @ dense[4]
            user, other = (x / (jnp.linalg.norm(x, axis=-1) + 1e-6)[:, None] for x in (user, other))
            scores = 20 * user @ other.T - often
            twice = (item[:, None] == item) & ~jnp.eye(item.shape[0], dtype=bool)
            logs = jax.nn.log_softmax(jnp.where(twice, -1e9, scores), -1)
            return -jnp.diagonal(logs).mean()

        value, (slope, change) = jax.value_and_grad(loss, (0, 1))(table[ids], dense)
        dense = jax.tree.map(lambda w, g: w - 0.01 * g, dense, change)
        flat = ids.ravel()
        order = jnp.argsort(flat)
        flat = flat[order]
        first = jnp.concatenate([jnp.ones(1, bool), flat[1:] != flat[:-1]])
        run = jnp.cumsum(first) - 1
        total = jax.ops.segment_sum(
            slope.reshape(-1, slope.shape[-1])[order], run, flat.shape[0], indices_are_sorted=True
        )
        row = jnp.full(flat.shape, table.shape[0], I32).at[run].set(flat)
        squares = squares.at[row].add((total * total).mean(-1), mode="drop")
        step = total * lax.rsqrt(jnp.abs(squares.at[row].get(mode="clip")) + 1e-6)[:, None]
        return table.at[row].add(-0.05 * step, mode="drop"), squares, dense, value

    d, items = 96, 300000
    dense = [full(d, 384), full(384, 256), full(256, 64), full(d, 256), full(256, 64)]
    batch = (Arg((1800, 25), I32, below=items), Arg((1800,), I32, below=items), Arg((1800,)))
    yield "towers", program(towers, Arg((items, d)), Arg((items,)), dense, *batch)


_LEVELS = ((64, 80), (32, 40), (16, 20), (8, 10))


def detectors() -> Zoo:
    """Every pixel of four sizes reads a few places of each size, which it chooses."""

    def deformable(x: Any, p: Any) -> Any:
        b, s, d = x.shape
        spots = [
            jnp.stack(jnp.meshgrid(*((jnp.arange(n) + 0.5) / n for n in size), indexing="ij"), -1)
            for size in _LEVELS
        ]
        centre = jnp.concatenate([spot.reshape(-1, 2) for spot in spots])
        move = (x @ p["moves"]).astype(F32).reshape(b, s, 8, 4, 4, 2)
        share = jax.nn.softmax((x @ p["shares"]).astype(F32).reshape(b, s, 8, 16), -1)
        share = share.reshape(b, s, 8, 4, 4)
        value = (x @ p["value"]).reshape(b, s, 8, 32).swapaxes(1, 2)
        total, start = jnp.zeros((b, 8, s, 32)), 0
        for level, (h, w) in enumerate(_LEVELS):
            size = jnp.array([h, w])
            part = value[:, :, start : start + h * w]
            start += h * w
            place = centre[:, None, None] * size + move[:, :, :, level] - 0.5
            low = jnp.floor(place)
            high = place - low
            for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
                cell = low.astype(I32) + jnp.array([dy, dx])
                inside = ((cell >= 0) & (cell < size)).all(-1)
                cell = cell.clip(0, size - 1)
                index = (cell[..., 0] * w + cell[..., 1]).swapaxes(1, 2).reshape(b, 8, -1, 1)
                found = jnp.take_along_axis(part, index, 2).reshape(b, 8, s, 4, 32)
                near = jnp.abs(1 - dy - high[..., 0]) * jnp.abs(1 - dx - high[..., 1])
                near = (near * share[:, :, :, level] * inside).swapaxes(1, 2)
                total = total + (found * near[..., None]).sum(3)
        x = norm(x + total.swapaxes(1, 2).reshape(b, s, d).astype(x.dtype) @ p["out"], 1.0)
        return norm(x + jax.nn.relu(x @ p["up"]) @ p["down"], 1.0)

    p = {"moves": weight(256, 256), "shares": weight(256, 128), "value": weight(256, 256)}
    p |= {"out": weight(256, 256), "up": weight(256, 1024), "down": weight(1024, 256)}
    yield "deformable", program(deformable, Arg((3, 6800, 256), BF16), p)


def pretraining() -> Zoo:
    """Documents packed in rows, with capped scores, and two gradients before one update."""

    def packed(params: Any, moments: Any, tokens: Any, breaks: Any) -> Any:
        def layer(x: Any, p: Any, mask: Any, places: Any) -> Any:
            b, s, _ = x.shape
            y = norm(x, p["scale"])
            q = turned((y @ p["q"]).reshape(b, s, 8, 80), places).reshape(b, s, 4, 2, 80)
            k, v = jnp.split((y @ p["kv"]).reshape(b, s, 8, 80), 2, 2)
            scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, turned(k, places)).astype(F32)
            scores = 50 * jnp.tanh(scores * (80**-0.5 / 50)) + mask
            shares = jax.nn.softmax(scores, -1).astype(BF16)
            found = jnp.einsum("bgrqk,bkgd->bqgrd", shares, v).reshape(b, s, -1)
            x = x + norm(found @ p["out"], 1.0)
            gate, up = jnp.split(norm(x, 1.0) @ p["up"], 2, -1)
            return x + norm((jax.nn.gelu(gate) * up) @ p["down"], 1.0)

        def loss(params: Any, tokens: Any, breaks: Any) -> Any:
            params = jax.tree.map(lambda p: p.astype(BF16), params)
            at = jnp.arange(tokens.shape[1])
            starts = breaks == 0
            document = jnp.cumsum(starts, 1)
            places = at - lax.cummax(jnp.where(starts, at, 0), axis=1)
            seen = (document[:, :, None] == document[:, None]) & (at[:, None] >= at)
            near = seen & (at[:, None] - at < 384)
            masks = [jnp.where(m, 0.0, -1e9)[:, None, None] for m in (near, seen)]

            def two(x: Any, p: Any) -> Any:
                for n, mask in enumerate(masks):
                    x = layer(x, jax.tree.map(lambda w, n=n: w[n], p), mask, places)
                return x, None

            x = params["table"][tokens] * 25
            x, _ = lax.scan(jax.checkpoint(two), x, params["layers"])
            logits = 30 * jnp.tanh((norm(x, 1.0) @ params["table"].T).astype(F32) / 30)
            logs = jax.nn.log_softmax(logits[:, :-1], -1)
            logs = jnp.take_along_axis(logs, tokens[:, 1:, None], -1)[..., 0]
            kept = ~starts[:, 1:]
            return -(logs * kept).sum() / kept.sum()

        def part(total: Any, batch: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(params, *batch)
            return jax.tree.map(jnp.add, total, gradient), value

        zero = jax.tree.map(jnp.zeros_like, params)
        gradient, values = lax.scan(part, zero, (tokens, breaks))
        size = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(gradient)))
        gradient = jax.tree.map(lambda g: g * jnp.minimum(1, 1 / size), gradient)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
        var = jax.tree.map(lambda v, g: 0.95 * jnp.abs(v) + 0.05 * g * g, moments[1], gradient)
        params = jax.tree.map(
            lambda p, m, v: 0.9999 * p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, mean, var
        )
        return params, (mean, var), values.mean()

    d, n = 640, (2, 2)
    layers = {"q": full(*n, d, d), "kv": full(*n, d, d), "out": full(*n, d, d)}
    layers |= {"up": full(*n, d, 3520), "down": full(*n, 1760, d), "scale": Arg((*n, d))}
    params = {"table": Arg((36000, d), scale=0.02), "layers": layers}
    batch = (Arg((2, 2, 1000), I32, below=36000), Arg((2, 2, 1000), I32, below=250))
    yield "packed", program(packed, params, (params, params), *batch)


def preferences() -> Zoo:
    """Answers that were liked and disliked, by a model and by the one that it started from."""

    def direct(policy: Any, reference: Any, tokens: Any, answers: Any) -> Any:
        at = jnp.arange(tokens.shape[1] - 1)
        chosen = at >= answers[:, None]

        def logs(params: Any) -> Any:
            x = params["table"][tokens[:, :-1]]
            x, _ = lax.scan(
                jax.checkpoint(lambda x, p: (causal(x, p, 14), None)), x, params["layers"]
            )

            def row(given: Any) -> Any:
                x, goal, mask = given
                logits = (norm(x, 1.0) @ params["head"]).astype(F32)
                found = jnp.take_along_axis(logits, goal[:, None], 1)[:, 0]
                return ((found - jax.nn.logsumexp(logits, -1)) * mask).sum()

            return lax.map(jax.checkpoint(row), (x, tokens[:, 1:], chosen))

        start = logs(reference)

        def loss(policy: Any) -> Any:
            gain = 0.1 * (logs(policy) - start)
            good, bad = jnp.split(gain, 2)
            return -jax.nn.log_sigmoid(good - bad).mean(), (good > bad).mean()

        (value, right), gradient = jax.value_and_grad(loss, has_aux=True)(policy)
        return (
            jax.tree.map(lambda p, g: p - (1e-4 * g).astype(BF16), policy, gradient),
            value,
            right,
        )

    d, n = 896, 2
    layers = {"qkv": weight(n, d, 3 * d), "out": weight(n, d, d), "up": weight(n, d, 4 * d)}
    layers |= {"down": weight(n, 4 * d, d)}
    params = {"table": Arg((32000, d), BF16), "head": weight(d, 32000), "layers": layers}
    batch = (Arg((8, 481), I32, below=32000), Arg((8,), I32, below=300))
    yield "direct", program(direct, params, params, *batch)


def drafts() -> Zoo:
    """A tree of guessed tokens that a model checks in one pass, and the longest right path."""

    def tree(p: Any, caches: Any, nodes: Any, parents: Any, lengths: Any) -> Any:
        b, n = nodes.shape
        parents = jnp.minimum(parents, jnp.arange(n) - 1).clip(0)
        walk = [jnp.arange(n)]
        for _ in range(5):
            walk.append(parents[walk[-1]])
        above = sum(jax.nn.one_hot(at, n) for at in walk) > 0
        depth = sum((at > 0).astype(I32) for at in walk)
        places = lengths[:, None] + depth
        old = jnp.arange(caches.shape[3]) < lengths[:, None, None]
        mask = jnp.concatenate(
            [jnp.broadcast_to(old, (b, n, old.shape[-1])), jnp.broadcast_to(above, (b, n, n))], -1
        )
        mask = jnp.where(mask, 0.0, -1e9)[:, None, None]

        def layer(x: Any, row: Any) -> Any:
            w, cache = row
            parts = (norm(x, 1.0) @ w["qkv"]).reshape(b, n, 36, 64)
            q = turned(parts[:, :, :24], places).reshape(b, n, 6, 4, 64)
            new = jnp.stack([turned(parts[:, :, 24:30], places), parts[:, :, 30:]])
            k, v = jnp.concatenate([cache, new], 2)
            scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, k).astype(F32) / 8 + mask
            shares = jax.nn.softmax(scores, -1).astype(BF16)
            found = jnp.einsum("bgrqk,bkgd->bqgrd", shares, v).reshape(b, n, -1)
            x = x + found @ w["out"]
            gate, up = jnp.split(norm(x, 1.0) @ w["up"], 2, -1)
            return x + (jax.nn.silu(gate) * up) @ w["down"], new

        x, new = lax.scan(layer, p["table"][nodes], (p["layers"], caches))
        guess = (norm(x, 1.0) @ p["head"]).argmax(-1)
        right = (guess[:, parents] == nodes) | (jnp.arange(n) == 0)
        right = jnp.stack([right[:, at] for at in walk]).all(0)
        best = jnp.where(right, depth, -1).argmax(-1)
        path = jnp.stack([at[best] for at in walk[::-1]], -1)
        kept = jnp.take_along_axis(new, path[None, None, :, :, None, None], 3)
        write = jax.vmap(
            lambda c, k, at: lax.dynamic_update_slice(c, k, (0, 0, at, 0, 0)), (2, 2, 0), 2
        )
        return write(caches, kept, lengths), path, jnp.take_along_axis(guess, best[:, None], 1)

    d = 1536
    layers = {"qkv": weight(3, d, 36 * 64), "out": weight(3, d, d), "up": weight(3, d, 8192)}
    layers |= {"down": weight(3, 4096, d)}
    p = {"layers": layers, "table": Arg((49152, d), BF16), "head": weight(d, 49152)}
    given = (Arg((10, 42), I32, below=49152), Arg((42,), I32, below=42))
    caches = Arg((3, 2, 10, 1900, 6, 64), BF16)
    yield "tree", program(tree, p, caches, *given, Arg((10,), I32, below=1800))


def grammars() -> Zoo:
    """The next token where a grammar allows only some, with counts and the likeliest twenty."""

    def constrained(logits: Any, bits: Any, counts: Any, bias: Any, heat: Any, key: Any) -> Any:
        wide = logits.astype(F32)
        logs = jax.nn.log_softmax(wide, -1)
        best = lax.top_k(logs, 20)
        allowed = (bits[:, :, None] >> jnp.arange(32, dtype=U32)) & 1
        allowed = allowed.reshape(bits.shape[0], -1)[:, : wide.shape[-1]] > 0
        wide = wide + bias - 0.4 * counts - 0.2 * (counts > 0)
        wide = jnp.where(allowed, wide, -jnp.inf) / (0.3 + jax.nn.sigmoid(heat))[:, None]
        shares = jax.nn.softmax(wide, -1)
        wide = jnp.where(shares < 0.05 * shares.max(-1, keepdims=True), -jnp.inf, wide)
        token = (wide + jax.random.gumbel(key, wide.shape)).argmax(-1)
        counts = counts.at[jnp.arange(token.shape[0]), token].add(1)
        return token, counts, jnp.take_along_axis(logs, token[:, None], 1), best

    rows, words = 36, 151936
    given = (Arg((rows, words), BF16), Arg((rows, words // 32), U32, below=1 << 30))
    counts = Arg((rows, words), I32, below=3)
    yield "constrained", program(constrained, *given, counts, Arg((words,)), Arg((rows,)), _KEY)


def samplers() -> Zoo:
    """Two steps of a flow in which text and image attend to both, and its decoder to pixels."""

    def joint(p: Any, x: Any, text: Any, steps: Any) -> Any:
        d = text.shape[-1]

        def modulated(y: Any, shift: Any, scale: Any) -> Any:
            return norm(y, 1.0) * (1 + scale[:, None]) + shift[:, None]

        def block(carry: Any, row: Any) -> Any:
            streams, time = carry
            changes, parts = [], []
            for n, y in enumerate(streams):
                changes.append(jnp.split(jax.nn.silu(time) @ row["change"][n], 6, -1))
                qkv = modulated(y, *changes[n][:2]) @ row["qkv"][n]
                q, k, v = jnp.moveaxis(qkv.reshape(*y.shape[:2], 3, -1, 64), 2, 0)
                parts.append((norm(q, 1.0), norm(k, 1.0), v))
            q, k, v = (jnp.concatenate(pair, 1) for pair in zip(*parts, strict=True))
            found = attend(q, k, v).reshape(*q.shape[:2], d)
            found = jnp.split(found, [streams[0].shape[1]], 1)
            after = []
            for n, before in enumerate(streams):
                gate, shift, scale, last = changes[n][2:]
                y = before + gate[:, None] * (found[n] @ row["out"][n])
                z = jax.nn.gelu(modulated(y, shift, scale) @ row["up"][n]) @ row["down"][n]
                after.append(y + last[:, None] * z)
            return (tuple(after), time), None

        def speed(x: Any, at: Any) -> Any:
            b, h, w, c = x.shape
            y = x.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
            y = y.reshape(b, -1, 4 * c).astype(BF16) @ p["in"] + p["place"]
            waves = 1000 * at * 10000.0 ** (-jnp.arange(128) / 128)
            time = jnp.concatenate([jnp.sin(waves), jnp.cos(waves)]).astype(BF16) @ p["time"]
            time = jnp.broadcast_to(time, (2 * b, d))
            streams = (jnp.concatenate([y, y]), text)
            ((y, _), _), _ = lax.scan(block, (streams, time), p["blocks"])
            y = (norm(y, 1.0) @ p["last"]).astype(F32)
            y = y.reshape(2 * b, h // 2, w // 2, 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
            told, free = jnp.split(y.reshape(2 * b, h, w, c), 2)
            return free + 4.5 * (told - free)

        def move(n: Any, x: Any) -> Any:
            return x + 0.05 * steps[n] * speed(x, steps[n])

        return lax.fori_loop(0, 2, move, x)

    d, n = 1152, (4, 2)
    blocks = {"change": weight(*n, d, 6 * d), "qkv": weight(*n, d, 3 * d), "out": weight(*n, d, d)}
    blocks |= {"up": weight(*n, d, 4 * d), "down": weight(*n, 4 * d, d)}
    p = {"blocks": blocks, "in": weight(64, d), "last": weight(d, 64), "time": weight(256, d)}
    p |= {"place": Arg((960, d), BF16)}
    yield "joint", program(joint, p, Arg((2, 60, 64, 16)), Arg((4, 154, d), BF16), Arg((2,)))

    def decoded(x: Any, first: Any, stages: Any, last: Any) -> Any:
        def around(x: Any, w: Any) -> Any:
            return lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        def grouped(x: Any) -> Any:
            y = x.astype(F32).reshape(*x.shape[:3], 32, -1)
            mean, var = y.mean((1, 2, 4), keepdims=True), y.var((1, 2, 4), keepdims=True)
            return jax.nn.silu(((y - mean) * lax.rsqrt(var + 1e-6)).reshape(x.shape)).astype(BF16)

        x = around(x, first)
        for n, (one, two, skip, up) in enumerate(stages):
            x = x @ skip + around(grouped(around(grouped(x), one)), two)
            b, h, w, c = x.shape
            if n == 0:
                y = grouped(x).reshape(b, h * w, 1, c)
                x = x + attend(y, y, y).reshape(x.shape)
            x = around(jax.image.resize(x, (b, 2 * h, 2 * w, c), "nearest"), up)
        pixels = around(grouped(x), last).astype(F32)
        return jnp.round(127.5 * (1 + jnp.clip(pixels, -1, 1))).astype(U8)

    stages = [
        (kernel(3, 3, a, b), kernel(3, 3, b, b), weight(a, b), kernel(3, 3, b, b))
        for a, b in ((448, 448), (448, 256), (256, 128))
    ]
    given = (Arg((2, 44, 60, 16), BF16), kernel(3, 3, 16, 448), stages, kernel(3, 3, 128, 3))
    yield "decoded", program(decoded, *given)


def tables() -> Zoo:
    """Cells of a table that attend to their row, then to the labelled rows of their column."""

    def columns(p: Any, cells: Any, labels: Any) -> Any:
        known = labels.shape[0]
        mean, spread = cells[:known].mean(0), cells[:known].std(0) + 1e-6
        x = jnp.clip((cells - mean) / spread, -8, 8)[..., None].astype(BF16) * p["cell"]
        goal = jnp.zeros((x.shape[0] - known, x.shape[-1]), BF16) + p["unknown"]
        goal = jnp.concatenate([p["labels"][labels], goal])
        x = jnp.concatenate([x + p["column"], goal[:, None]], 1)

        def layer(x: Any, w: Any) -> Any:
            r, c, d = x.shape
            q, k, v = jnp.moveaxis((norm(x, 1.0) @ w["qkv"][0]).reshape(r, c, 3, 6, -1), 2, 0)
            x = x + attend(q, k, v).reshape(r, c, d) @ w["out"][0]
            y = norm(x, 1.0).swapaxes(0, 1)
            q, k, v = jnp.moveaxis((y @ w["qkv"][1]).reshape(c, r, 3, 6, -1), 2, 0)
            y = attend(q, k[:, :known], v[:, :known]).reshape(c, r, d) @ w["out"][1]
            x = x + y.swapaxes(0, 1)
            return x + jax.nn.gelu(norm(x, 1.0) @ w["up"]) @ w["down"], None

        x, _ = lax.scan(layer, x, p["layers"])
        logits = jax.nn.gelu(norm(x[known:, -1], 1.0) @ p["hidden"]) @ p["head"]
        return jax.nn.softmax(logits.astype(F32) / 0.9, -1)

    d, n = 192, 3
    layers = {"qkv": weight(n, 2, d, 3 * d), "out": weight(n, 2, d, d)}
    layers |= {"up": weight(n, d, 4 * d), "down": weight(n, 4 * d, d)}
    p = {"layers": layers, "cell": Arg((d,), BF16), "unknown": Arg((d,), BF16)}
    p |= {"labels": Arg((10, d), BF16), "column": Arg((19, d), BF16)}
    p |= {"hidden": weight(d, 384), "head": weight(384, 10)}
    yield "columns", program(columns, p, Arg((1150, 19)), Arg((900,), I32, below=10))


def dreams() -> Zoo:
    """An actor that learns in a world of drawn classes, which a network imagines."""

    def imagined(world: Any, actor: Any, critic: Any, start: Any, key: Any) -> Any:
        bins = jnp.linspace(-20, 20, 255)

        def mlp(ws: Any, x: Any) -> Any:
            for w in ws[:-1]:
                x = jax.nn.silu(norm(x @ w, 1.0))
            return (x @ ws[-1]).astype(F32)

        def value(ws: Any, x: Any) -> Any:
            mean = (jax.nn.softmax(mlp(ws, x), -1) * bins).sum(-1)
            return jnp.sign(mean) * (jnp.exp(jnp.minimum(jnp.abs(mean), 10)) - 1)

        def drawn(key: Any, logits: Any) -> Any:
            shares = 0.99 * jax.nn.softmax(logits, -1) + 0.01 / logits.shape[-1]
            one = jax.nn.one_hot(jax.random.categorical(key, jnp.log(shares)), logits.shape[-1])
            return (one + shares - lax.stop_gradient(shares)).astype(BF16)

        def play(actor: Any) -> Any:
            def move(carry: Any, key: Any) -> Any:
                deep, code = carry
                keys = jax.random.split(key)
                x = jnp.concatenate([deep, code], -1)
                logits = mlp(actor, lax.stop_gradient(x))
                act = drawn(keys[0], logits)
                y = jax.nn.silu(norm(jnp.concatenate([code, act], -1) @ world["in"], 1.0))
                gates = norm(jnp.concatenate([y, deep], -1) @ world["gates"], 1.0)
                reset, new, keep = jnp.split(gates, 3, -1)
                new, keep = jnp.tanh(jax.nn.sigmoid(reset) * new), jax.nn.sigmoid(keep - 1)
                deep = keep * new + (1 - keep) * deep
                code = drawn(keys[1], mlp(world["prior"], deep).reshape(-1, 24, 24))
                code = code.reshape(deep.shape[0], -1)
                logs = jax.nn.log_softmax(logits, -1)
                spread = -(jnp.exp(logs) * logs).sum(-1)
                return (deep, code), (jnp.concatenate([deep, code], -1), spread)

            return lax.scan(move, start, jax.random.split(key, 15))[1]

        def loss(actor: Any) -> Any:
            x, spread = play(actor)
            gain, found = value(world["gain"], x), value(critic, x)

            def back(total: Any, row: Any) -> Any:
                gain, found = row
                total = gain + 0.997 * (0.05 * found + 0.95 * total)
                return total, total

            _, goal = lax.scan(back, found[-1], (gain[:-1], found[1:]), reverse=True)
            low, high = jnp.percentile(goal, jnp.array([5.0, 95.0]))
            gap = (goal - found[:-1]) / lax.stop_gradient(jnp.maximum(1, high - low))
            return -(gap + 3e-4 * spread[:-1]).mean(), (x[:-1], goal)

        slope, (x, goal) = jax.grad(loss, has_aux=True)(actor)
        place = (jnp.sign(goal) * jnp.log1p(jnp.abs(goal)) + 20) / 40 * 254
        below = jnp.floor(place).clip(0, 253)
        part = (place - below)[..., None]
        goal = jax.nn.one_hot(below, 255) * (1 - part) + jax.nn.one_hot(below + 1, 255) * part

        def fit(critic: Any) -> Any:
            return -(goal * jax.nn.log_softmax(mlp(critic, x), -1)).sum(-1).mean()

        return slope, jax.grad(fit)(critic)

    deep, code = 640, 24 * 24
    world = {"in": weight(code + 9, deep), "gates": weight(2 * deep, 3 * deep)}
    world |= {"prior": [weight(deep, deep), weight(deep, code)]}
    heads = [[weight(deep + code, 512), weight(512, n)] for n in (255, 9, 255)]
    start = (Arg((900, deep), BF16, scale=0.5), Arg((900, code), BF16, scale=0.2))
    yield "imagined", program(imagined, world | {"gain": heads[0]}, *heads[1:], start, _KEY)


def series() -> Zoo:
    """Forecasts by the delays at which a series is most like itself, apart from its trend."""

    def delayed(p: Any, x: Any, goal: Any) -> Any:
        def split(x: Any) -> Any:
            wide = jnp.pad(x, ((0, 0), (12, 12), (0, 0)), mode="edge")
            trend = lax.reduce_window(wide, 0.0, lax.add, (1, 25, 1), (1, 1, 1), "VALID") / 25
            return x - trend, trend

        def layer(x: Any, p: Any) -> Any:
            length = x.shape[1]
            q, k, v = jnp.split(x @ p["qkv"], 3, -1)
            both = jnp.fft.rfft(q, axis=1) * jnp.conj(jnp.fft.rfft(k, axis=1))
            like = jnp.fft.irfft(both, length, axis=1).mean(-1)
            _, delays = lax.top_k(lax.stop_gradient(like.mean(0)), 11)
            shares = jax.nn.softmax(like[:, delays], -1)
            found = jnp.zeros_like(v)
            for n in range(11):
                moved = v[:, (jnp.arange(length) + delays[n]) % length]
                found = found + shares[:, n, None, None] * moved
            x, one = split(x + found @ p["out"])
            x, two = split(x + jax.nn.gelu(x @ p["up"]) @ p["down"])
            return x, one + two

        def loss(p: Any) -> Any:
            level = x.mean(1, keepdims=True)
            spread = x.std(1, keepdims=True) + 1e-5
            season, trend = split((x - level) / spread)
            season, more = lax.scan(jax.checkpoint(layer), season @ p["in"], p["layers"])
            mixed = season @ p["head"] + trend + more.sum(0) @ p["trend"]
            found = jnp.einsum("btc,ts->bsc", mixed, p["time"]) * spread + level
            return jnp.abs(found - goal).mean()

        return jax.value_and_grad(loss)(p)

    d, n, c = 384, 2, 21
    layers = {"qkv": full(n, d, 3 * d), "out": full(n, d, d), "up": full(n, d, 1024)}
    layers |= {"down": full(n, 1024, d)}
    p = {"layers": layers, "in": full(c, d), "head": full(d, c), "trend": full(d, c)}
    batch = (Arg((28, 336, c)), Arg((28, 96, c)))
    yield "delayed", program(delayed, p | {"time": full(336, 96)}, *batch)


def chemistry() -> Zoo:
    """Forces of charges by a mesh, and energies of electrons by a network of determinants."""

    def ewald(places: Any, charges: Any, near: Any) -> Any:
        grid = (96, 80, 72)

        def energy(places: Any) -> Any:
            cell = (places % 1.0) * jnp.array(grid)
            low = jnp.floor(cell)
            t = cell - low
            terms = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
            w = jnp.stack(terms, -1) / 6
            index = low.astype(I32)[..., None] + jnp.arange(-1, 3)
            index = index % jnp.array(grid)[:, None]
            share = jnp.einsum("ni,nj,nk,n->nijk", w[:, 0], w[:, 1], w[:, 2], charges)
            spot = (index[:, 0, :, None, None], index[:, 1, None, :, None], index[:, 2, None, None])
            waves = jnp.fft.rfftn(jnp.zeros(grid).at[spot].add(share))
            ways = [jnp.fft.fftfreq(n, 1 / n) for n in grid[:2]] + [jnp.arange(37.0)]
            square = sum(k * k for k in jnp.meshgrid(*ways, indexing="ij"))
            green = jnp.where(square > 0, jnp.exp(-square / 300) / jnp.maximum(square, 1), 0)
            green = green * jnp.where((ways[2] > 0) & (ways[2] < 36), 2, 1)
            far = (green * (waves.real**2 + waves.imag**2)).sum()
            gap = places[:, None] - places[near]
            gap = gap - jnp.round(gap)
            length = jnp.sqrt((gap * gap).sum(-1) + 1e-6)
            close = charges[:, None] * charges[near] * jax.scipy.special.erfc(9 * length) / length
            return far + 0.5 * jnp.where(length < 0.3, close, 0).sum()

        value, slope = jax.value_and_grad(energy)(places)
        return value, -slope

    atoms = 24000
    near = Arg((atoms, 48), I32, below=atoms)
    yield "ewald", program(ewald, Arg((atoms, 3)), Arg((atoms,)), near)

    def electrons(p: Any, walkers: Any, atoms: Any) -> Any:
        def distances(x: Any) -> Any:
            to, apart = x[:, None] - atoms, x[:, None] - x
            unit = jnp.eye(x.shape[0])
            length = jnp.sqrt((apart * apart).sum(-1) + unit) * (1 - unit)
            return to, jnp.sqrt((to * to).sum(-1)), apart, length

        def log_wave(p: Any, flat: Any) -> Any:
            to, far, apart, length = distances(flat.reshape(-1, 3))
            n = far.shape[0]
            h = jnp.concatenate([to, far[..., None]], -1).reshape(n, -1)
            pair = jnp.concatenate([apart, length[..., None]], -1)
            for w, v in p["layers"]:
                means = jnp.concatenate([h[: n // 2].mean(0), h[n // 2 :].mean(0)])
                sides = [pair[:, : n // 2].mean(1), pair[:, n // 2 :].mean(1)]
                means = jnp.broadcast_to(means, (n, means.shape[0]))
                new = jnp.tanh(jnp.concatenate([h, means, *sides], -1) @ w)
                h = h + new if h.shape == new.shape else new
                pair = jnp.tanh(pair @ v)
            parts = (h @ p["orbitals"]) * (jnp.exp(-jnp.abs(far)) @ p["envelope"])
            up, down = parts.reshape(2, n // 2, -1, n // 2).swapaxes(1, 2)
            (s, a), (t, b) = jnp.linalg.slogdet(up), jnp.linalg.slogdet(down)
            most = lax.stop_gradient((a + b).max())
            return jnp.log(jnp.abs((s * t * jnp.exp(a + b - most)).sum()) + 1e-30) + most

        def local(flat: Any) -> Any:
            slope, along = jax.linearize(jax.grad(lambda x: log_wave(p, x)), flat)
            curve = jnp.trace(jax.vmap(along)(jnp.eye(flat.shape[0])))
            _, far, _, length = distances(flat.reshape(-1, 3))
            rows, others = jnp.triu_indices(far.shape[0], 1)
            potential = (1 / length[rows, others]).sum() - 4 * (1 / far).sum()
            return potential - 0.5 * (curve + slope @ slope)

        found = jax.vmap(local)(walkers)
        middle = jnp.median(found)
        width = 5 * jnp.abs(found - middle).mean()
        gap = jnp.clip(found, middle - width, middle + width)
        gap = gap - gap.mean()

        def loss(p: Any) -> Any:
            return (gap * jax.vmap(log_wave, (None, 0))(p, walkers)).mean()

        return found.mean(), jax.grad(loss)(p)

    n, dets = 12, 4
    layers = [(full(3 * 16 + 8, 96), full(4, 12)), (full(3 * 96 + 24, 96), full(12, 12))]
    p = {"layers": layers, "orbitals": full(96, dets * n // 2), "envelope": full(4, dets * n // 2)}
    yield "electrons", program(electrons, p, Arg((240, 3 * n)), Arg((4, 3)))


def fluids() -> Zoo:
    """A compressible gas by weighted stencils of the fifth order, in steps of three stages."""

    def shock(given: Any) -> Any:
        def bent(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
            sides = (
                ((2 * a - 7 * b + 11 * c) / 6, a - 2 * b + c, a - 4 * b + 3 * c, 0.1),
                ((-b + 5 * c + 2 * d) / 6, b - 2 * c + d, b - d, 0.6),
                ((2 * c + 5 * d - e) / 6, c - 2 * d + e, 3 * c - 4 * d + e, 0.3),
            )
            parts = [
                (x, w / (1e-6 + 13 / 12 * curve**2 + 0.25 * slope**2) ** 2)
                for x, curve, slope, w in sides
            ]
            return sum(x * w for x, w in parts) / sum(w for _, w in parts)

        def change(u: Any, axis: int) -> Any:
            speed = u[1 + axis] / u[0]
            push = 0.4 * (u[3] - 0.5 * (u[1] ** 2 + u[2] ** 2) / u[0])
            flux = (u * speed).at[1 + axis].add(push).at[3].add(push * speed)
            fast = (jnp.abs(speed) + jnp.sqrt(1.4 * jnp.abs(push) / u[0])).max()
            plus, minus = 0.5 * (flux + fast * u), 0.5 * (flux - fast * u)
            face = bent(*(jnp.roll(plus, -n, axis + 1) for n in (-2, -1, 0, 1, 2)))
            face += bent(*(jnp.roll(minus, -n, axis + 1) for n in (3, 2, 1, 0, -1)))
            return face - jnp.roll(face, 1, axis + 1)

        def step(_: Any, u: Any) -> Any:
            def stage(u: Any) -> Any:
                return u - 0.1 * (change(u, 0) + change(u, 1))

            two = 0.75 * u + 0.25 * stage(stage(u))
            return u / 3 + 2 / 3 * stage(two)

        start = 0.1 * jnp.tanh(given) + jnp.array([1.0, 0.0, 0.0, 2.5])[:, None, None]
        return lax.fori_loop(0, 2, step, start)

    yield "shock", program(shock, Arg((4, 720, 500)))


def geology() -> Zoo:
    """How a map of speeds must change for its echoes to be those that were heard."""

    def inversion(speed: Any, sources: Any, ears: Any, wave: Any, heard: Any) -> Any:
        h, w = speed.shape
        rim = jnp.minimum(jnp.minimum(jnp.arange(h), jnp.arange(h)[::-1])[:, None], 30)
        rim = jnp.minimum(rim, jnp.minimum(jnp.arange(w), jnp.arange(w)[::-1]))
        damp = jnp.exp(-((0.008 * (30 - rim)) ** 2))
        taps = (-2.8472, 1.6, -0.2, 0.0254, -0.0018)

        def misfit(speed: Any, source: Any, heard: Any) -> Any:
            square = (0.4 + 0.1 * jnp.tanh(speed)) ** 2

            def step(pair: Any, row: Any) -> Any:
                now, old = pair
                p = jnp.pad(now, 4)
                around = 2 * taps[0] * now
                for n in range(1, 5):
                    sides = p[4 - n : 4 - n + h, 4:-4] + p[4 + n : 4 + n + h, 4:-4]
                    sides += p[4:-4, 4 - n : 4 - n + w] + p[4:-4, 4 + n : 4 + n + w]
                    around = around + taps[n] * sides
                new = damp * (2 * now - damp * old + square * around)
                new = new.at[6, source].add(row[0])
                return (new, damp * now), ((new[4, ears] - row[1]) ** 2).sum()

            def several(pair: Any, rows: Any) -> Any:
                return lax.scan(step, pair, rows)

            rows = (wave.reshape(8, 10), heard.reshape(8, 10, -1))
            zero = jnp.zeros((h, w))
            return lax.scan(jax.checkpoint(several), (zero, zero), rows)[1].sum()

        every = jax.vmap(jax.value_and_grad(misfit), (None, 0, 0))
        value, slope = every(speed, sources, heard)
        return value.sum(), slope.sum(0) / (jnp.abs(slope).max() + 1e-9)

    places = (Arg((3,), I32, below=420), Arg((150,), I32, below=420))
    yield "inversion", program(inversion, Arg((260, 420)), *places, Arg((80,)), Arg((3, 80, 150)))


def imaging() -> Zoo:
    """Slices of a body from a third of the lines that twelve coils saw, with few wavelets."""

    def coils(seen: Any, maps: Any, lines: Any) -> Any:
        seen, maps = lax.complex(*seen), lax.complex(*maps)
        mask = lines == 0

        def few(x: Any, levels: int) -> Any:
            for axis in (1, 2):
                one, two = (lax.slice_in_dim(x, n, None, 2, axis) for n in (0, 1))
                x = jnp.concatenate([one + two, one - two], axis) * 0.5**0.5
            size = jnp.abs(x)
            small = x * jnp.maximum(1 - 0.02 / jnp.maximum(size, 1e-6), 0)
            h, w = x.shape[1] // 2, x.shape[2] // 2
            low = few(x[:, :h, :w], levels - 1) if levels else x[:, :h, :w]
            x = small.at[:, :h, :w].set(low)
            for axis in (2, 1):
                one, two = jnp.split(x, 2, axis)
                x = (jnp.stack([one + two, one - two], axis + 1) * 0.5**0.5).reshape(x.shape)
            return x

        def step(_: Any, carry: Any) -> Any:
            x, y, t = carry
            gap = jnp.fft.fft2(maps * y[:, None], norm="ortho") * mask - seen * mask
            slope = (jnp.conj(maps) * jnp.fft.ifft2(gap, norm="ortho")).sum(1)
            new = few(y - 0.08 * slope, 2)
            after = 0.5 + jnp.sqrt(0.25 + t * t)
            return new, new + (t - 1) / after * (new - x), after

        start = (jnp.conj(maps) * jnp.fft.ifft2(seen * mask, norm="ortho")).sum(1)
        return jnp.abs(lax.fori_loop(0, 6, step, (start, start, jnp.ones(())))[0])

    maps = [Arg((12, 320, 264), scale=0.2)] * 2
    yield "coils", program(coils, [Arg((3, 12, 320, 264))] * 2, maps, Arg((264,), I32, below=3))


def telescopes() -> Zoo:
    """Channels of every antenna, without noisy moments, and how all pairs correlate."""

    def correlated(samples: Any, taps: Any, delays: Any) -> Any:
        frames = (samples.astype(F32) - 50).reshape(samples.shape[0], -1, taps.shape[1])
        length = frames.shape[1] - taps.shape[0] + 1
        x = sum(frames[:, n : n + length] * tap for n, tap in enumerate(taps))
        x = jnp.fft.rfft(x)
        angle = delays[:, None] * jnp.arange(x.shape[-1]) * 0.01
        x = x * jnp.exp(-1j * angle)[:, None]
        power = x.real**2 + x.imag**2
        level = power.mean(-1)
        middle = jnp.median(level, 1, keepdims=True)
        spread = jnp.median(jnp.abs(level - middle), 1, keepdims=True)
        kept = jnp.abs(level - middle) < 3 * spread
        x = x * kept[..., None]
        both = jnp.einsum("atf,btf->fab", x, jnp.conj(x))
        rows, others = jnp.triu_indices(x.shape[0])
        return both[:, rows, others] / jnp.maximum(kept.sum(), 1), power.mean(1), kept

    samples = Arg((44, 264 * 960), I8, below=100)
    yield "correlated", program(correlated, samples, Arg((4, 960)), Arg((44,)))


def options() -> Zoo:
    """The price of a right that may be used on any of 40 days, by regressions backwards."""

    def american(spot: Any, strikes: Any, key: Any) -> Any:
        draws = jax.random.normal(key, (40, spot.shape[0] // 2))
        draws = jnp.concatenate([draws, -draws], 1)
        paths = (1 + 0.1 * jnp.tanh(spot)) * jnp.exp(jnp.cumsum(0.03 * draws - 0.0004, 0))

        def price(strike: Any) -> Any:
            level = 1 + 0.1 * jnp.tanh(strike)

            def back(cash: Any, now: Any) -> Any:
                cash, gain = 0.999 * cash, jnp.maximum(level - now, 0)
                x = now / level
                terms = jnp.stack([jnp.ones_like(x), 1 - x, 1 - 2 * x + x * x / 2, gain], -1)
                inside = terms * (gain > 0)[:, None]
                square = inside.T @ inside + 1e-3 * jnp.eye(4)
                hold = terms @ jnp.linalg.solve(square, inside.T @ cash)
                use = (gain > hold) & (gain > 0)
                return jnp.where(use, gain, cash), use.mean()

            cash, used = lax.scan(back, jnp.maximum(level - paths[-1], 0), paths[-2::-1])
            return cash.mean(), cash.std(), used

        return jax.vmap(price)(strikes)

    yield "american", program(american, Arg((50000,)), Arg((5,)), _KEY)


def solvers() -> Zoo:
    """A linear program with few entries, by steps of both its sides and their averages."""

    def linear(x: Any, y: Any, entries: Any, rows: Any, columns: Any, cost: Any, bound: Any) -> Any:
        def down(x: Any) -> Any:
            return jax.ops.segment_sum(entries * x[columns], rows, y.shape[0])

        def up(y: Any) -> Any:
            return jax.ops.segment_sum(entries * y[rows], columns, x.shape[0])

        tall = lax.rsqrt(1 + jax.ops.segment_sum(jnp.abs(entries), columns, x.shape[0]))
        wide = lax.rsqrt(1 + jax.ops.segment_max(jnp.abs(entries), rows, y.shape[0]).clip(0))

        def step(carry: Any, _: Any) -> Any:
            x, y, sums = carry
            new = jnp.clip(x - 0.3 * tall * (cost - up(y)), 0, 10)
            y = jnp.maximum(y + 0.3 * wide * (bound - down(2 * new - x)), 0)
            gap = jnp.abs(cost @ new - bound @ y)
            return (new, y, (sums[0] + new, sums[1] + y)), gap

        (x, y, sums), gaps = lax.scan(step, (x, y, (x, y)), None, 24)

        def wrong(x: Any, y: Any) -> Any:
            above = jnp.linalg.norm(jnp.maximum(bound - down(x), 0))
            return above + jnp.linalg.norm(jnp.minimum(cost - up(y), 0))

        mean = (sums[0] / 25, sums[1] / 25)
        better = wrong(*mean) < wrong(x, y)
        return jnp.where(better, mean[0], x), jnp.where(better, mean[1], y), gaps

    n, m, count = 34000, 21000, 420000
    places = (Arg((count,), I32, below=m), Arg((count,), I32, below=n))
    given = (Arg((n,)), Arg((m,)), Arg((count,)), *places, Arg((n,)), Arg((m,)))
    yield "linear", program(linear, *given)


def posteriors() -> Zoo:
    """Chains of a model of groups, which glide along their slopes and are kept or not."""

    def chains(state: Any, x: Any, group: Any, y: Any, key: Any) -> Any:
        def density(state: Any) -> Any:
            middle, width, apart = state
            each = middle + jnp.exp(0.1 * width) * apart
            logits = (x * each[group]).sum(-1)
            fit = y * logits - jax.nn.softplus(logits)
            return fit.sum() - 0.5 * sum((z * z).sum() for z in state)

        def add(a: Any, b: Any, by: float) -> Any:
            return jax.tree.map(lambda p, q: p + by * q, a, b)

        def one(state: Any, key: Any) -> Any:
            keys = jax.random.split(key, 4)
            pairs = zip(keys, state, strict=False)
            push = tuple(jax.random.normal(k, z.shape) for k, z in pairs)
            slope = jax.value_and_grad(density)
            first, change = slope(state)
            before = first - 0.5 * sum((z * z).sum() for z in push)

            def glide(_: Any, carry: Any) -> Any:
                place, push, _, change = carry
                push = add(push, change, 0.005)
                place = add(place, push, 0.01)
                value, change = slope(place)
                return place, add(push, change, 0.005), value, change

            place, push, value, _ = lax.fori_loop(0, 10, glide, (state, push, first, change))
            rise = value - 0.5 * sum((z * z).sum() for z in push) - before
            kept = jnp.log(jax.random.uniform(keys[3])) < rise
            return jax.tree.map(lambda a, b: jnp.where(kept, a, b), place, state), kept

        keys = jax.random.split(key, state[0].shape[0])
        return jax.vmap(one)(state, keys)

    state = (Arg((40, 7)), Arg((40, 7)), Arg((40, 350, 7)))
    data = (Arg((6000, 7)), Arg((6000,), I32, below=350), Arg((6000,), I32))
    yield "chains", program(chains, state, *data, _KEY)


def genetics() -> Zoo:
    """Variants that go with traits, apart from what ancestry explains, and with each other."""

    def association(codes: Any, traits: Any, covariates: Any) -> Any:
        known = codes < 3
        count = known.sum(0)
        often = jnp.where(known, codes, 0).sum(0) / (2 * count)
        x = jnp.where(known, codes.astype(F32) - 2 * often, 0)
        basis, _ = jnp.linalg.qr(covariates)
        x = x - basis @ (basis.T @ x)
        y = traits - basis @ (basis.T @ traits)
        square = (x * x).sum(0)
        slope = (x.T @ y) / square[:, None]
        freedom = x.shape[0] - covariates.shape[1] - 1
        left = ((y * y).sum(0) - slope**2 * square[:, None]) / freedom
        chi = slope**2 * square[:, None] / left
        logs = jax.scipy.stats.norm.logsf(jnp.sqrt(chi)) + jnp.log(2.0)
        blocks = (x * lax.rsqrt(square)).astype(BF16).reshape(x.shape[0], -1, 200)
        near = jnp.einsum("nba,nbc->bac", blocks, blocks).astype(F32) ** 2
        score = (near * (1 - jnp.eye(200))).sum(-1)
        spread = jnp.sort(chi, 0)[chi.shape[0] // 2] / 0.4549
        return slope, logs, spread, score, lax.top_k(-logs.T, 100)

    people = 9000
    given = (Arg((people, 7000), I8, below=4), Arg((people, 9)), Arg((people, 14)))
    yield "association", program(association, *given)


def games() -> Zoo:
    """Boards on which equal tiles merge, each played at random for a dozen moves."""

    def tiles(boards: Any, key: Any) -> Any:
        def left(board: Any) -> Any:
            def packed(rows: Any) -> Any:
                return jnp.take_along_axis(rows, jnp.argsort(rows == 0, 1, stable=True), 1)

            rows, gain = packed(board), jnp.zeros(())
            for n in range(3):
                same = (rows[:, n] == rows[:, n + 1]) & (rows[:, n] > 0)
                rows = rows.at[:, n].add(same.astype(I32))
                rows = rows.at[:, n + 1].set(jnp.where(same, 0, rows[:, n + 1]))
                gain = gain + jnp.where(same, 2.0 ** rows[:, n], 0.0).sum()
            return packed(rows), gain

        def play(board: Any, key: Any) -> Any:
            ways = jnp.stack([jnp.rot90(board, n) for n in range(4)])
            moved, gains = jax.vmap(left)(ways)
            moved = jnp.stack([jnp.rot90(moved[n], -n) for n in range(4)])
            legal = (moved != board).any((1, 2))
            keys = jax.random.split(key, 3)
            room = (moved == 0).sum((1, 2))
            hope = jnp.log1p(gains) + 0.3 * room + jax.random.gumbel(keys[0], (4,))
            act = jnp.where(legal, hope, -jnp.inf).argmax()
            flat = moved[act].ravel()
            cell = jnp.where(flat == 0, jax.random.uniform(keys[1], (16,)), -1.0).argmax()
            tile = 1 + jax.random.bernoulli(keys[2], 0.1).astype(I32)
            after = flat.at[cell].set(tile).reshape(4, 4)
            return jnp.where(legal.any(), after, board), jnp.where(legal.any(), gains[act], 0.0)

        def move(boards: Any, key: Any) -> Any:
            return jax.vmap(play)(boards, jax.random.split(key, boards.shape[0]))

        boards, gains = lax.scan(move, boards, jax.random.split(key, 12))
        return boards, gains.sum(0)

    yield "tiles", program(tiles, Arg((15000, 4, 4), I32, below=6), _KEY)


def traffic() -> Zoo:
    """Cars that see each other and the nearest of the road, steer by a network, and may hit."""

    def cars(state: Any, sizes: Any, roads: Any, p: Any) -> Any:
        def about(points: Any, heading: Any) -> Any:
            cos, sin = jnp.cos(heading)[..., None], jnp.sin(heading)[..., None]
            x, y = points[..., 0], points[..., 1]
            return jnp.stack([x * cos + y * sin, y * cos - x * sin], -1)

        def one(state: Any, sizes: Any, roads: Any) -> Any:
            place, heading, speed = state[:, :2], state[:, 2], state[:, 3]
            gap = roads[None, :, :2] - place[:, None]
            far, index = lax.top_k(-(gap * gap).sum(-1), 24)
            road = about(jnp.take_along_axis(gap, index[..., None], 1), heading)
            between = place[None] - place[:, None]
            others = about(between, heading)
            turn = heading[None] - heading[:, None]
            more = jnp.stack([jnp.cos(turn), jnp.sin(turn), speed[None] - speed[:, None]], -1)
            seen = jax.nn.relu(jnp.concatenate([others, more], -1) @ p["car"]).max(1)
            lane = jax.nn.relu(jnp.concatenate([road, roads[index][..., 2:]], -1) @ p["road"])
            x = jnp.concatenate([seen, lane.max(1), state], -1)
            act = jnp.tanh(jax.nn.relu(x @ p["hidden"]) @ p["last"])
            speed = jnp.clip(speed + 0.3 * act[:, 0], 0, 30)
            heading = heading + 0.1 * speed * jnp.tan(0.5 * act[:, 1]) / (1 + jnp.abs(sizes[:, 0]))
            way = jnp.stack([jnp.cos(heading), jnp.sin(heading)], -1)
            place = place + 0.1 * speed[:, None] * way
            ends = jnp.array([[1, 1], [1, -1], [-1, -1], [-1, 1]]) * 0.1 * sizes[:, None]
            corners = place[:, None] + about(ends, -heading[:, None])
            local = about(corners[None] - place[:, None, None], heading[:, None])
            low, high = local.min(2), local.max(2)
            reach = 0.1 * jnp.abs(sizes)[:, None]
            cross = ((low < reach) & (high > -reach)).all(-1)
            hit = (cross & cross.T & ~jnp.eye(cross.shape[0], dtype=bool)).any(-1)
            state = jnp.concatenate([place, heading[:, None], speed[:, None]], -1)
            return state, act[:, 0] - 10 * hit - (far[:, 0] < -4)

        def step(state: Any, _: Any) -> Any:
            return jax.vmap(one)(state, sizes, roads)

        return lax.scan(step, state, None, 6)

    p = {"car": full(5, 64), "road": full(4, 64), "hidden": full(132, 128), "last": full(128, 2)}
    world = (Arg((60, 36, 4), scale=5.0), Arg((60, 36, 2)), Arg((60, 1400, 4), scale=5.0))
    yield "cars", program(cars, *world, p)


def rendering() -> Zoo:
    """A scene of joined solids, to which rays step by the distance, with soft shadows."""

    def marched(balls: Any, boxes: Any, light: Any) -> Any:
        h, w = 450, 800

        def distance(at: Any) -> Any:
            ball = jnp.linalg.norm(at - balls[:, :3], axis=-1) - 0.3 - 0.1 * jnp.abs(balls[:, 3])
            q = jnp.abs(at - boxes[:, :3]) - 0.2 - 0.1 * jnp.abs(boxes[:, 3:])
            box = jnp.sqrt((jnp.maximum(q, 0) ** 2).sum(-1) + 1e-9) + jnp.minimum(q.max(-1), 0)
            solid = -0.05 * jax.nn.logsumexp(-jnp.concatenate([ball, box]) / 0.05)
            return jnp.minimum(solid, at[1] + 2 + 0.05 * jnp.sin(3 * at[0]) * jnp.sin(3 * at[2]))

        def pixel(spot: Any) -> Any:
            ray = jnp.append((spot - jnp.array([w / 2, h / 2])) / h, 1.0)
            ray = ray / jnp.linalg.norm(ray)
            eye = jnp.array([0.0, 0.0, -6.0])
            far = lax.fori_loop(0, 40, lambda _, t: t + distance(eye + t * ray), 0.0)
            at = eye + far * ray
            normal = jax.grad(distance)(at)
            sun = light / jnp.linalg.norm(light)

            def shade(_: Any, pair: Any) -> Any:
                t, least = pair
                near = distance(at + 0.02 * normal + t * sun)
                return t + jnp.clip(near, 0.02, 0.5), jnp.minimum(least, 8 * near / t)

            _, soft = lax.fori_loop(0, 14, shade, (0.05, 1.0))
            lit = jnp.maximum(normal @ sun, 0) * jnp.clip(soft, 0, 1) + 0.1
            return jnp.where(far < 20, lit, 0.6 + 0.2 * ray[1])

        spots = jnp.stack(jnp.meshgrid(jnp.arange(w), jnp.arange(h)), -1).reshape(-1, 2)
        return jax.vmap(pixel)(spots + 0.5).reshape(h, w)

    yield "marched", program(marched, Arg((9, 4)), Arg((5, 6)), Arg((3,)))


def networks() -> Zoo:
    """The pages nearest to each of six readers, by walks along links that start anew."""

    def ranks(sources: Any, targets: Any, seeds: Any) -> Any:
        n = 70000
        degree = jax.ops.segment_sum(jnp.ones(sources.shape), sources, n)
        start = jax.nn.one_hot(seeds, n, axis=0).mean(-1)
        share = jnp.where(degree > 0, 1 / jnp.maximum(degree, 1), 0)

        def walk(rank: Any, _: Any) -> Any:
            moved = jax.ops.segment_sum((rank * share[:, None])[sources], targets, n)
            lost = jnp.where(degree[:, None] > 0, 0, rank).sum(0)
            new = 0.85 * (moved + lost * start) + 0.15 * start
            return new, jnp.abs(new - rank).sum(0)

        rank, change = lax.scan(walk, start, None, 14)
        return lax.top_k(rank.T, 50), change

    links = [Arg((800000,), I32, below=70000)] * 2
    yield "ranks", program(ranks, *links, Arg((6, 10), I32, below=70000))


def quantum() -> Zoo:
    """The energy of a ring of spins in the state that a circuit's angles make, and its slope."""

    def circuit(angles: Any, pull: Any) -> Any:
        n = angles.shape[1]
        bits = (jnp.arange(1 << n)[:, None] >> jnp.arange(n)[::-1]) & 1
        spins = (1 - 2 * bits).astype(F32)
        signs = 1 - 2 * ((bits * jnp.roll(bits, 1, 1)).sum(1) % 2)

        def energy(angles: Any) -> Any:
            def layer(state: Any, rows: Any) -> Any:
                for q in range(n):
                    cos, sin = jnp.cos(rows[q, 0] / 2), jnp.sin(rows[q, 0] / 2)
                    turn = jnp.exp(0.5j * rows[q, 1])
                    gate = jnp.array([[cos, -sin], [sin, cos]])
                    gate = gate * jnp.array([jnp.conj(turn), turn])[:, None]
                    parts = state.reshape(1 << q, 2, -1)
                    state = jnp.einsum("ab,xby->xay", gate, parts).reshape(-1)
                return state * signs, None

            zero = jnp.zeros(1 << n, jnp.complex64).at[0].set(1)
            state, _ = lax.scan(layer, zero, angles)
            chance = state.real**2 + state.imag**2
            total = chance @ (spins * jnp.roll(spins, 1, 1) * pull).sum(1)
            for q in range(n):
                pair = state.reshape(1 << q, 2, -1)
                total = total - 2 * (jnp.conj(pair[:, 0]) * pair[:, 1]).real.sum()
            return total

        value, slope = jax.value_and_grad(energy)(angles)
        return value, angles - 0.05 * slope

    yield "circuit", program(circuit, Arg((4, 18, 2)), Arg((18,)))
