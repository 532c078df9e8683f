import jax
import jax.numpy as jnp


def vmap_in_blocks(function, in_axes=0, out_axes=0, *, batch_size=1024):
    """`jax.vmap(function, in_axes, out_axes)`, of `batch_size` items at a time."""

    def mapped(*args, **kwargs):
        leaves, tree = jax.tree.flatten((args, kwargs))
        prefix = (in_axes if isinstance(in_axes, int) else tuple(in_axes), 0)
        prefix = jax.tree.map(
            lambda a: "no" if a is None else a, prefix, is_leaf=lambda a: a is None
        )
        axes = jax.tree.leaves(jax.tree.broadcast(prefix, (args, kwargs)))
        items = {n: jnp.moveaxis(leaves[n], a, 0) for n, a in enumerate(axes) if a != "no"}

        def one(item):
            args, kwargs = jax.tree.unflatten(tree, [item.get(n, v) for n, v in enumerate(leaves)])
            return function(*args, **kwargs)

        # A backward pass keeps only the items.
        one = jax.checkpoint(one, prevent_cse=False)
        outputs = jax.lax.map(one, items, batch_size=batch_size)
        places = jax.tree.broadcast(out_axes, outputs)
        return jax.tree.map(lambda value, axis: jnp.moveaxis(value, 0, axis), outputs, places)

    return mapped
