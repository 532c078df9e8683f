"""Maps each leaf of the model's parameters to tensors of a checkpoint. Imports no jax.

A leaf stacks the rows of one tensor or, for fused projections, of several tensors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from models.qwen3.checkpoint.json_file import CheckpointError
from models.qwen3.checkpoint.safetensors_files import ITEMSIZE, StoredTensor, read_tensors
from models.qwen3.config import Qwen3Config

WEIGHT_DTYPES: Mapping[str, npt.DTypeLike] = {
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
}
EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
# Buffers in old exports; they can be computed from rope_theta.
_DERIVED_SUFFIX = ".rotary_emb.inv_freq"
_COMPARED_BYTES_AT_ONCE = 64 << 20

Shape: TypeAlias = tuple[int, ...]
Bits: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Leaf:
    """A leaf of the parameters, and the tensors whose rows it stacks.

    Attributes:
      path: keys from the root of the pytree, joined by dots.
      tensors: name and shape of each tensor in the checkpoint, in the order of the rows.
    """

    path: str
    tensors: tuple[tuple[str, Shape], ...]

    @property
    def shape(self) -> Shape:
        """Shape of the leaf."""
        shapes = [shape for _, shape in self.tensors]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def leaves(config: Qwen3Config) -> tuple[Leaf, ...]:
    """The leaves of the model. Each tensor that a checkpoint must have belongs to one of them."""
    table = (config.vocab_size, config.hidden_size)
    return (
        Leaf("embed.weight", ((EMBEDDING, table),)),
        *(leaf for number in range(config.num_hidden_layers) for leaf in _layer(config, number)),
        Leaf("final_norm.scale", (("model.norm.weight", (config.hidden_size,)),)),
        *(() if config.tie_word_embeddings else (Leaf("lm_head.weight", ((LM_HEAD, table),)),)),
    )


def _layer(config: Qwen3Config, number: int) -> Iterator[Leaf]:
    """The leaves of one decoder layer: (leaf, its tensors), each below the layer's prefix."""
    d, f, h = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.q_size, config.kv_size
    leaf_tensors: dict[str, dict[str, Shape]] = {
        "input_norm.scale": {"input_layernorm": (d,)},
        "attention.qkv_proj.weight": {
            "self_attn.q_proj": (q, d),
            "self_attn.k_proj": (kv, d),
            "self_attn.v_proj": (kv, d),
        },
        "attention.q_norm.scale": {"self_attn.q_norm": (h,)},
        "attention.k_norm.scale": {"self_attn.k_norm": (h,)},
        "attention.o_proj.weight": {"self_attn.o_proj": (d, q)},
        "post_attention_norm.scale": {"post_attention_layernorm": (d,)},
        "mlp.gate_up_proj.weight": {"mlp.gate_proj": (f, d), "mlp.up_proj": (f, d)},
        "mlp.down_proj.weight": {"mlp.down_proj": (d, f)},
    }
    for leaf, tensors in leaf_tensors.items():
        yield Leaf(
            f"layers.{number}.{leaf}",
            tuple(
                (f"model.layers.{number}.{name}.weight", shape) for name, shape in tensors.items()
            ),
        )


def stored_leaves(folder: Path, config: Qwen3Config) -> dict[str, tuple[StoredTensor, ...]]:
    """The stored tensors of each leaf, by the leaf's path.

    Every tensor of the checkpoint must belong to a leaf: a tensor that the model does not read
    indicates another architecture, for which the output would be silently wrong. Two exceptions:
    `rotary_emb.inv_freq`, which can be computed from rope_theta, and `lm_head.weight` of a tied
    model, which must equal the embedding bit for bit.

    Raises:
      CheckpointError: a tensor is missing, unknown, or has an unexpected shape or dtype; or a
        header or an index is damaged.
    """
    stored = read_tensors(folder)
    model_leaves = leaves(config)
    names = [name for leaf in model_leaves for name, _ in leaf.tensors]
    missing = [name for name in names if name not in stored]
    if missing:
        raise CheckpointError(f"{folder}: {_tensors(missing)} missing from the checkpoint")
    tied_head = {LM_HEAD} if config.tie_word_embeddings else set()
    unknown = sorted(
        name
        for name in stored.keys() - set(names) - tied_head
        if not name.endswith(_DERIVED_SUFFIX)
    )
    if unknown:
        raise CheckpointError(
            f"{folder}: {_tensors(unknown)} in the checkpoint, but not in a dense Qwen3 model with "
            f"num_hidden_layers={config.num_hidden_layers}"
        )
    tensors_of_leaf = {
        leaf.path: tuple(_checked(stored, name, shape) for name, shape in leaf.tensors)
        for leaf in model_leaves
    }
    if tied_head & stored.keys():
        head = _checked(stored, LM_HEAD, (config.vocab_size, config.hidden_size))
        _check_tied(head, stored[EMBEDDING])
    return tensors_of_leaf


def mapped(tensor: StoredTensor) -> Bits:
    """The tensor's elements, memory-mapped from the file, with their bits as unsigned integers."""
    bits = np.dtype(f"<u{ITEMSIZE[tensor.dtype]}")
    return np.memmap(tensor.path, bits, mode="r", offset=tensor.offset, shape=tensor.shape)


def _tensors(names: list[str]) -> str:
    """Subject and verb for a list of names: `tensor a is`, or `5 tensors (a, b, c, …) are`."""
    if len(names) == 1:
        return f"tensor {names[0]} is"
    return f"{len(names)} tensors ({', '.join(names[:3])}{', …' if len(names) > 3 else ''}) are"


def _checked(stored: Mapping[str, StoredTensor], name: str, shape: Shape) -> StoredTensor:
    tensor = stored[name]
    if tensor.shape != shape:
        raise CheckpointError(
            f"{tensor.path}: tensor {name}: expected shape {list(shape)} from config.json, found "
            f"{list(tensor.shape)}"
        )
    if tensor.dtype not in WEIGHT_DTYPES:
        raise CheckpointError(
            f"{tensor.path}: tensor {name}: expected one of {', '.join(WEIGHT_DTYPES)}, found "
            f"{tensor.dtype}, which is not supported for weights"
        )
    return tensor


def _check_tied(head: StoredTensor, embedding: StoredTensor) -> None:
    """Raises if a tied model's checkpoint has a different head, which would be ignored."""
    if head.dtype != embedding.dtype:
        difference = f"its dtype is {head.dtype}, that of the embedding {embedding.dtype}"
    elif (row := _first_difference(mapped(head), mapped(embedding))) is not None:
        difference = f"row {row} differs"
    else:
        return
    raise CheckpointError(
        f"{head.path}: config.json ties the output head to the embedding, but {LM_HEAD} is not "
        f'equal to {EMBEDDING}: {difference}; fix: set "tie_word_embeddings": false to use it'
    )


def _first_difference(one: Bits, other: Bits) -> int | None:
    """The first row that differs. Compares in steps, so that little of the tables is in memory."""
    step = max(1, _COMPARED_BYTES_AT_ONCE // one[0].nbytes)
    for start in range(0, len(one), step):
        differ = (one[start : start + step] != other[start : start + step]).any(axis=1)
        if differ.any():
            return start + int(differ.argmax())
    return None


def dtype_named(name: str) -> np.dtype[Any]:
    """NumPy's dtype for a config's `dtype`."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
