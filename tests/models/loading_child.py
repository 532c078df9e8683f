"""Loads a checkpoint, for a parent process that measures this process's memory.

    python loading_child.py FOLDER HOW

HOW is the bytes of a piece, or `at-once`, which reads every tensor before any is on the device.
Prints `ready`, waits for a line, loads, prints the bytes of the parameters, waits for a line.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from safetensors.numpy import load_file

from models.qwen3.checkpoint.config_files import read_config
from models.qwen3.checkpoint.load_params import load_params
from models.qwen3.steps import abstract_model


def main(folder: Path, how: str) -> None:
    config = read_config(folder)
    abstract_model(config)
    jax.block_until_ready(jnp.zeros(1))
    print("ready", flush=True)
    input()
    params: Any
    if how == "at-once":
        files = sorted(folder.glob("*.safetensors"))
        all_tensors = [load_file(file) for file in files]
        params = [jnp.array(tensor) for tensors in all_tensors for tensor in tensors.values()]
    else:
        params = load_params(folder, config, piece_bytes=int(how))
    print(sum(leaf.nbytes for leaf in jax.tree.leaves(params)), flush=True)
    input()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
