"""Bytes of the workloads' arguments, in closed form. Imports no jax."""

from dataclasses import dataclass
from math import prod

from models.qwen3.config import QWEN3_0_6B, Qwen3Config
from models.tpu_tiles import tpu_padding_bytes

FLOAT32 = 4
INT32 = 4
POINTER = 8


@dataclass(frozen=True, kw_only=True)
class ReferenceSizes:
    """Sizes of the reference step; the defaults are those of reference dump 003.

    Attributes:
      config: the model. The step has three of its layers, regardless of `num_hidden_layers`.
      tokens: tokens of the step, of any sequences (T).
      blocks: pages of the KV cache.
      block_size: slots per page.
      positions: rows of the RoPE table (P).
    """

    config: Qwen3Config = QWEN3_0_6B
    tokens: int = 128
    blocks: int = 4233
    block_size: int = 16
    positions: int = 40960

    @property
    def half_cache_bytes(self) -> int:
        """Bytes of all keys of the paged cache, and of all values."""
        return self.blocks * self.block_size * self.config.kv_size * self.config.itemsize

    @property
    def new_rows_bytes(self) -> int:
        """Bytes of the step's keys, and of its values: [T, K, H]."""
        return self.tokens * self.config.kv_size * self.config.itemsize

    @property
    def parameter_bytes(self) -> tuple[int, ...]:
        """Bytes of p0 to p16, in order."""
        config = self.config
        i, d = config.itemsize, config.hidden_size
        norm = d * i
        o_proj = d * config.q_size * i
        gate_up = 2 * config.intermediate_size * d * i
        down = d * config.intermediate_size * i
        return (
            config.head_dim * i,  # p0, key norm
            FLOAT32,  # p1, epsilon
            config.qkv_size * d * i,  # p2
            norm,  # p3
            self.tokens * INT32,  # p4, token ids
            config.vocab_size * d * i,  # p5, embedding
            *(o_proj, down, gate_up, norm),  # p6 to p9, layer 0
            *(o_proj, down, gate_up, norm),  # p10 to p13, layer 1
            self.tokens * INT32,  # p14, positions
            self.positions * config.head_dim * i,  # p15, RoPE table
            2 * self.half_cache_bytes,  # p16
        )


def weight_bytes(config: Qwen3Config) -> int:
    """Bytes of all weights of the model."""
    d, f = config.hidden_size, config.intermediate_size
    projections = config.qkv_size * d + d * config.q_size + 2 * f * d + d * f
    norms = 2 * d + 2 * config.head_dim
    tables = config.vocab_size * d * (1 if config.tie_word_embeddings else 2)
    elements = config.num_hidden_layers * (projections + norms) + tables + d
    return elements * config.itemsize


def layer_weight_bytes(config: Qwen3Config) -> int:
    """Bytes of the weights of all layers: without embedding, last norm and output head."""
    tables = 1 if config.tie_word_embeddings else 2
    others = (config.vocab_size * tables + 1) * config.hidden_size
    return weight_bytes(config) - others * config.itemsize


def tpu_vector_padding_bytes(config: Qwen3Config, *, batch: int) -> int:
    """Padding of a decode step's vectors on a TPU: norms, token ids and positions."""

    head, hidden = (
        tpu_padding_bytes((width,), config.itemsize)
        for width in (config.head_dim, config.hidden_size)
    )
    layers = config.num_hidden_layers * 2 * (head + hidden)
    return layers + hidden + 2 * tpu_padding_bytes((batch,), INT32)


def cache_leaf_bytes(config: Qwen3Config, *, batch: int, cache_length: int) -> int:
    """Bytes of one layer's keys, and of its values: [B, K, S, H]."""
    return prod(config.cache_shape(batch=batch, cache_length=cache_length)) * config.itemsize


def cache_bytes(config: Qwen3Config, *, batch: int, cache_length: int) -> int:
    """Bytes of the contiguous cache of all layers."""
    leaf = cache_leaf_bytes(config, batch=batch, cache_length=cache_length)
    return 2 * config.num_hidden_layers * leaf
