"""Runs the sharded MLP on 1 to 8 CPU devices and writes its results: `fsdp_on_cpus.py OUT.npz`.

Runs in a separate process, since jax reads the number of CPU devices once per process.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import install_import_hook

with install_import_hook("models.fsdp_mlp", "beartype.beartype"):
    from models.fsdp_mlp import reference, training
    from models.fsdp_mlp.sizes import MLPSizes

HIDDEN, LAYERS, ROWS, STEPS = 48, 3, 16, 30
DEVICES = (1, 2, 4, 8)
# Training on these device counts is compared with the plain program.
TRAINED_ON = (1, 8)
DTYPES = ("bfloat16", "float32")


def flat(prefix: str, tree: Any) -> dict[str, Any]:
    """Leaves as float64, named `PREFIX/INDEX`; NumPy files do not support bfloat16."""
    leaves = jax.tree.leaves(tree)
    return {f"{prefix}/{n}": np.asarray(leaf, np.float64) for n, leaf in enumerate(leaves)}


def main(out: str) -> None:
    results: dict[str, Any] = {}
    arguments, expected = reference_case()
    for devices in DEVICES:
        sizes = MLPSizes(hidden=HIDDEN, layers=LAYERS, batch=ROWS // devices, devices=devices)
        mesh = training.device_mesh(jax.devices()[:devices])
        state = training.initial_state(sizes, 3, mesh)
        results |= flat(f"params/{devices}", state["params"])
        (kernel, *_) = jax.tree.leaves(state["first_moment"])
        assert kernel.addressable_shards[0].data.shape == (HIDDEN // devices, HIDDEN)
        batch = training.random_batch(sizes, 4, mesh)
        results |= flat(f"batch/{devices}", batch)
        for dtype in DTYPES:
            batch = jax.tree.map(lambda array, dtype=dtype: array.astype(dtype), batch)
            with jax.set_mesh(mesh):
                gradients = jax.jit(training.gradients(sizes))(state["params"], *batch)
            results |= flat(f"gradients/{devices}/{dtype}", gradients)
            if devices == 1:
                plain = jax.jit(training.plain_gradients(sizes))(state["params"], *batch)
                results |= flat(f"gradients/plain/{dtype}", plain)
        results |= flat(f"reference/{devices}", backward(arguments, mesh))
        if devices in TRAINED_ON:
            results |= trained(sizes, state, batch, mesh)
    results |= flat("reference/plain", expected)
    np.savez(out, **results)


def backward(arguments: Any, mesh: Any) -> Any:
    """The gradients of shards by `reference.backward`, in float32."""
    specs = (reference.IN_SPECS[0],) * 3, *reference.IN_SPECS[1:]
    arguments = jax.device_put(arguments, training.shardings(mesh, specs))
    with jax.set_mesh(mesh):
        return jax.jit(reference.backward_over_mesh())(*arguments)


def reference_case() -> tuple[Any, Any]:
    """Arguments of `reference.backward`, and the gradients by autodiff of the plain MLP."""
    rng = np.random.default_rng(5)
    weights = [rng.normal(0, 0.3, (16, 16)).astype(np.float32) for _ in range(3)]
    x = rng.standard_normal((8, 16)).astype(np.float32)
    g = np.float32(0.75)

    def total(weights: Any) -> tuple[Any, Any]:
        hidden = [jnp.asarray(x)]
        for weight in weights:
            hidden.append(jax.nn.relu(hidden[-1] @ weight.T))
        return hidden[-1].sum(), hidden

    @jax.jit
    def differentiated(weights: Any) -> Any:
        _, pull_back, hidden = jax.vjp(total, weights, has_aux=True)
        return pull_back(g)[0], hidden

    gradients, hidden = differentiated(weights)
    shards = tuple(weight.reshape(-1) for weight in weights)
    arguments = (shards, *map(np.asarray, hidden[:3]), np.asarray(hidden[3]) == 0, g)
    return arguments, [np.asarray(gradient).reshape(-1) for gradient in gradients]


def trained(sizes: Any, state: Any, batch: Any, mesh: Any) -> dict[str, Any]:
    """The losses of STEPS steps, and the last parameters, in float32."""
    losses = []
    plain = jax.device_get(state)
    with jax.set_mesh(mesh):
        step = jax.jit(training.training_step(sizes), donate_argnums=0)
        for _ in range(STEPS):
            before, (state, loss) = state, step(state, *batch)
            losses.append(loss)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    name = f"trained/{sizes.devices}"
    results = flat(name, state["params"]) | {f"losses/{sizes.devices}": np.asarray(losses)}
    if sizes.devices == 1:
        step = jax.jit(training.plain_training_step(sizes))
        for _ in range(STEPS):
            plain, loss = step(plain, *jax.device_get(batch))
        results |= flat("trained/plain", plain["params"]) | {"losses/plain": np.asarray([loss])}
    return results


if __name__ == "__main__":
    main(sys.argv[1])
