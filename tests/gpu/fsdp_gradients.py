"""Compares gradients of the sharded MLP on several GPUs with those on one; prints JSON.

    python tests/gpu/fsdp_gradients.py

Arrays and sizes are the same; gemms are split differently, and sums are in another order. An error
is the norm of the difference over the norm of the expected value, for the leaf with the largest.
"""

import json
from typing import Any

import jax
import numpy as np

from models.fsdp_mlp import training
from models.fsdp_mlp.sizes import MLPSizes

HIDDEN, LAYERS, ROWS = 2048, 3, 2048


def gradients(devices: int, dtype: str) -> tuple[Any, Any]:
    """Loss and gradients on `devices` GPUs and on one, as numpy arrays."""
    sizes = MLPSizes(hidden=HIDDEN, layers=LAYERS, batch=ROWS // devices, devices=devices)
    mesh = training.device_mesh(jax.devices("gpu")[:devices])
    params = jax.device_get(training.initial_state(sizes, 3)["params"])
    batch = jax.device_get([array.astype(dtype) for array in training.random_batch(sizes, 4)])
    plain = jax.jit(training.plain_gradients(sizes))(params, *batch)
    of_params, *of_batch = training.shardings(
        mesh, (training.STATE_SPECS["params"], *training.IN_SPECS[1:])
    )
    arguments = (
        jax.tree.map(lambda leaf: jax.device_put(leaf, of_params), params),
        *(jax.device_put(array, spec) for array, spec in zip(batch, of_batch, strict=True)),
    )
    with jax.set_mesh(mesh):
        sharded = jax.jit(training.gradients(sizes))(*arguments)
    return jax.device_get(sharded), jax.device_get(plain)


def largest_error(actual: Any, expected: Any) -> float:
    errors = jax.tree.map(
        lambda a, b: float(
            np.linalg.norm(np.asarray(a, np.float64) - np.asarray(b, np.float64))
            / np.linalg.norm(np.asarray(b, np.float64))
        ),
        actual,
        expected,
    )
    return max(jax.tree.leaves(errors))


def main() -> None:
    jax.config.update("jax_default_matmul_precision", "highest")
    rows = []
    for devices in (count for count in (2, 4) if count <= len(jax.devices("gpu"))):
        exact, plain_exact = gradients(devices, "float32")
        bfloat16, plain_bfloat16 = gradients(devices, "bfloat16")
        rows.append(
            {
                "devices": devices,
                "hidden": HIDDEN,
                "layers": LAYERS,
                "rows": ROWS,
                "float32_from_one_device": largest_error(exact, plain_exact),
                "bfloat16_from_one_device": largest_error(bfloat16, plain_bfloat16),
                "bfloat16_from_float32": largest_error(bfloat16, exact),
                "one_device_bfloat16_from_float32": largest_error(plain_bfloat16, plain_exact),
            }
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
