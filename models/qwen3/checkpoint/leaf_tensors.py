"""Which tensors of a checkpoint make each leaf of the model's parameters. Imports no jax.

A leaf is a stack of rows: of one tensor or, where projections are fused, of several.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from models.qwen3.checkpoint.json_file import CheckpointError
from models.qwen3.checkpoint.safetensors_files import ITEMSIZE, StoredTensor, read_tensors
from models.qwen3.config import Qwen3Config

WEIGHT_DTYPES = ("BF16", "F16", "F32")
EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
# Buffers of old exports, which follow from rope_theta.
_DERIVED = ".rotary_emb.inv_freq"
_COMPARED_BYTES = 64 << 20

Shape: TypeAlias = tuple[int, ...]
Bits: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Leaf:
    """A leaf of the parameters, and the tensors whose rows it stacks.

    Attributes:
      path: keys from the root of the pytree, joined by dots.
      tensors: name and shape in the checkpoint, in the order of the rows.
    """

    path: str
    tensors: tuple[tuple[str, Shape], ...]

    @property
    def shape(self) -> Shape:
        """Of the leaf."""
        shapes = [shape for _, shape in self.tensors]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def leaves(config: Qwen3Config) -> tuple[Leaf, ...]:
    """The leaves of the model; each tensor that a checkpoint must hold is in one of them."""
    d, f = config.hidden_size, config.intermediate_size
    table = (config.vocab_size, d)
    found = [Leaf("embed.weight", ((EMBEDDING, table),))]
    for n in range(config.num_hidden_layers):
        ours, theirs = f"layers.{n}", f"model.layers.{n}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        found += [
            Leaf(f"{ours}.input_norm.scale", ((f"{theirs}.input_layernorm.weight", (d,)),)),
            Leaf(
                f"{ours}.attention.qkv_proj.weight",
                (
                    (f"{attention}.q_proj.weight", (config.q_size, d)),
                    (f"{attention}.k_proj.weight", (config.kv_size, d)),
                    (f"{attention}.v_proj.weight", (config.kv_size, d)),
                ),
            ),
            *(
                Leaf(
                    f"{ours}.attention.{norm}.scale",
                    ((f"{attention}.{norm}.weight", (config.head_dim,)),),
                )
                for norm in ("q_norm", "k_norm")
            ),
            Leaf(
                f"{ours}.attention.o_proj.weight",
                ((f"{attention}.o_proj.weight", (d, config.q_size)),),
            ),
            Leaf(
                f"{ours}.post_attention_norm.scale",
                ((f"{theirs}.post_attention_layernorm.weight", (d,)),),
            ),
            Leaf(
                f"{ours}.mlp.gate_up_proj.weight",
                ((f"{mlp}.gate_proj.weight", (f, d)), (f"{mlp}.up_proj.weight", (f, d))),
            ),
            Leaf(f"{ours}.mlp.down_proj.weight", ((f"{mlp}.down_proj.weight", (d, f)),)),
        ]
    found.append(Leaf("final_norm.scale", (("model.norm.weight", (d,)),)))
    if not config.tie_word_embeddings:
        found.append(Leaf("lm_head.weight", ((LM_HEAD, table),)))
    return tuple(found)


def stored_leaves(folder: Path, config: Qwen3Config) -> dict[str, tuple[StoredTensor, ...]]:
    """The stored tensors of each leaf, by its path.

    Every tensor of the checkpoint must belong to a leaf: one that the model does not read is a
    sign of another architecture, whose output would be wrong without a word. Two exceptions:
    `rotary_emb.inv_freq`, which follows from rope_theta, and a tied model's `lm_head.weight`,
    where it is equal to the embedding, bit by bit.

    Raises:
      CheckpointError: a tensor is missing, unknown, of another shape or of another dtype; or a
        header or an index is damaged.
    """
    stored = read_tensors(folder)
    wanted = leaves(config)
    names = [name for leaf in wanted for name, _ in leaf.tensors]
    missing = [name for name in names if name not in stored]
    if missing:
        raise CheckpointError(f"{folder}: {_tensors(missing)} missing from the checkpoint")
    tied_head = {LM_HEAD} if config.tie_word_embeddings else set()
    unknown = sorted(
        name for name in stored.keys() - set(names) - tied_head if not name.endswith(_DERIVED)
    )
    if unknown:
        raise CheckpointError(
            f"{folder}: {_tensors(unknown)} in the checkpoint, but not in a dense Qwen3 model of "
            f"{config.num_hidden_layers} layers"
        )
    found = {
        leaf.path: tuple(_checked(stored, name, shape) for name, shape in leaf.tensors)
        for leaf in wanted
    }
    if tied_head & stored.keys():
        head = _checked(stored, LM_HEAD, (config.vocab_size, config.hidden_size))
        _check_tied(head, stored[EMBEDDING])
    return found


def mapped(tensor: StoredTensor) -> Bits:
    """The tensor as the file has it, mapped: its elements' bits, as unsigned integers."""
    bits = np.dtype(f"<u{ITEMSIZE[tensor.dtype]}")
    return np.memmap(tensor.path, bits, mode="r", offset=tensor.offset, shape=tensor.shape)


def _tensors(names: list[str]) -> str:
    """`tensor a is`, or `5 tensors (a, b, c, …) are`."""
    if len(names) == 1:
        return f"tensor {names[0]} is"
    return f"{len(names)} tensors ({', '.join(names[:3])}{', …' if len(names) > 3 else ''}) are"


def _checked(stored: Mapping[str, StoredTensor], name: str, shape: Shape) -> StoredTensor:
    tensor = stored[name]
    if tensor.shape != shape:
        raise CheckpointError(
            f"{tensor.path}: tensor {name}: expected shape {list(shape)} by the config, found "
            f"{list(tensor.shape)}"
        )
    if tensor.dtype not in WEIGHT_DTYPES:
        raise CheckpointError(
            f"{tensor.path}: tensor {name}: expected one of {', '.join(WEIGHT_DTYPES)}, found "
            f"{tensor.dtype}, which is not supported for weights"
        )
    return tensor


def _check_tied(head: StoredTensor, embedding: StoredTensor) -> None:
    """A head of its own would be ignored; better say so."""
    if head.dtype != embedding.dtype:
        how = f"it is {head.dtype}, and the embedding {embedding.dtype}"
    elif (row := _first_difference(mapped(head), mapped(embedding))) is not None:
        how = f"their rows {row} differ"
    else:
        return
    raise CheckpointError(
        f"{head.path}: config.json ties the output head to the embedding, but {LM_HEAD} is not "
        f'{EMBEDDING}: {how}; with "tie_word_embeddings": false it would be used'
    )


def _first_difference(one: Bits, other: Bits) -> int | None:
    """The first row that differs, compared a part at a time: little of the tables is in memory."""
    step = max(1, _COMPARED_BYTES // one[0].nbytes)
    for start in range(0, len(one), step):
        differ = (one[start : start + step] != other[start : start + step]).any(axis=1)
        if differ.any():
            return start + int(differ.argmax())
    return None
