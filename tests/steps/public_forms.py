"""Ten steps in public styles, each with forms that a person writes for less memory."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tests.steps.form_steps import PATCH, corners, kernel_product, neighbours, patches, score
from xlapipe import Workload

Array = jax.Array
BF16, F32 = jnp.bfloat16, jnp.float32


def norm(x: Array) -> Array:
    wide = x.astype(F32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def attention(x: Array, p: Any, heads: int, *, causal: bool) -> Array:
    batch, time, width = x.shape
    q, k, v = jnp.split((x @ p["qkv"]).reshape(batch, time, 3 * heads, -1), 3, axis=2)
    scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(F32) / (width / heads) ** 0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((time, time), bool)), scores, -1e30)
    weights = jax.nn.softmax(scores).astype(x.dtype)
    return jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape) @ p["out"]


def block(x: Array, p: Any, *, causal: bool = True) -> Array:
    heads = max(x.shape[-1] // 64, 2)
    x = x + attention(norm(x), p, heads, causal=causal)
    return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]


def block_shapes(width: int, *lead: int) -> dict[str, Any]:
    sizes = {"qkv": (width, 3 * width), "out": (width, width)}
    sizes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    return {name: ((*lead, *size), BF16) for name, size in sizes.items()}


def accumulated(loss: Callable[..., Array], parts: int, weights: Any, *batch: Array) -> Any:
    """The gradient of a mean over the batch, by parts of it."""

    def add(total: Any, part: Any) -> Any:
        own = jax.value_and_grad(loss)(weights, *part)
        return jax.tree.map(lambda a, b: a + b.astype(F32), total, own), None

    zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, F32), (jnp.zeros(()), weights))
    rows = [array.reshape(parts, -1, *array.shape[1:]) for array in batch]
    (value, gradient), _ = jax.lax.scan(add, zeros, rows)
    narrow = jax.tree.map(lambda a, w: (a / parts).astype(w.dtype), gradient, weights)
    return value / parts, narrow


# --- 1. A GPT's loss: logits of every token


def gpt_hidden(weights: Any, tokens: Array, wrap: Any = lambda f: f) -> Array:
    def layer(x: Array, p: Any) -> Any:
        return block(x, p), None

    return norm(jax.lax.scan(wrap(layer), weights["embedding"][tokens], weights["blocks"])[0])


def gpt_loss(weights: Any, tokens: Array, targets: Array, wrap: Any = lambda f: f) -> Array:
    hidden = gpt_hidden(weights, tokens, wrap)
    logits = jnp.einsum("btd,vd->btv", hidden, weights["embedding"], preferred_element_type=F32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def gpt(weights: Any, tokens: Array, targets: Array) -> Any:
    return jax.value_and_grad(gpt_loss)(weights, tokens, targets)


IN_SCAN = partial(jax.checkpoint, prevent_cse=False)


def gpt_checkpointed(weights: Any, tokens: Array, targets: Array) -> Any:
    return jax.value_and_grad(gpt_loss)(weights, tokens, targets, IN_SCAN)


def gpt_in_blocks(
    weights: Any, tokens: Array, targets: Array, *, blocks: int, wrap: Any = lambda f: f
) -> Any:
    """The gradient of each block of logits is computed with its loss."""

    def of_block(hidden: Array, embedding: Array, targets: Array) -> Any:
        logits = jnp.einsum("btd,vd->btv", hidden, embedding, preferred_element_type=F32)
        normal = jax.nn.logsumexp(logits, axis=-1)
        own = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2) == targets[..., None]
        loss = jnp.sum(normal - jnp.sum(jnp.where(own, logits, 0), -1)) / tokens.size
        back = ((jnp.exp(logits - normal[..., None]) - own) / tokens.size).astype(hidden.dtype)
        of_embedding = jnp.einsum("btv,btd->vd", back, hidden, preferred_element_type=F32)
        return loss, jnp.einsum("btv,vd->btd", back, embedding), of_embedding

    @jax.custom_vjp
    def loss_of(hidden: Array, embedding: Array) -> Array:
        return forward(hidden, embedding)[0]

    def forward(hidden: Array, embedding: Array) -> Any:
        def add(total: Any, part: Any) -> Any:
            loss, of_hidden, of_embedding = of_block(part[0], embedding, part[1])
            return (total[0] + loss, total[1] + of_embedding), of_hidden

        parts = [a.reshape(blocks, -1, *a.shape[1:]) for a in (hidden, targets)]
        zeros = jnp.zeros(()), jnp.zeros(embedding.shape, F32)
        (loss, of_embedding), of_hidden = jax.lax.scan(add, zeros, parts)
        return loss, (of_hidden.reshape(hidden.shape), of_embedding.astype(embedding.dtype))

    loss_of.defvjp(forward, lambda kept, g: jax.tree.map(lambda a: a * g.astype(a.dtype), kept))

    def loss(weights: Any) -> Array:
        return loss_of(gpt_hidden(weights, tokens, wrap), weights["embedding"])

    return jax.value_and_grad(loss)(weights)


# --- 2. A ViT that closes over its batch


def vit_loss(weights: Any, images: Array, labels: Array, wrap: Any = lambda f: f) -> Array:
    batch, side = images.shape[0], images.shape[1] // 16
    x = images.reshape(batch, side, 16, side, 16, 3).swapaxes(2, 3).reshape(batch, side**2, -1)
    x = x.astype(weights["embedding"].dtype) @ weights["embedding"]
    own = wrap(partial(block, causal=False))
    for p in weights["blocks"]:
        x = own(x, p)
    logits = (norm(x).mean(1) @ weights["head"]).astype(F32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def vit(weights: Any, images: Array, labels: Array) -> Any:
    return jax.value_and_grad(lambda weights: vit_loss(weights, images, labels))(weights)


def vit_checkpointed(weights: Any, images: Array, labels: Array, *, policy: Any = None) -> Any:
    wrap = partial(jax.checkpoint, policy=policy)
    return jax.value_and_grad(vit_loss)(weights, images, labels, wrap)


# --- 3. A residual network with group norm


def group_norm(x: Array, groups: int = 8) -> Array:
    own = x.reshape(*x.shape[:-1], groups, -1).astype(F32)
    axes = (*range(1, own.ndim - 2), own.ndim - 1)
    mean, var = own.mean(axes, keepdims=True), own.var(axes, keepdims=True)
    return ((own - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape).astype(x.dtype)


def conv(x: Array, kernel: Array, stride: int = 1) -> Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=numbers
    )


def residual(x: Array, p: Any) -> Array:
    own = jax.nn.relu(group_norm(conv(x, p["first"])))
    return jax.nn.relu(x + group_norm(conv(own, p["second"])))


def resnet_loss(weights: Any, images: Array, labels: Array, wrap: Any = lambda f: f) -> Array:
    x = jax.nn.relu(group_norm(conv(images.astype(weights["stem"].dtype), weights["stem"], 2)))
    for p in weights["blocks"]:
        x = wrap(residual)(x, p)
    logits = (x.mean((1, 2)) @ weights["head"]).astype(F32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def resnet(weights: Any, images: Array, labels: Array) -> Any:
    return jax.value_and_grad(resnet_loss)(weights, images, labels)


def resnet_checkpointed(weights: Any, images: Array, labels: Array) -> Any:
    return jax.value_and_grad(resnet_loss)(weights, images, labels, jax.checkpoint)


# --- 4 to 6. Patches, a kernel matrix, nearest neighbours: `form_steps`, and by hand


def patches_in_blocks(weights: Array, image: Array, *, size: int) -> Any:
    def loss(weights: Array, image: Array) -> Array:
        at = corners(image.shape[0])

        @partial(jax.checkpoint, prevent_cse=False)
        def one(corner: Array) -> Array:
            return score(weights, image, corner)

        return jax.lax.map(one, at, batch_size=size).mean()

    return jax.value_and_grad(loss)(weights, image)


def kernel_in_blocks(points: Array, values: Array, scale: Array, *, size: int) -> Array:
    def row(x: Array) -> Array:
        return jnp.exp(-jnp.sum((x - points) ** 2, -1) / scale) @ values

    return jax.lax.map(row, points, batch_size=size)


def neighbours_in_blocks(positions: Array, *, size: int) -> Array:
    def nearest(point: Array) -> Array:
        apart = point - positions
        apart -= jnp.round(apart)
        return jax.lax.top_k(-jnp.sum(apart**2, axis=-1), 6)[1]

    return jax.lax.map(nearest, positions, batch_size=size).T


# --- 7. A mixture of experts, dense: every expert for every token


def expert_layer(x: Array, p: Any) -> Array:
    gates = jax.nn.softmax((norm(x) @ p["gate"]).astype(F32)).astype(x.dtype)
    inner = jax.nn.gelu(jnp.einsum("btd,edf->betf", norm(x), p["up"]))
    return x + jnp.einsum("betf,efd,bte->btd", inner, p["down"], gates)


def moe_loss(weights: Any, x: Array, y: Array, wrap: Any = lambda f: f) -> Array:
    for p in weights:
        x = wrap(expert_layer)(x, p)
    return jnp.mean((norm(x) - y).astype(F32) ** 2)


def moe(weights: Any, x: Array, y: Array) -> Any:
    return jax.value_and_grad(moe_loss)(weights, x, y)


def moe_checkpointed(weights: Any, x: Array, y: Array) -> Any:
    return jax.value_and_grad(moe_loss)(weights, x, y, jax.checkpoint)


# --- 8. An LSTM over time


def lstm_loss(weights: Any, x: Array, y: Array, wrap: Any = lambda f: f) -> Array:
    def cell(carry: Any, item: Array) -> Any:
        hidden, memory = carry
        gates = item @ weights["input"] + hidden @ weights["hidden"]
        i, f, g, o = jnp.split(gates.astype(F32), 4, axis=-1)
        memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = (jax.nn.sigmoid(o) * jnp.tanh(memory)).astype(x.dtype)
        return (hidden, memory), hidden

    size = (x.shape[0], weights["hidden"].shape[0])
    start = jnp.zeros(size, x.dtype), jnp.zeros(size, F32)
    _, hidden = jax.lax.scan(wrap(cell), start, x.swapaxes(0, 1))
    return jnp.mean((hidden.swapaxes(0, 1) @ weights["head"] - y).astype(F32) ** 2)


def lstm(weights: Any, x: Array, y: Array) -> Any:
    return jax.value_and_grad(lstm_loss)(weights, x, y)


def lstm_checkpointed(weights: Any, x: Array, y: Array) -> Any:
    return jax.value_and_grad(lstm_loss)(weights, x, y, IN_SCAN)


# --- 9. A diffusion model's U-Net, which closes over its batch


def res_block(x: Array, time: Array, p: Any) -> Array:
    own = conv(jax.nn.silu(group_norm(x)), p["first"]) + (time @ p["time"])[:, None, None]
    return x + conv(jax.nn.silu(group_norm(own)), p["second"])


def attention_block(x: Array, p: Any) -> Array:
    rows = group_norm(x).reshape(x.shape[0], -1, x.shape[-1])
    return x + attention(rows, p, max(x.shape[-1] // 64, 2), causal=False).reshape(x.shape)


def unet_loss(weights: Any, x: Array, time: Array, y: Array, wrap: Any = lambda f: f) -> Array:
    block_of, attend = wrap(res_block), wrap(attention_block)
    x = wide = block_of(conv(x, weights["enter"]), time, weights["wide"])
    x = conv(x, weights["down"], 2)
    for p in weights["inner"]:
        x = attend(block_of(x, time, p), p)
    x = jax.image.resize(x, wide.shape, "nearest") + wide
    x = block_of(x, time, weights["leave"])
    return jnp.mean((conv(x, weights["exit"]) - y).astype(F32) ** 2)


def unet(weights: Any, x: Array, time: Array, y: Array) -> Any:
    def loss(weights: Any) -> Array:
        return unet_loss(weights, x, time, y)

    return jax.value_and_grad(loss)(weights)


def unet_checkpointed(weights: Any, x: Array, time: Array, y: Array) -> Any:
    return jax.value_and_grad(unet_loss)(weights, x, time, y, jax.checkpoint)


# --- 10. Messages of neighbours in a graph


def message(weights: Any, own: Array, others: Array) -> Array:
    both = jnp.concatenate([jnp.broadcast_to(own, others.shape), others], -1)
    return jnp.sum(jax.nn.silu(both @ weights["first"]) @ weights["second"], 0)


def gnn(weights: Any, nodes: Array, edges: Array, y: Array) -> Any:
    def loss(weights: Any) -> Array:
        new = jax.vmap(lambda own, at: message(weights, own, nodes[at]))(nodes, edges)
        return jnp.mean((new - y) ** 2)

    return jax.value_and_grad(loss)(weights)


def gnn_in_blocks(weights: Any, nodes: Array, edges: Array, y: Array, *, size: int) -> Any:
    def loss(weights: Any) -> Array:
        @partial(jax.checkpoint, prevent_cse=False)
        def one(item: Any) -> Array:
            return message(weights, item[0], nodes[item[1]])

        return jnp.mean((jax.lax.map(one, (nodes, edges), batch_size=size) - y) ** 2)

    return jax.value_and_grad(loss)(weights)


class PublicForm(NamedTuple):
    """A step.

    Attributes:
      shapes: of its arguments, with dtypes; of a small form if it is given True.
      by_hand: other forms, by what a person calls them.
      share: of the bytes of the step as written, the limit of memory.
    """

    step: Callable[..., Any]
    shapes: Callable[[bool], Any]
    by_hand: Mapping[str, Callable[..., Any]]
    share: float


def in_parts(loss: Callable[..., Array]) -> dict[str, Callable[..., Any]]:
    return {f"{n} microbatches": partial(accumulated, loss, n) for n in (2, 4, 8)}


def in_sizes(form: Callable[..., Any], *sizes: int) -> dict[str, Callable[..., Any]]:
    return {f"blocks of {size}": partial(form, size=size) for size in sizes}


def gpt_shapes(small: bool) -> Any:
    width, layers, words, batch, time = (64, 2, 96, 8, 16) if small else (768, 4, 50304, 8, 1024)
    tokens = ((batch, time), jnp.int32)
    blocks = block_shapes(width, layers)
    return {"embedding": ((words, width), BF16), "blocks": blocks}, tokens, tokens


def vit_shapes(small: bool) -> Any:
    width, layers, batch, side = (64, 3, 8, 32) if small else (768, 6, 128, 224)
    weights = {"embedding": ((16 * 16 * 3, width), BF16), "head": ((width, 1000), BF16)}
    blocks = [block_shapes(width) for _ in range(layers)]
    images = ((batch, side, side, 3), F32)
    return {**weights, "blocks": blocks}, images, ((batch,), jnp.int32)


def resnet_shapes(small: bool) -> Any:
    width, layers, batch, side = (16, 3, 8, 16) if small else (128, 6, 128, 112)
    kernel = ((3, 3, width, width), BF16)
    blocks = [{"first": kernel, "second": kernel} for _ in range(layers)]
    weights = {"stem": ((7, 7, 3, width), BF16), "head": ((width, 1000), BF16), "blocks": blocks}
    return weights, ((batch, side, side, 3), F32), ((batch,), jnp.int32)


def moe_shapes(small: bool) -> Any:
    width, layers, experts, batch, time = (32, 2, 4, 8, 8) if small else (768, 3, 8, 16, 512)
    up, down = (experts, width, 4 * width), (experts, 4 * width, width)
    own = {"gate": ((width, experts), BF16), "up": (up, BF16), "down": (down, BF16)}
    x = ((batch, time, width), BF16)
    return [own for _ in range(layers)], x, x


def lstm_shapes(small: bool) -> Any:
    width, batch, time = (16, 8, 8) if small else (1024, 256, 256)
    square, gates = ((width, width), BF16), ((width, 4 * width), BF16)
    x = ((batch, time, width), BF16)
    return {"input": gates, "hidden": gates, "head": square}, x, x


def unet_shapes(small: bool) -> Any:
    width, layers, batch, side = (16, 2, 8, 8) if small else (256, 3, 32, 64)
    kernel, square = ((3, 3, width, width), BF16), ((width, width), BF16)
    own = {"first": kernel, "second": kernel, "time": square}
    inner = [{**own, "qkv": ((width, 3 * width), BF16), "out": square} for _ in range(layers)]
    enter, leave = ((3, 3, 4, width), BF16), ((3, 3, width, 4), BF16)
    weights = {"enter": enter, "wide": own, "down": kernel, "inner": inner, "leave": own}
    x = ((batch, side, side, 4), BF16)
    return {**weights, "exit": leave}, x, ((batch, width), BF16), x


def gnn_shapes(small: bool) -> Any:
    count, edges, width = (96, 4, 8) if small else (65_536, 16, 128)
    weights = {"first": ((2 * width, 2 * width), F32), "second": ((2 * width, width), F32)}
    nodes = ((count, width), F32)
    return weights, nodes, ((count, edges), jnp.int32), nodes


def patch_shapes(small: bool) -> Any:
    return ((8 if small else 64, PATCH * PATCH), F32), ((24 if small else 1024,) * 2, F32)


def kernel_shapes(small: bool) -> Any:
    count = 64 if small else 16_384
    return ((count, 4), F32), ((count, 8), F32), ((), F32)


DOTS = jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims
FORMS = {
    "gpt": PublicForm(
        gpt,
        gpt_shapes,
        {
            "checkpoints": gpt_checkpointed,
            "loss in 4 blocks": partial(gpt_in_blocks, blocks=4),
            **{
                f"loss in {n} blocks, checkpoints": partial(gpt_in_blocks, blocks=n, wrap=IN_SCAN)
                for n in (4, 8)
            },
            **in_parts(gpt_loss),
        },
        0.25,
    ),
    "vit": PublicForm(
        vit,
        vit_shapes,
        {
            "checkpoints": vit_checkpointed,
            "checkpoints but products": partial(vit_checkpointed, policy=DOTS),
            **in_parts(vit_loss),
        },
        0.4,
    ),
    "resnet": PublicForm(
        resnet,
        resnet_shapes,
        {"checkpoints": resnet_checkpointed, **in_parts(resnet_loss)},
        0.5,
    ),
    "patches": PublicForm(
        patches, patch_shapes, in_sizes(patches_in_blocks, 2048, 8192, 32_768), 0.25
    ),
    "kernel": PublicForm(
        kernel_product, kernel_shapes, in_sizes(kernel_in_blocks, 128, 512, 2048), 0.1
    ),
    "neighbours": PublicForm(
        neighbours,
        lambda small: (((64 if small else 16_384, 3), F32),),
        in_sizes(neighbours_in_blocks, 128, 512, 2048),
        0.2,
    ),
    "experts": PublicForm(
        moe, moe_shapes, {"checkpoints": moe_checkpointed, **in_parts(moe_loss)}, 0.5
    ),
    "lstm": PublicForm(
        lstm, lstm_shapes, {"checkpoints": lstm_checkpointed, **in_parts(lstm_loss)}, 0.6
    ),
    "unet": PublicForm(
        unet, unet_shapes, {"checkpoints": unet_checkpointed, **in_parts(unet_loss)}, 0.4
    ),
    "graph": PublicForm(gnn, gnn_shapes, in_sizes(gnn_in_blocks, 512, 2048, 8192), 0.3),
}


def step(name: str, form: str = "", *, small: bool = False) -> Workload:
    """A step, as written or in a form that is written by hand; a small one is in float32."""
    public = FORMS[name]
    args = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf[0], F32 if small and leaf[1] == BF16 else leaf[1]),
        public.shapes(small),
        is_leaf=lambda leaf: isinstance(leaf, tuple) and len(leaf) == 2 and leaf[1] in DTYPES,
    )
    return Workload(name=name, fn=public.by_hand[form] if form else public.step, args=args)


DTYPES = (BF16, F32, jnp.int32)
