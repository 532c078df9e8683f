"""Small steps whose values have one purpose each that is easily mistaken."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.sharding import SingleDeviceSharding

from xlapipe import Workload

Array = jax.Array
SIDE = 512
F32 = jnp.float32


def _array(*shape: int, dtype=F32, sharding=None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _accumulate(weights, batches):
    def add(total, batch):
        def loss(w):
            return jnp.mean(jnp.tanh(batch @ w) ** 2)

        return total + jax.grad(loss)(weights), None

    total, _ = jax.lax.scan(add, jnp.zeros_like(weights), batches)
    return weights - 0.1 * total


def _sample(weights, buffer, rows, key):
    buffer = jax.lax.dynamic_update_slice_in_dim(buffer, rows, 0, 0)
    batch = buffer[jax.random.randint(key, (64,), 0, buffer.shape[0])]
    gradient = jax.grad(lambda w: jnp.mean(jnp.tanh(batch @ w) ** 2))(weights)
    return weights - 0.1 * gradient, buffer


def _stack(x):
    return jax.lax.scan(lambda x, _: (jnp.sin(x), x), x, None, length=100)[1]


def _gather(weights, x):
    return jax.grad(lambda w: jnp.mean(jax.nn.relu(x @ w) ** 2))(weights)


def _host(weights, moments, x):
    def loss(ws):
        return jnp.mean(jnp.tanh(jnp.tanh(x @ ws[0]) @ ws[1]) ** 2)

    new_weights, new_moments = [], []
    for w, m, g in zip(weights, moments, jax.grad(loss)(weights), strict=True):
        moved = 0.9 * jax.device_put(m, jax.memory.Space.Device) + g
        new_weights.append(w - 1e-3 * moved)
        new_moments.append(jax.device_put(moved, jax.memory.Space.Host))
    return new_weights, new_moments


def _debug(cache, row):
    new = jax.lax.dynamic_update_slice(cache, row, (3, 0))
    return new, {"debug": new}


def accumulation() -> Workload:
    """Sums gradients over four batches."""
    args = (_array(SIDE, SIDE), _array(4, 64, SIDE))
    return Workload(name="accumulation", fn=_accumulate, args=args, donate_argnums=0)


def square_batch() -> Workload:
    def step(weights, batch):
        gradients = jax.grad(lambda ws: jnp.mean(jnp.tanh(batch @ ws["w"]) ** 2))(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    return Workload(
        name="square_batch", fn=step, args=({"w": _array(SIDE, SIDE)}, _array(SIDE, SIDE))
    )


def replay() -> Workload:
    """Samples from a buffer that gets new rows."""
    args = (_array(64, 32), _array(4096, 64), _array(16, 64), _array(2, dtype=jnp.uint32))
    return Workload(name="replay", fn=_sample, args=args, donate_argnums=(0, 1))


def stack() -> Workload:
    """Returns what a loop collects."""
    return Workload(name="stack", fn=_stack, args=(_array(4096),))


def gather() -> Workload:
    """Gathers a weight for one product of the forward pass."""
    args = (_array(SIDE, SIDE), _array(512, SIDE))
    specs = {"in_specs": (P("d"), P("d"))}
    return Workload(name="gather", fn=_gather, args=args, mesh={"d": 8}, **specs)


def host() -> Workload:
    """Keeps moments in the host's memory."""
    pinned = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    moments = [_array(SIDE, SIDE, sharding=pinned)] * 2
    args = ([_array(SIDE, SIDE)] * 2, moments, _array(64, SIDE))
    return Workload(name="host", fn=_host, args=args, donate_argnums=(0, 1))


def sort() -> Workload:
    """Sorts with CUB, which needs scratch memory."""
    return Workload(name="sort", fn=jnp.sort, args=(_array(1 << 22),))


def debug() -> Workload:
    """Returns a cache twice."""
    args = (_array(SIDE, SIDE), _array(1, SIDE))
    return Workload(name="debug", fn=_debug, args=args, donate_argnums=0)


def unchanged() -> Workload:
    """Returns an argument as it was passed."""
    return Workload(name="unchanged", fn=lambda w, x: (w, x @ w), args=(_array(64, 64),) * 2)
