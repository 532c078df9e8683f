"""The model compared with transformers' Qwen3ForCausalLM, for the same weights from a checkpoint.

The figures in `tests/gpu/qwen3_reference/` are recorded with the versions and the machine.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.qwen3.checkpoint.config_files import read_config
from models.qwen3.checkpoint.load_params import load_params
from models.qwen3.checkpoint.random_checkpoint import tensors_sha256, write_random_checkpoint
from models.qwen3.config import Qwen3Config
from models.qwen3.modules.cache import init_cache
from models.qwen3.steps import decode_step, prefill_step

pytestmark = [pytest.mark.jax, pytest.mark.slow]

FOLDER = Path(__file__).parent.parent / "gpu" / "qwen3_reference"
CASES = json.loads((FOLDER / "reference.json").read_text())["cases"]
NEW_TOKENS = 128


@cache
def expected_logits() -> dict[str, Any]:
    with np.load(FOLDER / "reference.npz") as file:
        return dict(file)


@pytest.fixture(scope="module", params=sorted(CASES))
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Qwen3Config, Any]:
    """A case, its config and its parameters, both read from a checkpoint."""
    name = request.param
    config, seed = Qwen3Config(**CASES[name]["config"]), CASES[name]["seed"]
    assert tensors_sha256(config, seed) == CASES[name]["tensors_sha256"], (
        "the weights differ from those of the reference"
    )
    folder = write_random_checkpoint(
        tmp_path_factory.mktemp(name) / "model", config, seed=seed, shards=2
    )
    assert read_config(folder) == config
    return name, config, load_params(folder, config)


def greedy(config: Qwen3Config, params: Any, prompts: list[list[int]]) -> tuple[Any, Any]:
    """New tokens [B, NEW_TOKENS], and logits [2, B, V] of the first and the last step."""
    longest = max(map(len, prompts))
    ids = np.array([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    lengths = jnp.array([len(prompt) for prompt in prompts])
    cache_ = init_cache(config, batch=len(prompts), cache_length=longest + NEW_TOKENS)
    prefill = jax.jit(prefill_step(config), donate_argnums=1)
    decode = jax.jit(decode_step(config), donate_argnums=1)
    out = prefill(params, cache_, jnp.asarray(ids), lengths)
    logits = [out["logits"]]
    tokens = [jnp.argmax(out["logits"], -1)]
    for step in range(NEW_TOKENS - 1):
        out = decode(params, out["cache"], tokens[-1], lengths + step)
        logits.append(out["logits"])
        tokens.append(jnp.argmax(out["logits"], -1))
    return np.stack(tokens, axis=1), np.stack([logits[0], logits[-1]])


@pytest.mark.parametrize("run", ["one", "batch"])
def test_logits_and_greedy_tokens_match_transformers(
    model: tuple[str, Qwen3Config, Any], run: str
) -> None:
    name, config, params = model
    case = CASES[name]["runs"][run]
    tokens, logits = greedy(config, params, case["prompts"])
    expected = expected_logits()[f"{name}_{run}"]
    assert tokens.shape == (len(case["prompts"]), NEW_TOKENS)
    assert tokens.tolist() == case["tokens"]
    error = np.linalg.norm(logits - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert error.max() < 1e-4


def test_the_reference_is_sensitive_to_mistakes_but_not_to_rounding() -> None:
    """Prompts of unequal length, varied tokens, and no near ties between tokens."""
    for case in CASES.values():
        batch = case["runs"]["batch"]
        assert len({len(prompt) for prompt in batch["prompts"]}) == len(batch["prompts"])
        assert all(len(set(row)) >= 9 for row in batch["tokens"])
        assert batch["smallest_margin"] > 3e-5
