"""config.json and generation_config.json of Qwen3 checkpoints, good and bad."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.qwen3.checkpoint.config_files import (
    GenerationConfig,
    read_config,
    read_generation_config,
)
from models.qwen3.checkpoint.json_file import CheckpointError
from models.qwen3.checkpoint.random_checkpoint import huggingface_config
from models.qwen3.config import QWEN3_0_6B, Qwen3Config

ABSENT = object()


def write(folder: Path, *, name: str = "config.json", **changes: Any) -> Path:
    """Writes the 0.6B model's config.json with changes, or another file with only these keys."""
    data = huggingface_config(QWEN3_0_6B) if name == "config.json" else {}
    data |= changes
    present = {key: value for key, value in data.items() if value is not ABSENT}
    (folder / name).write_text(json.dumps(present))
    return folder


@pytest.mark.parametrize(
    "config",
    [
        QWEN3_0_6B,
        Qwen3Config(
            vocab_size=7,
            hidden_size=6,
            intermediate_size=5,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=3,
            head_dim=2,
            rms_norm_eps=1e-5,
            rope_theta=1e4,
            tie_word_embeddings=False,
            dtype="float16",
        ),
    ],
)
def test_every_field_is_read(tmp_path: Path, config: Qwen3Config) -> None:
    assert read_config(write(tmp_path, **huggingface_config(config))) == config


def test_keys_of_transformers_5_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        rope_theta=ABSENT,
        rope_scaling=ABSENT,
        torch_dtype=ABSENT,
        dtype="float32",
        rope_parameters={"rope_theta": 5000000, "rope_type": "default"},
        layer_types=["full_attention"] * 28,
    )
    assert read_config(tmp_path) == replace(QWEN3_0_6B, dtype="float32", rope_theta=5e6)


def test_keys_that_transformers_omits_have_its_defaults(tmp_path: Path) -> None:
    write(
        tmp_path,
        **dict.fromkeys(
            ("tie_word_embeddings", "attention_bias", "use_sliding_window", "architectures"), ABSENT
        ),
    )
    assert read_config(tmp_path) == replace(QWEN3_0_6B, tie_word_embeddings=False)


def test_a_given_dtype_replaces_the_checkpoints(tmp_path: Path) -> None:
    write(tmp_path, torch_dtype="float8_e4m3fn")
    assert read_config(tmp_path, dtype="float32").dtype == "float32"
    with pytest.raises(ValueError, match="int8"):
        read_config(tmp_path, dtype="int8")


@pytest.mark.parametrize(
    ("changes", "key", "found"),
    [
        *(
            ({key: ABSENT}, key, "no value")
            for key in (
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "rms_norm_eps",
                "rope_theta",
                "torch_dtype",
                "model_type",
            )
        ),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "architectures", "Qwen3MoeForCausalLM"),
        ({"architectures": ["LlamaForCausalLM"]}, "architectures", "LlamaForCausalLM"),
        ({"model_type": "qwen2"}, "model_type", "qwen2"),
        ({"attention_bias": True}, "attention_bias", "true"),
        ({"attention_bias": "no"}, "attention_bias", '"no"'),
        ({"hidden_act": "gelu"}, "hidden_act", "gelu"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling", "yarn"),
        ({"rope_parameters": [1]}, "rope_parameters", "[1]"),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn"}}, "rope_type", "yarn"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters.rope_theta", "no value"),
        ({"rope_parameters": {"rope_theta": 5e6}}, "rope_theta", "1000000.0"),
        ({"rope_theta": 0}, "rope_theta", "0"),
        ({"rope_theta": 10**400}, "rope_theta", "1000"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps", '"1e-6"'),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps", "NaN"),
        ({"use_sliding_window": True}, "use_sliding_window", "true"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types", "sliding"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config", "fp8"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "0"),
        ({"num_hidden_layers": 28.0}, "num_hidden_layers", "28.0"),
        ({"num_hidden_layers": True}, "num_hidden_layers", "true"),
        ({"torch_dtype": "float64"}, "torch_dtype", "float64"),
        ({"dtype": ["bfloat16"]}, "dtype", "bfloat16"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "(3)"),
        ({"head_dim": 127}, "head_dim", "127"),
    ],
)
def test_errors_of_config_json_name_file_key_and_value(
    tmp_path: Path, changes: dict[str, Any], key: str, found: str
) -> None:
    write(tmp_path, **changes)
    with pytest.raises(CheckpointError) as error:
        read_config(tmp_path)
    message = str(error.value)
    assert message.startswith(f"{tmp_path / 'config.json'}: ")
    assert key in message
    assert found in message
    assert len(message) < 500


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not valid JSON"),
        ('{"a": 1, "a": 2}', "not valid JSON: the key 'a' occurs twice"),
        ("[]", "expected a JSON object, found list"),
        ("[" * 100_000, "not valid JSON"),
        ("\udcff", "not valid JSON"),
    ],
)
def test_a_file_that_is_not_a_json_object_is_an_error(
    tmp_path: Path, text: str, expected: str
) -> None:
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    where = re.escape(str(tmp_path / "config.json"))
    with pytest.raises(CheckpointError, match=f"^{where}: {expected}"):
        read_config(tmp_path)


@pytest.mark.parametrize("read", [read_config, read_generation_config])
def test_a_missing_folder_or_config_is_an_error_that_names_it(tmp_path: Path, read: Any) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        read(tmp_path)
    with pytest.raises(CheckpointError, match="nowhere: no such folder"):
        read(tmp_path / "nowhere")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        read(tmp_path)


def test_generation_config_is_read(tmp_path: Path) -> None:
    write(tmp_path, eos_token_id=4)
    write(
        tmp_path,
        name="generation_config.json",
        eos_token_id=[2, 1],
        do_sample=True,
        temperature=0.6,
        top_k=20,
        top_p=0.95,
    )
    assert read_generation_config(tmp_path) == GenerationConfig(
        eos_token_ids=(2, 1), do_sample=True, temperature=0.6, top_k=20, top_p=0.95
    )


@pytest.mark.parametrize("exists", [False, True])
def test_defaults_replace_an_absent_generation_config_or_key(tmp_path: Path, exists: bool) -> None:
    write(tmp_path, eos_token_id=4)
    if exists:
        write(tmp_path, name="generation_config.json", temperature=None)
    assert read_generation_config(tmp_path) == GenerationConfig(
        eos_token_ids=(4,), do_sample=False, temperature=1.0, top_k=50, top_p=1.0
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 2.5),
        ("do_sample", 1),
        ("eos_token_id", [1, "2"]),
        ("eos_token_id", -1),
    ],
)
def test_a_generation_config_out_of_range_is_an_error(tmp_path: Path, key: str, value: Any) -> None:
    write(tmp_path)
    write(tmp_path, name="generation_config.json", **{key: value})
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {key}: expected .*found"):
        read_generation_config(tmp_path)
