"""A plain torch Qwen3, written for speed: fused projections, a static cache, grouped attention.

Each layer is compiled with torch's `max-autotune`, and a step is replayed from one CUDA graph.
Arguments select variants, all by default. For decoding, `flex` is torch's flex attention, and
`grouped` attention written out as products; CUDNN and FLASH are backends for prompts. Compiling one
takes minutes.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from qwen3_cases import CONFIG, DECODES, PREFILL, PROMPT, SLOTS
from timing import Timing, print_timings, timed
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch_timing import captured

HEADS, KV_HEADS, HEAD = CONFIG.num_attention_heads, CONFIG.num_key_value_heads, CONFIG.head_dim
GROUP = HEADS // KV_HEADS
# Slots of a block of flex attention's mask.
BLOCK = 128
VARIANTS = ("flex-1", "grouped-1", "flex-32", "grouped-32", "CUDNN", "FLASH")

Cache = list[tuple[Tensor, Tensor]]


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight, CONFIG.rms_norm_eps)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(x.dtype)


def grouped(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, blocks: Any) -> Tensor:
    """Attention of one token per sequence, as products: q [B, N, 1, H], k and v [B, K, S, H]."""
    batch, slots = q.shape[0], k.shape[2]
    queries = q.view(batch, KV_HEADS, GROUP, HEAD)
    scores = (queries @ k.transpose(-1, -2)).float() * HEAD**-0.5
    seen = torch.arange(slots, device=k.device) <= positions[:, None]
    scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
    return (scores.softmax(-1).to(v.dtype) @ v).view(batch, HEADS, 1, HEAD)


def flex(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, blocks: Any) -> Tensor:
    """The same by flex attention, which reads no blocks past the position."""

    def seen(sequence: Tensor, head: Tensor, query: Tensor, slot: Tensor) -> Tensor:
        return slot <= positions[sequence]

    mask = BlockMask.from_kv_blocks(
        *blocks,
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=seen,
        seq_lengths=(1, k.shape[2]),
        compute_q_blocks=False,
    )
    out: Tensor = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    return out


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Layer(nn.Module):
    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.attend = attend
        self.qkv = linear(CONFIG.hidden_size, CONFIG.qkv_size)
        self.out = linear(CONFIG.q_size, CONFIG.hidden_size)
        self.gate_up = linear(CONFIG.hidden_size, 2 * CONFIG.intermediate_size)
        self.down = linear(CONFIG.intermediate_size, CONFIG.hidden_size)
        self.before, self.after = Norm(CONFIG.hidden_size), Norm(CONFIG.hidden_size)
        self.q_norm, self.k_norm = Norm(HEAD), Norm(HEAD)

    def forward(
        self, x: Tensor, angles: tuple[Tensor, Tensor], positions: Tensor, cache: Any, blocks: Any
    ) -> Tensor:
        batch, tokens, _ = x.shape
        heads = self.qkv(self.before(x)).view(batch, tokens, -1, HEAD)
        q, new_k, new_v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=2)
        q = rotated(self.q_norm(q), *angles).transpose(1, 2)
        new_k = rotated(self.k_norm(new_k), *angles)
        k, v = cache
        if tokens == 1:
            row = torch.arange(batch, device=x.device)[:, None]
            slot = (row, torch.arange(KV_HEADS, device=x.device)[None], positions[:, None])
            k.index_put_(slot, new_k[:, 0])
            v.index_put_(slot, new_v[:, 0])
            attended = self.attend(q, k, v, positions, blocks)
        else:
            new_k, new_v = new_k.transpose(1, 2), new_v.transpose(1, 2)
            k[:, :, :tokens] = new_k
            v[:, :, :tokens] = new_v
            attended = functional.scaled_dot_product_attention(
                q, new_k, new_v, is_causal=True, enable_gqa=True
            )
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, -1))
        gate, up = self.gate_up(self.after(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(CONFIG.vocab_size, CONFIG.hidden_size))
        self.layers = nn.ModuleList(Layer(attend) for _ in range(CONFIG.num_hidden_layers))
        self.norm = Norm(CONFIG.hidden_size)

    def forward(self, ids: Tensor, positions: Tensor, cache: Cache, blocks: Any) -> Tensor:
        """Greedy tokens [B]; ids [B, T]; positions [B] of one token each, or [T] of a prompt."""
        exponents = torch.arange(0, HEAD, 2, device=ids.device).float() / HEAD
        angles = positions[:, None].float() * CONFIG.rope_theta**-exponents
        # [B, T, heads, H / 2]
        angles = angles[:, None, None] if ids.shape[1] == 1 else angles[None, :, None]
        cos_and_sin = angles.cos(), angles.sin()
        x = functional.embedding(ids, self.embed)
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, cos_and_sin, positions, layer_cache, blocks)
        return self.head(x)

    def head(self, x: Tensor) -> Tensor:
        return functional.linear(self.norm(x[:, -1]), self.embed).argmax(-1)


def compiled_model(attend: Callable[..., Tensor]) -> Model:
    """A model with random weights. All layers share one compiled program, and so one autotuning."""
    torch.manual_seed(0)
    torch.compiler.reset()
    # In the dtype from the start: float32 weights of the larger sizes would take 60 GB.
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model(attend)
    torch.set_default_dtype(torch.float32)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
    options = {"dynamic": False, "mode": "max-autotune-no-cudagraphs"}
    for layer in model.layers:
        layer.compile(**options)
    model.head = torch.compile(model.head, **options)
    return model


def random_cache(batch: int) -> Cache:
    def keys_or_values() -> Tensor:
        shape = (batch, KV_HEADS, SLOTS, HEAD)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    return [(keys_or_values(), keys_or_values()) for _ in range(CONFIG.num_hidden_layers)]


def decode(name: str) -> Iterator[Timing]:
    """A CUDA graph that adds one greedy token to each sequence, replayed from each position."""
    attention, number = name.split("-")
    batch = int(number)
    model, cache = (
        compiled_model({"flex": flex, "grouped": grouped}[attention]),
        random_cache(batch),
    )
    ids = torch.zeros((batch, 1), dtype=torch.long, device="cuda")
    positions = torch.zeros(batch, dtype=torch.long, device="cuda")
    indices = torch.arange(SLOTS // BLOCK, dtype=torch.int32, device="cuda")
    indices = indices.expand(batch, 1, 1, -1).contiguous()

    def add_token() -> None:
        counts = (positions // BLOCK + 1).to(torch.int32).view(batch, 1, 1)
        ids.copy_(model(ids, positions, cache, (counts, indices))[:, None])
        positions.add_(1)

    def rewind(position: int) -> None:
        ids.zero_()
        positions.fill_(position)

    graph = captured(add_token, lambda: rewind(SLOTS // 2))
    for case in DECODES:
        if case.batch != batch:
            continue

        def call(number: int, first: int = case.position, tokens: int = case.tokens) -> None:
            rewind(first)
            for _ in range(tokens):
                graph.replay()

        variant = f"plain, max-autotune, {attention}, CUDA graph"
        yield timed(str(case), variant, call, wait, parts=case.tokens)


def prefill(name: str) -> Iterator[Timing]:
    model, cache = compiled_model(grouped), random_cache(1)
    ids = torch.randint(0, 1000, (1, PROMPT), device="cuda")
    positions = torch.arange(PROMPT, device="cuda")
    with sdpa_kernel(getattr(SDPBackend, f"{name}_ATTENTION")):
        graph = captured(lambda: model(ids, positions, cache, None), lambda: None)
    variant = f"plain, max-autotune, {name.lower()}, CUDA graph"
    yield timed(PREFILL, variant, lambda number: graph.replay(), wait)


def wait(_: Any) -> None:
    torch.cuda.synchronize()


def timings(names: Sequence[str]) -> Iterator[Timing]:
    for name in names:
        yield from (decode if "-" in name else prefill)(name)


if __name__ == "__main__":
    selected = sys.argv[1:] or VARIANTS
    if unknown := set(selected) - set(VARIANTS):
        sys.exit(f"expected {', '.join(VARIANTS)}; found {', '.join(sorted(unknown))}")
    with torch.inference_mode():
        print_timings(
            framework=f"torch {torch.__version__}, without transformers",
            device=torch.cuda.get_device_name(),
            timings=timings(selected),
        )
