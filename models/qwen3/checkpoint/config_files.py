"""Reads `config.json` and `generation_config.json` of a Hugging Face checkpoint. Imports no jax.

Reads both the keys of transformers 4 (`rope_theta`, `torch_dtype`) and those of transformers 5
(`rope_parameters`, `dtype`). A setting that this model does not support, and that would change its
output, is an error that names the key.
"""

from dataclasses import dataclass
from pathlib import Path

from models.qwen3.checkpoint.json_file import CheckpointError, JsonFile
from models.qwen3.config import ITEMSIZE, Qwen3Config

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
ARCHITECTURE = "Qwen3ForCausalLM"
MODEL_TYPE = "qwen3"
_ONLY_DENSE = ", which is not supported: only dense Qwen3 models are"


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """A checkpoint's default generation settings; the defaults here are those of transformers.

    Attributes:
      eos_token_ids: each of them ends a sequence; may be empty.
      top_k: 0 means no limit.
    """

    eos_token_ids: tuple[int, ...] = ()
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0


def read_config(folder: Path, *, dtype: str | None = None) -> Qwen3Config:
    """The config of a checkpoint's model.

    Args:
      dtype: dtype to run the model in; by default that of the checkpoint.

    Raises:
      CheckpointError: config.json is missing or damaged, describes another architecture, or has a
        setting that this model does not support.
    """
    if dtype is not None and dtype not in ITEMSIZE:
        raise ValueError(f"dtype must be one of {', '.join(ITEMSIZE)}, not {dtype!r}")
    file = _open(folder)
    _check_architecture(file)
    _check_supported(file)
    try:
        return Qwen3Config(
            vocab_size=file.integer("vocab_size"),
            hidden_size=file.integer("hidden_size"),
            intermediate_size=file.integer("intermediate_size"),
            num_hidden_layers=file.integer("num_hidden_layers"),
            num_attention_heads=file.integer("num_attention_heads"),
            num_key_value_heads=file.integer("num_key_value_heads"),
            head_dim=file.integer("head_dim"),
            rms_norm_eps=_positive(file, "rms_norm_eps"),
            rope_theta=_rope_theta(file),
            # transformers omits the key if it has Qwen3's default, which is false.
            tie_word_embeddings=file.flag("tie_word_embeddings"),
            dtype=dtype or _dtype(file),
        )
    except ValueError as error:
        raise CheckpointError(f"{file.path}: {error}") from None


def read_generation_config(folder: Path) -> GenerationConfig:
    """Reads generation_config.json; transformers' defaults replace an absent file or key.

    End-of-sequence ids default to those in config.json.

    Raises:
      CheckpointError: a file is damaged, or a value is out of range.
    """
    config = _open(folder)
    path = folder / GENERATION_CONFIG
    if not path.exists():
        return GenerationConfig(eos_token_ids=_eos_token_ids(config))
    file = JsonFile.read(path)
    temperature = file.number("temperature", "a number of at least 0", default=1.0)
    if temperature < 0:
        raise file.wrong("temperature", "a number of at least 0")
    top_p = file.number("top_p", "a number above 0 and up to 1", default=1.0)
    if not 0 < top_p <= 1:
        raise file.wrong("top_p", "a number above 0 and up to 1")
    top_k = file.data.get("top_k")
    if top_k is not None and (type(top_k) is not int or top_k < 0):
        raise file.wrong("top_k", "an integer of at least 0")
    return GenerationConfig(
        eos_token_ids=_eos_token_ids(file) or _eos_token_ids(config),
        do_sample=file.flag("do_sample"),
        temperature=temperature,
        top_k=50 if top_k is None else top_k,
        top_p=top_p,
    )


def _open(folder: Path) -> JsonFile:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; expected a checkpoint with {CONFIG}")
    return JsonFile.read(folder / CONFIG)


def _check_architecture(file: JsonFile) -> None:
    architectures = file.data.get("architectures")
    if architectures is not None and architectures != [ARCHITECTURE]:
        raise file.wrong("architectures", f'["{ARCHITECTURE}"]', _ONLY_DENSE)
    if file.data.get("model_type") != MODEL_TYPE:
        raise file.wrong("model_type", f'"{MODEL_TYPE}"', _ONLY_DENSE)


def _check_supported(file: JsonFile) -> None:
    """Raises for settings that this model would ignore and that change the output."""
    if file.flag("attention_bias"):
        raise file.wrong("attention_bias", "false", "; biases are not supported")
    if file.data.get("hidden_act", "silu") != "silu":
        raise file.wrong("hidden_act", '"silu"', "; no other activation is supported")
    if file.data.get("rope_scaling") is not None:
        raise file.wrong("rope_scaling", "null", "; scaled RoPE is not supported")
    if file.flag("use_sliding_window"):
        raise file.wrong("use_sliding_window", "false", "; sliding windows are not supported")
    layer_types = file.data.get("layer_types") or []
    if not isinstance(layer_types, list) or set(map(str, layer_types)) - {"full_attention"}:
        raise file.wrong("layer_types", 'only "full_attention"', "; no other type is supported")
    if file.data.get("quantization_config") is not None:
        raise file.wrong(
            "quantization_config", "no value", "; quantized checkpoints are not supported"
        )


def _rope_theta(file: JsonFile) -> float:
    parameters = file.data.get("rope_parameters")
    if parameters is None:
        return _positive(file, "rope_theta")
    if not isinstance(parameters, dict):
        raise file.wrong("rope_parameters", "an object")
    inner = JsonFile(file.path, {f"rope_parameters.{k}": v for k, v in parameters.items()})
    if inner.data.get("rope_parameters.rope_type", "default") != "default":
        raise inner.wrong(
            "rope_parameters.rope_type", '"default"', "; scaled RoPE is not supported"
        )
    theta = _positive(inner, "rope_parameters.rope_theta")
    if file.data.get("rope_theta", theta) != theta:
        raise file.wrong("rope_theta", f"{theta} as in rope_parameters")
    return theta


def _positive(file: JsonFile, key: str) -> float:
    value = file.number(key, "a number above 0")
    if value <= 0:
        raise file.wrong(key, "a number above 0")
    return value


def _dtype(file: JsonFile) -> str:
    """The dtype; its key is `dtype` in transformers 5 and `torch_dtype` in transformers 4."""
    key = "dtype" if file.data.get("dtype") is not None else "torch_dtype"
    value = file.data.get(key)
    if not isinstance(value, str) or value not in ITEMSIZE:
        raise file.wrong(key, f"one of {', '.join(ITEMSIZE)}", "; fix: pass --dtype")
    return value


def _eos_token_ids(file: JsonFile) -> tuple[int, ...]:
    """The ids in `eos_token_id`, which is one id, a list of ids, or absent."""
    value = file.data.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(token_id) is not int or token_id < 0 for token_id in ids):
        raise file.wrong("eos_token_id", "token ids of at least 0")
    return tuple(ids)
