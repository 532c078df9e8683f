"""Weights of the whole model and their sharding. Imports no jax.

Layers are stacked along a first axis, so that one compiled body serves all of them. Every matrix is
split twice: along heads, F or V over the mesh axis `tensor` (Megatron's column and row parallelism:
Shoeybi et al., arXiv:1909.08053), and along D over `fsdp`, over which it is gathered for use
(Rajbhandari et al., arXiv:1910.02054, stage 3). Norms are replicated. D is the first axis, also of
tables, because NCCL concatenates shards along the outermost axis in memory: for any other axis, XLA
transposes each weight, or whole stacks, before and after its collective.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from models.qwen3.config import Qwen3Config

FSDP, TENSOR = "fsdp", "tensor"

# Queries, of all sequences of a device, whose scores are in memory at a time: [K, G, QUERIES, T] in
# float32.
QUERIES_AT_ONCE = 512
# Tokens whose logits are in memory at a time: [TOKENS, V / tensor] in float32.
TOKENS_AT_ONCE = 1024


@dataclass(frozen=True)
class WeightLayout:
    """One weight of the model.

    Attributes:
      path: keys from the root of the parameters, joined by dots.
      shape: of the whole weight, with layers stacked.
      axes: a letter for each dimension, as in annotations.
      split_over: for each dimension, the mesh axis that splits it, or None.
    """

    path: str
    shape: tuple[int, ...]
    axes: str
    split_over: tuple[str | None, ...]

    def shard_shape(self, mesh: Mapping[str, int]) -> tuple[int, ...]:
        """The shape on one device; a mesh axis that is not in `mesh` has size 1.

        Raises:
          ValueError: a mesh axis does not divide a dimension.
        """
        sizes = [mesh.get(axis, 1) if axis is not None else 1 for axis in self.split_over]
        for number, (length, parts) in enumerate(zip(self.shape, sizes, strict=True)):
            if length % parts:
                raise ValueError(
                    f"params.{self.path}: dimension {number} ({self.axes[number]} = {length:,}) "
                    f"is not a multiple of {parts}, the size of mesh axis "
                    f"{self.split_over[number]!r}"
                )
        return tuple(n // parts for n, parts in zip(self.shape, sizes, strict=True))


def weight_layouts(config: Qwen3Config) -> tuple[WeightLayout, ...]:
    """Every weight of the model."""
    layers, d, f = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    kv_heads, group, h = (
        config.num_key_value_heads,
        config.queries_per_kv_head,
        config.head_dim,
    )

    def table(path: str) -> WeightLayout:
        return WeightLayout(path, (d, config.vocab_size), "DV", (FSDP, TENSOR))

    def norm(name: str, axis: str, width: int) -> WeightLayout:
        return WeightLayout(f"layers.{name}", (layers, width), f"L{axis}", (None, None))

    return (
        table("embed"),
        WeightLayout("final_norm", (d,), "D", (None,)),
        norm("input_norm", "D", d),
        WeightLayout(
            "layers.qkv",
            (layers, d, kv_heads, group + 2, h),
            "LDKPH",
            (None, FSDP, TENSOR, None, None),
        ),
        norm("q_norm", "H", h),
        norm("k_norm", "H", h),
        WeightLayout(
            "layers.o",
            (layers, d, kv_heads, group, h),
            "LDKGH",
            (None, FSDP, TENSOR, None, None),
        ),
        norm("post_attention_norm", "D", d),
        WeightLayout("layers.gate_up", (layers, d, 2, f), "LD2F", (None, FSDP, None, TENSOR)),
        WeightLayout("layers.down", (layers, d, f), "LDF", (None, FSDP, TENSOR)),
        *(() if config.tie_word_embeddings else (table("lm_head"),)),
    )


def shard_elements(config: Qwen3Config, mesh: Mapping[str, int]) -> int:
    """Elements of all weights on one device.

    Raises:
      ValueError: a mesh axis does not divide a dimension.
    """
    return sum(prod(layout.shard_shape(mesh)) for layout in weight_layouts(config))
