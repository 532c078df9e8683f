"""Writes small Hugging Face checkpoints with random weights. Imports no jax.

For demonstrations without a download, and for tests. The weights depend only on the seed, so that
another framework can use the same ones.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from models.new_folder import new_folder
from models.qwen3.checkpoint.config_files import ARCHITECTURE, CONFIG, GENERATION_CONFIG, MODEL_TYPE
from models.qwen3.checkpoint.json_file import CheckpointError
from models.qwen3.checkpoint.leaf_tensors import dtype_named, leaves
from models.qwen3.checkpoint.safetensors_files import INDEX, SINGLE
from models.qwen3.config import Qwen3Config

SMALL = Qwen3Config(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
)

ENDOFTEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_SPECIAL = (ENDOFTEXT, IM_START, IM_END)
_BYTES = 256
_MERGES = 128

_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
# Splits words, single digits, punctuation and white space, similar to Qwen3's tokenizer.
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# The tokenizer's training text. Changing it changes the token ids of every text.
_TRAINING_TEXT = (
    "The compiler reads the step, and decides which buffer holds what, and for how long.",
    "What the weights of this model say is random; that the same words come each time is not.",
    "A token is read, its keys and values are written into the cache, and the next one is chosen.",
    "Is the plan what was meant? Then the memory is there, the copies are not, and it is fast.",
)


def write_random_checkpoint(
    folder: Path, config: Qwen3Config = SMALL, *, seed: int = 0, shards: int = 1
) -> Path:
    """Writes a complete checkpoint: weights, configs, tokenizer, chat template.

    Args:
      config: has a vocabulary of at least 259; weights have its dtype.

    Raises:
      CheckpointError: `folder` is not empty.
      XlapipeError: `folder` cannot be written.
    """
    if config.vocab_size < _BYTES + len(_SPECIAL):
        raise ValueError(f"vocab_size must be at least {_BYTES + len(_SPECIAL)} for a tokenizer")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder}: expected an empty or new folder, found files in it")
    with new_folder(folder) as partial:
        _write(partial, config, seed, shards)
    return folder


def random_tensors(config: Qwen3Config, seed: int) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yields name and values of each tensor in order of name, in the config's dtype.

    Values come from `numpy.random.default_rng(seed)` in that order, in float32. Matrices are normal
    with variance 1 / columns, so that products keep the magnitude of their input. Scales of norms
    are uniform in [0.5, 1.5), so that a missing norm changes the output.
    """
    rng = np.random.default_rng(seed)
    for name, shape in sorted(pair for leaf in leaves(config) for pair in leaf.tensors):
        if len(shape) == 1:
            values = rng.random(shape, np.float32) + np.float32(0.5)
        else:
            values = rng.standard_normal(shape, np.float32) / np.float32(math.sqrt(shape[1]))
        yield name, values.astype(dtype_named(config.dtype), copy=False)


def tensors_sha256(config: Qwen3Config, seed: int) -> str:
    """SHA-256 of all tensors' bytes in order of name: equal for equal weights."""
    digest = hashlib.sha256()
    for _, values in random_tensors(config, seed):
        digest.update(values.tobytes())
    return digest.hexdigest()


def huggingface_config(config: Qwen3Config) -> dict[str, Any]:
    """The contents of config.json, with the keys of public Qwen3 checkpoints."""
    return {
        "architectures": [ARCHITECTURE],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": 40960,
        "max_window_layers": config.num_hidden_layers,
        "model_type": MODEL_TYPE,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": config.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": config.dtype,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.vocab_size,
    }


def small_tokenizer(vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer for any text, with the special tokens of a chat.

    Raises:
      ValueError: `vocab_size` is too small for the bytes and the special tokens.
    """
    size = vocab_size - len(_SPECIAL)
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=min(size, _BYTES + _MERGES),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT, trainer)
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer


def _write(folder: Path, config: Qwen3Config, seed: int, shards: int) -> None:
    tokenizer = small_tokenizer(config.vocab_size)
    ids = {token: tokenizer.token_to_id(token) for token in _SPECIAL}
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "added_tokens_decoder": {
                str(token_id): {"content": token, "special": True}
                for token, token_id in ids.items()
            },
            "bos_token": None,
            "chat_template": _CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": IM_END,
            "pad_token": ENDOFTEXT,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    boundary_ids = {"bos_token_id": ids[ENDOFTEXT], "eos_token_id": ids[IM_END]}
    _write_json(folder / CONFIG, huggingface_config(config) | boundary_ids)
    _write_json(
        folder / GENERATION_CONFIG,
        {
            "bos_token_id": ids[ENDOFTEXT],
            "do_sample": True,
            "eos_token_id": [ids[IM_END], ids[ENDOFTEXT]],
            "pad_token_id": ids[ENDOFTEXT],
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
        },
    )
    _write_weights(folder, config, seed, shards)


def _write_weights(folder: Path, config: Qwen3Config, seed: int, shards: int) -> None:
    names = sorted(name for leaf in leaves(config) for name, _ in leaf.tensors)
    tensors = random_tensors(config, seed)
    if shards == 1:
        save_file(dict(tensors), folder / SINGLE, metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for number in range(shards):
        shard = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        count = len(names) * (number + 1) // shards - len(names) * number // shards
        in_shard = dict(next(tensors) for _ in range(count))
        save_file(in_shard, folder / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(in_shard, shard)
        total_bytes += sum(values.nbytes for values in in_shard.values())
    _write_json(folder / INDEX, {"metadata": {"total_size": total_bytes}, "weight_map": weight_map})


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
