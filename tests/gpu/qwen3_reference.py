"""Writes references of transformers' Qwen3ForCausalLM, for random weights from a seed.

    python tests/gpu/qwen3_reference.py float32 OUT_FOLDER
    python tests/gpu/qwen3_reference.py bfloat16 OUT_FOLDER

Needs torch and transformers, which are not dependencies of xlapipe. `float32` runs small models on
the CPU; `tests/models/test_qwen3_transformers.py` compares with its output. `bfloat16` needs a GPU:
it runs transformers in bfloat16 and float32, and this repository's model in bfloat16, with the same
weights of the 0.6B model, and writes errors of the logits. Both also write the command, the machine
and the versions.
"""

import json
import os
import platform
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leaves memory for torch

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from models.qwen3.checkpoint.random_checkpoint import SMALL, tensors_sha256, write_random_checkpoint
from models.qwen3.config import QWEN3_0_6B

NEW_TOKENS = 128
# Configs and seeds for which greedy tokens vary, and are not near ties.
TIED = replace(SMALL, dtype="float32", rope_theta=1e4)
UNTIED = replace(
    SMALL,
    dtype="float32",
    tie_word_embeddings=False,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_key_value_heads=1,
    rms_norm_eps=1e-5,
)
CASES = {"tied": (TIED, 1), "untied": (UNTIED, 1)}
BATCH_LENGTHS = (5, 1, 12, 31)

FORCED_TOKENS = 16
LONG_PROMPTS = (8, 256)


def provenance() -> dict[str, Any]:
    """What is needed to reproduce the figures."""
    return {
        "command": " ".join(["python", "tests/gpu/qwen3_reference.py", sys.argv[1], "OUT_FOLDER"]),
        "date": date.today().isoformat(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "torch", "transformers")},
        },
    }


