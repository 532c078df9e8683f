"""`config.json` and `generation_config.json` of a checkpoint in Hugging Face form. No jax.

Both the keys of transformers 4 (`rope_theta`, `torch_dtype`) and those of transformers 5
(`rope_parameters`, `dtype`) are read. What the model here does not do, and what would change its
output, is refused by name rather than ignored.
"""

from dataclasses import dataclass
from pathlib import Path

from models.qwen3.checkpoint.json_file import CheckpointError, JsonFile
from models.qwen3.config import ITEMSIZE, Qwen3Config

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
ARCHITECTURE = "Qwen3ForCausalLM"
MODEL_TYPE = "qwen3"


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How a checkpoint's authors want text to be generated; transformers' defaults.

    Attributes:
      eos_token_ids: any of them ends a sequence; may be empty.
      top_k: 0 stands for no limit.
    """

    eos_token_ids: tuple[int, ...] = ()
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0


def read_config(folder: Path, *, dtype: str | None = None) -> Qwen3Config:
    """The model that a checkpoint is of.

    Args:
      folder: holds config.json.
      dtype: of the model to run; the checkpoint's own by default.

    Raises:
      CheckpointError: config.json is missing or damaged, of another architecture, or asks for
        something that the model here does not do.
      ValueError: no such dtype.
    """
    if dtype is not None and dtype not in ITEMSIZE:
        raise ValueError(f"dtype must be one of {', '.join(ITEMSIZE)}, not {dtype!r}")
    file = _open(folder)
    _refuse_other_models(file)
    _refuse_unsupported(file)
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
            # transformers leaves it out where it has the default of Qwen3, which is false.
            tie_word_embeddings=file.flag("tie_word_embeddings"),
            dtype=dtype or _dtype(file),
        )
    except ValueError as error:
        raise CheckpointError(f"{file.path}: {error}") from None


def read_generation_config(folder: Path) -> GenerationConfig:
    """generation_config.json, or transformers' defaults where it or one of its keys is absent.

    End-of-sequence ids that it does not name are taken from config.json.

    Raises:
      CheckpointError: a file that is damaged, or a value out of range.
    """
    config = _open(folder)
    path = folder / GENERATION_CONFIG
    if not path.exists():
        return GenerationConfig(eos_token_ids=_eos(config))
    file = JsonFile.read(path)
    temperature = file.number("temperature", "a number of at least 0", default=1.0)
    if temperature < 0:
        raise file.wrong("temperature", "a number of at least 0")
    top_p = file.number("top_p", "a number above 0 and up to 1", default=1.0)
    if not 0 < top_p <= 1:
        raise file.wrong("top_p", "a number above 0 and up to 1")
    top_k = file.data.get("top_k")
    if top_k is not None and (type(top_k) is not int or top_k < 0):
        raise file.wrong("top_k", "a whole number of at least 0")
    return GenerationConfig(
        eos_token_ids=_eos(file) or _eos(config),
        do_sample=file.flag("do_sample"),
        temperature=temperature,
        top_k=50 if top_k is None else top_k,
        top_p=top_p,
    )


def _open(folder: Path) -> JsonFile:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; expected a checkpoint with {CONFIG}")
    return JsonFile.read(folder / CONFIG)


def _refuse_other_models(file: JsonFile) -> None:
    architectures = file.data.get("architectures")
    if architectures is not None and architectures != [ARCHITECTURE]:
        raise file.wrong("architectures", f'["{ARCHITECTURE}"]', _only_dense())
    if file.data.get("model_type") != MODEL_TYPE:
        raise file.wrong("model_type", f'"{MODEL_TYPE}"', _only_dense())


def _only_dense() -> str:
    return ", which is not supported: only dense Qwen3 models are"


def _refuse_unsupported(file: JsonFile) -> None:
    """Refuses what would make the output another one than the checkpoint's authors meant."""
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
        raise file.wrong("layer_types", '"full_attention" alone', "; no other is supported")
    if file.data.get("quantization_config") is not None:
        raise file.wrong(
            "quantization_config", "nothing", "; quantized checkpoints are not supported"
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
        raise file.wrong("rope_theta", f"{theta}, as in rope_parameters,")
    return theta


def _positive(file: JsonFile, key: str) -> float:
    value = file.number(key, "a number above 0")
    if value <= 0:
        raise file.wrong(key, "a number above 0")
    return value


def _dtype(file: JsonFile) -> str:
    """transformers 5 says `dtype`, transformers 4 `torch_dtype`."""
    key = "dtype" if file.data.get("dtype") is not None else "torch_dtype"
    value = file.data.get(key)
    if not isinstance(value, str) or value not in ITEMSIZE:
        raise file.wrong(key, f"one of {', '.join(ITEMSIZE)}", "; another can be asked for")
    return value


def _eos(file: JsonFile) -> tuple[int, ...]:
    """One id, a list of ids, or none."""
    value = file.data.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(each) is not int or each < 0 for each in ids):
        raise file.wrong("eos_token_id", "token ids of at least 0")
    return tuple(ids)
