"""A training script that chooses its batch when it starts: the largest that fits the GPU.

python train.py            # compiles a few sizes, then trains with the largest that fits
"""

import jax
import jax.numpy as jnp

import xlapipe

WIDTH, LAYERS = 512, 4


def init(key: jax.Array) -> list[jax.Array]:
    """The weights of an MLP."""
    keys = jax.random.split(key, LAYERS)
    return [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys]


def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
    y = x
    for weight in params:
        y = jnp.tanh(y @ weight)
    return jnp.mean((y - x) ** 2)


def train_step(params: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """One step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(params, x)
    return [w - 0.1 * g for w, g in zip(params, gradients, strict=True)], value


def workload(batch: int) -> xlapipe.Workload:
    """The step with a batch of this size, for xlapipe."""
    return xlapipe.Workload(
        name="largest-batch",
        fn=train_step,
        args=(
            jax.eval_shape(init, jax.random.key(0)),
            jax.ShapeDtypeStruct((batch, WIDTH), jnp.float32),
        ),
        donate_argnums=0,
    )


def choose_batch(*, upper: int | None = None) -> int:
    """The largest multiple of 1,024 whose plan fits an H200, a tenth of which stays free."""
    found = xlapipe.largest(
        "train:workload",
        "batch",
        lower=1024,
        upper=upper,
        multiple_of=1024,
        target="h200",
        memory="usable-14GiB",
        on_done=lambda batch, memory: print(f"batch {batch}: {memory.total_bytes:,} B"),
    )
    if found.value is None:
        raise SystemExit("not even a batch of 1,024 fits")
    return found.value


def main() -> None:
    batch = choose_batch(upper=4096)
    step = jax.jit(train_step, donate_argnums=0)
    params = init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (batch, WIDTH))
    for number in range(3):
        params, value = step(params, x)
        print(f"step {number}: loss {value:.4f}")


if __name__ == "__main__":
    main()