def transformers_model(folder: Path, dtype: torch.dtype, attention: str, device: str) -> Any:
    """The checkpoint as a transformers model."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    return model.to(device).eval()


def greedy(model: Any, prompts: list[list[int]]) -> tuple[list[list[int]], np.ndarray]:
    """New tokens [B][NEW_TOKENS], and logits of each step [NEW_TOKENS, B, V].

    Prompts are padded on the left; generate() derives positions from the attention mask.
    """
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    model.generation_config.eos_token_id = None
    out = model.generate(
        input_ids=torch.tensor(ids),
        attention_mask=torch.tensor(mask),
        do_sample=False,
        temperature=None,
        top_k=None,
        top_p=None,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[:, longest:].tolist(), torch.stack(out.logits).numpy()


def float32(out: Path) -> None:
    """reference.json: prompts and tokens. reference.npz: logits of the first and last step."""
    record: dict[str, Any] = {
        "what": "float32 on the CPU, eager attention, greedy by generate(), padded on the left",
        **provenance(),
        "device": f"CPU ({platform.machine()})",
        "cases": {},
    }
    logits = {}
    rng = np.random.default_rng(0)
    for name, (config, seed) in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = write_random_checkpoint(Path(scratch) / "model", config, seed=seed)
            model = transformers_model(folder, torch.float32, "eager", "cpu")
        batch = [rng.integers(0, config.vocab_size, n).tolist() for n in BATCH_LENGTHS]
        runs = {}
        for run, prompts in (("one", batch[:1]), ("batch", batch)):
            tokens, steps = greedy(model, prompts)
            top = np.sort(steps, axis=-1)
            runs[run] = {
                "prompts": prompts,
                "tokens": tokens,
                "different_tokens": [len(set(row)) for row in tokens],
                # Difference of the two largest logits, relative to the largest magnitude.
                "smallest_margin": float(
                    ((top[..., -1] - top[..., -2]) / np.abs(steps).max(-1)).min()
                ),
            }
            logits[f"{name}_{run}"] = steps[[0, -1]]
        record["cases"][name] = {
            "config": asdict(config),
            "seed": seed,
            "tensors_sha256": tensors_sha256(config, seed),
            "runs": runs,
        }
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "reference.npz", **logits)
    write_json(out / "reference.json", record)


def our_params(folder: Path, record: dict[str, Any]) -> Any:
    """The weights on the device; adds time and memory of loading them to the record."""
    import jax
    import jax.numpy as jnp

    from models.qwen3.checkpoint.config_files import read_config
    from models.qwen3.checkpoint.load_params import load_params
    from models.qwen3.checkpoint.map_leaves import checkpoint_bytes

    config = read_config(folder)
    jax.block_until_ready(jnp.zeros(1))
    with AnonymousMemory() as memory:
        started = time.perf_counter()
        params = jax.block_until_ready(load_params(folder, config))
        seconds = time.perf_counter() - started
    record["load"] = {
        "seconds": round(seconds, 3),
        "bytes": checkpoint_bytes(folder, config),
        "largest_tensor_bytes": config.vocab_size * config.hidden_size * config.itemsize,
        "anonymous_growth_bytes": memory.growth_bytes,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    return params


def our_logits(params: Any, ids: np.ndarray, prompts: Any, decode: Any) -> np.ndarray:
    """Logits [B, FORCED_TOKENS + 1, V]: of the prompts' last tokens, then of forced tokens.

    Args:
      prompts, decode: implementations of the two steps. Kernels decode one sequence at a time.
    """
    import jax
    import jax.numpy as jnp

    from models.qwen3.modules.cache import init_cache
    from models.qwen3.steps import decode_step, prefill_step, xla_options

    config, (batch, length) = QWEN3_0_6B, ids.shape
    start = length - FORCED_TOKENS
    cache = init_cache(config, batch=batch, cache_length=length)
    prefill = jax.jit(
        prefill_step(config, implementation=prompts),
        donate_argnums=1,
        compiler_options=xla_options(prompts),
    )
    # Kernels need whole blocks: the forced tokens after the prompts are padding here.
    out = prefill(params, cache, jnp.asarray(ids), jnp.full((batch,), start))
    first, step = np.asarray(out["logits"]), jax.jit(decode_step(config, implementation=decode))
    decode_batch = batch if decode == "xla" else 1
    logits = []
    for sequence in range(0, batch, decode_batch):
        rows = slice(sequence, sequence + decode_batch)
        cache_of_rows = jax.tree.map(lambda x, rows=rows: x[rows], out["cache"])
        steps = [first[rows]]
        for position in range(start, length):
            token = jnp.asarray(ids[rows, position])
            decoded = step(params, cache_of_rows, token, jnp.full((decode_batch,), position))
            cache_of_rows = decoded["cache"]
            steps.append(np.asarray(decoded["logits"]))
        logits.append(np.stack(steps, axis=1))
    return np.concatenate(logits)


def their_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    """The same logits by transformers, in one pass over the whole sequences."""
    with torch.no_grad():
        tokens = torch.tensor(ids, device="cuda")
        logits = model(tokens, logits_to_keep=FORCED_TOKENS + 1, use_cache=False).logits
    return logits.float().cpu().numpy()


def bfloat16(out: Path) -> None:
    """bfloat16.json: relative errors ‖a - b‖ / ‖b‖ of logits."""
    seed = 3
    record: dict[str, Any] = {
        "what": "relative errors of logits, 0.6B config, all layers; float32 by transformers",
        **provenance(),
        "device": torch.cuda.get_device_name(),
        "config": asdict(QWEN3_0_6B),
        "seed": seed,
        "prompts": LONG_PROMPTS,
        "forced_tokens": FORCED_TOKENS,
    }
    ids = np.random.default_rng(0).integers(0, QWEN3_0_6B.vocab_size, LONG_PROMPTS, np.int32)
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_random_checkpoint(Path(scratch) / "model", QWEN3_0_6B, seed=seed)
        logits = {}
        for attention in ("eager", "sdpa"):
            for dtype in (torch.float32, torch.bfloat16):
                model = transformers_model(folder, dtype, attention, "cuda")
                logits[f"transformers {dtype} {attention}"] = their_logits(model, ids)
                del model
                torch.cuda.empty_cache()
        params = our_params(folder, record)
        for prompts, decode in (("xla", "xla"), ("triton", "triton"), ("hopper", "triton")):
            logits[f"xlapipe bfloat16 {prompts}"] = our_logits(params, ids, prompts, decode)
    exact = logits["transformers torch.float32 eager"]
    for name, values in logits.items():
        rows = np.linalg.norm(values - exact, axis=-1) / np.linalg.norm(exact, axis=-1)
        record[name] = {
            "relative_error": float(np.linalg.norm(values - exact) / np.linalg.norm(exact)),
            "of_prefill": float(rows[:, 0].mean()),
            "of_decode": float(rows[:, 1:].mean()),
            "largest_of_a_row": float(rows.max()),
            "same_token": float((values.argmax(-1) == exact.argmax(-1)).mean()),
        }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "bfloat16.json", record)


class AnonymousMemory:
    """A context manager that samples the growth of this process's anonymous memory."""

    growth_bytes = 0

    def __enter__(self) -> "AnonymousMemory":
        self._start, self._stop = anonymous_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.002):
            self.growth_bytes = max(self.growth_bytes, anonymous_bytes() - self._start)


def anonymous_bytes() -> int:
    """Resident memory that is not backed by a file, including pinned buffers."""
    lines = Path("/proc/self/status").read_text().splitlines()
    figures = dict(line.split(":", 1) for line in lines if line.startswith("Rss"))
    return sum(1024 * int(figures[name].split()[0]) for name in ("RssAnon", "RssShmem"))


def write_json(path: Path, data: Any) -> None:
    """Writes and prints JSON, with each list of integers on one line."""
    text = json.dumps(data, indent=1)
    text = re.sub(r"\[[\s\d,]+\]", lambda numbers: " ".join(numbers[0].split()), text)
    path.write_text(text + "\n")
    print(text)


def main(arguments: list[str]) -> None:
    modes: dict[str, Callable[[Path], None]] = {"float32": float32, "bfloat16": bfloat16}
    if len(arguments) != 2 or arguments[0] not in modes:
        sys.exit(__doc__)
    modes[arguments[0]](Path(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
