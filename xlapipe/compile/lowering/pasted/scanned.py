import jax
import jax.numpy as jnp


def scanned(body, carry, items):
    """`for item in items: carry = body(carry, item)`, of equal items, as a `jax.lax.scan`."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *items)
    return jax.lax.scan(lambda carry, item: (body(carry, item), None), carry, stacked)[0]
