"""The steps of `refused.py` after the fix that each message names, if it is a change of code."""

import jax
import jax.numpy as jnp
import numpy as np
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
    "jitted_for_a_backend": Workload(name="fixed", fn=jax.jit(jnp.sin), args=(refused.X,)),
    "updates_in_place": Workload(
        name="fixed", fn=nnx.jit(refused.train), args=(*refused.trained(), refused.X)
    ),
    "pmapped": Workload(
        name="fixed",
        fn=jax.shard_map(jax.vmap(refused.mean_over_devices), in_specs=P("i"), out_specs=P("i")),
        args=(refused.X,),
        mesh={"i": 4},
        in_specs=P("i"),
    ),
    "metadata_of_a_checkpoint": Workload(
        name="fixed",
        fn=refused.apply,
        args=jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
            (refused.METADATA, refused.X),
        ),
    ),
    "dtype_as_argument": Workload(
        name="fixed", fn=refused.cast, args=(refused.X, np.float16), static_argnames="dtype"
    ),
    "donation_in_a_library": Workload(
        name="fixed",
        fn=refused.donation_in_a_library.fn,
        args=(refused.X, refused.X),
        donate_argnums=0,
    ),
    "empty_program": Workload(name="fixed", fn=jnp.tanh, args=(refused.X,)),
}
