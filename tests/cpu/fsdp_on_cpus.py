"""Runs the sharded MLP on 1 to 8 CPU devices and writes what it computed: `… OUT.npz`.

A process of its own, since jax takes the number of CPU devices once.
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
DTYPES = ("float32", "bfloat16")


def flat(prefix: str, tree: Any) -> dict[str, Any]:
    """Leaves as float64 by `prefix` and their place; bfloat16 is no dtype of numpy's."""
    leaves = jax.tree.leaves(tree)
    return {f"{prefix}/{n}": np.asarray(leaf, np.float64) for n, leaf in enumerate(leaves)}


def main(out: str) -> None:
    found: dict[str, Any] = {}
    for devices in DEVICES:
        sizes = MLPSizes(hidden=HIDDEN, layers=LAYERS, batch=ROWS // devices, devices=devices)
        mesh = training.device_mesh(jax.devices()[:devices])
        state = training.initial_state(sizes, 3, mesh)
        found |= flat(f"params/{devices}", state["params"])
        (kernel, *_) = jax.tree.leaves(state["first_moment"])
        assert kernel.addressable_shards[0].data.shape == (HIDDEN // devices, HIDDEN)
        for dtype in DTYPES:
            x, target = (a.astype(dtype) for a in training.random_batch(sizes, 4, mesh))
            found |= flat(f"batch/{devices}/{dtype}", (x, target))
            with jax.set_mesh(mesh):
                answer = jax.jit(training.gradients(sizes))(state["params"], x, target)
            found |= flat(f"gradients/{devices}/{dtype}", answer)
            if devices == 1:
                plain = jax.jit(training.plain_gradients(sizes))(state["params"], x, target)
                found |= flat(f"gradients/plain/{dtype}", plain)
        found |= flat(f"reference/{devices}", backward(devices, mesh))
        found |= trained(sizes, state, mesh)
    np.savez(out, **found)


def backward(devices: int, mesh: Any) -> Any:
    """The reference's gradients in float32, and those that jax makes of the plain MLP."""
    keys = jax.random.split(jax.random.key(5), 4)
    weights = [jax.random.normal(key, (16, 16)) / 4 for key in keys[:3]]
    x = jax.random.normal(keys[3], (8, 16))
    hidden = [x]
    for weight in weights:
        hidden.append(jax.nn.relu(hidden[-1] @ weight.T))
    g = jnp.float32(0.75)
    shards = tuple(weight.reshape(-1) for weight in weights)
    arguments = (shards, *hidden[:3], hidden[3] == 0, g)
    specs = (reference.IN_SPECS[0],) * 3, *reference.IN_SPECS[1:]
    arguments = jax.device_put(arguments, training.shardings(mesh, specs))
    with jax.set_mesh(mesh):
        return jax.jit(reference.backward_over_mesh())(*arguments), expected(weights, x, g)


def expected(weights: Any, x: Any, g: Any) -> Any:
    def total(weights: Any) -> Any:
        h = x
        for weight in weights:
            h = jax.nn.relu(h @ weight.T)
        return h.sum()

    _, pull_back = jax.vjp(total, weights)
    return [each.reshape(-1) for each in pull_back(g)[0]]


def trained(sizes: Any, state: Any, mesh: Any) -> dict[str, Any]:
    """Losses of some steps, and the last state, in float32."""
    x, target = (a.astype("float32") for a in training.random_batch(sizes, 4, mesh))
    losses = []
    with jax.set_mesh(mesh):
        step = jax.jit(training.training_step(sizes), donate_argnums=0)
        for _ in range(STEPS):
            before, (state, loss) = state, step(state, x, target)
            losses.append(loss)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    name = f"trained/{sizes.devices}"
    found = flat(name, state["params"]) | {f"losses/{sizes.devices}": np.asarray(losses)}
    if sizes.devices == 1:
        plain = training.initial_state(sizes, 3)
        step = jax.jit(training.plain_training_step(sizes))
        for _ in range(STEPS):
            plain, loss = step(plain, x, target)
        found |= flat("trained/plain", plain["params"]) | {"losses/plain": np.asarray([loss])}
    return found


if __name__ == "__main__":
    main(sys.argv[1])
