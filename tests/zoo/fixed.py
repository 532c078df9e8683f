"""The steps of `refused.py` after the fix that each message names, if it is a change of code."""

import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from tests.zoo import refused
from xlapipe import Workload

FIXED: dict[str, Workload] = {
    "lost_donation": Workload(name="fixed", fn=refused.update, args=(refused.X, refused.X)),
    "static_string": Workload(
        name="fixed", fn=lambda x, mode: x, args=(refused.X, "hello"), static_argnames="mode"
    ),
    "two_meshes": Workload(
        name="fixed",
        fn=lambda x, y: x + y,
        args=(refused.sharded(refused.MESH, P("x")), refused.sharded(refused.MESH, P("x"))),
    ),
    "specs_and_shardings": Workload(
        name="fixed", fn=lambda x: x, args=(refused.sharded(refused.MESH, P("x")),), mesh={"x": 4}
    ),
    "jitted_shardings_and_mesh": Workload(
        name="fixed", fn=refused.jitted_shardings_and_mesh.fn, args=(refused.X,)
    ),
    "updates_in_place": Workload(
        name="fixed", fn=nnx.jit(refused.train), args=(*refused.trained(), refused.X)
    ),
    "empty_program": Workload(name="fixed", fn=jnp.tanh, args=(refused.X,)),
}
