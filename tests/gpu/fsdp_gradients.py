"""Gradients of the sharded MLP on several GPUs against those of one, printed as JSON.

    python tests/gpu/fsdp_gradients.py

The same arrays and the same sizes; what differs is where gemms are cut and in which order sums
are taken. Errors are the norm of the difference over the norm of the expected, of
the leaf that is worst.
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
    batch = jax.device_get([each.astype(dtype) for each in training.random_batch(sizes, 4)])
    plain = jax.jit(training.plain_gradients(sizes))(params, *batch)
    where = training.shardings(mesh, (training.STATE_SPECS["params"], *training.IN_SPECS[1:]))
    placed = (
        jax.tree.map(lambda leaf: jax.device_put(leaf, where[0]), params),
        *(jax.device_put(each, spec) for each, spec in zip(batch, where[1:], strict=True)),
    )
    with jax.set_mesh(mesh):
        sharded = jax.jit(training.gradients(sizes))(*placed)
    return jax.device_get(sharded), jax.device_get(plain)


def worst(found: Any, expected: Any) -> float:
    errors = jax.tree.map(
        lambda a, b: float(
            np.linalg.norm(np.asarray(a, np.float64) - np.asarray(b, np.float64))
            / np.linalg.norm(np.asarray(b, np.float64))
        ),
        found,
        expected,
    )
    return max(jax.tree.leaves(errors))


def main() -> None:
    jax.config.update("jax_default_matmul_precision", "highest")
    rows = []
    for devices in (count for count in (2, 4) if count <= len(jax.devices("gpu"))):
        exact, plain_exact = gradients(devices, "float32")
        narrow, plain_narrow = gradients(devices, "bfloat16")
        rows.append(
            {
                "devices": devices,
                "hidden": HIDDEN,
                "layers": LAYERS,
                "rows": ROWS,
                "float32_from_one_device": worst(exact, plain_exact),
                "bfloat16_from_one_device": worst(narrow, plain_narrow),
                "bfloat16_from_float32": worst(narrow, exact),
                "one_device_bfloat16_from_float32": worst(plain_narrow, plain_exact),
            }
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
