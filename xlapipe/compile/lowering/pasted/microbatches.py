import jax
import jax.numpy as jnp


def accumulated(gradient, microbatches=4, batch=(1,)):
    """The mean of `gradient`, of `jax.grad` or `jax.value_and_grad`, over parts of a batch.

    The batch is the first axis of all arrays of the arguments at the positions `batch`.
    """

    def call(*args, **kwargs):
        def of(part):
            own = jax.tree.map(lambda leaf: leaf, args)  # modules of their own
            return gradient(*(part.get(n, value) for n, value in enumerate(own)), **kwargs)

        def in_parts(array):
            return array.reshape(microbatches, -1, *array.shape[1:])

        def add(total, part):
            return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, of(part)), None

        parts = {n: jax.tree.map(in_parts, args[n]) for n in batch}
        results = jax.eval_shape(lambda: of(jax.tree.map(lambda array: array[0], parts)))
        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), results
        )
        total, _ = jax.lax.scan(add, zeros, parts)
        return jax.tree.map(lambda a, b: (a / microbatches).astype(b.dtype), total, results)

    return call
