"""Makes the dumps in this folder; see README.md beside it for the versions it was run with.

    python make_fixtures.py OUT gpu TARGET_CONFIG    # jax with jax-cuda13-pjrt and -plugin
    python make_fixtures.py OUT cpu                  # any jax

Run it with a jax of the version that OUT is named after. It keeps the files that the reader reads,
packs them, and takes the paths of the machine out of them.
"""

import gzip
import os
import re
import sys
import tempfile
from pathlib import Path

KEPT = re.compile(
    r".*(after_optimizations\.hlo\.pb|after_optimizations\.txt|buffer-assignment(-values)?\.txt"
    r"|live-range\.txt|thunk_sequence(_after_thunk_passes)?\.txt)"
)
CONFIG = Path(sys.argv[3]).read_text() if sys.argv[2] == "gpu" else ""
if CONFIG:
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402


def step(weights, cache, x, steps):
    """A loop, a branch, a gemm, a norm, a donated cache and an output tuple of twelve."""

    def body(state):
        i, y, seen = state
        return i + 1, jnp.tanh(y @ weights) + y, seen.at[i].set(y.sum(0))

    with jax.named_scope('loop "quoted" {x}, calls=%none'):
        _, y, seen = lax.while_loop(
            lambda state: state[0] < steps, body, (0, x, jnp.zeros((8, 64)))
        )
    y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)
    z = lax.cond(steps > 3, lambda y: y @ y.T, lambda y: (y * 2) @ (y.T + 1), y)
    return y, seen, z, cache.at[2].set(y), [x + i for i in range(8)]


def sharded(weights, x):
    """A gradient with collectives, on two devices."""

    def loss(weights, x):
        hidden = jnp.maximum(x @ weights["a"], 0)
        return jnp.sum((hidden @ weights["b"]).astype(jnp.float32) ** 2)

    gradient = jax.grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.01 * g.astype(w.dtype), weights, gradient)


def lowered(name):
    shape = jax.ShapeDtypeStruct
    if name == "cpu":
        arguments = (
            shape((64, 64), jnp.float32),
            shape((4, 32, 64), jnp.float32),
            shape((32, 64), jnp.float32),
            shape((), jnp.int32),
        )
        return jax.jit(step, donate_argnums=1).lower(*arguments)
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

    devices = topologies.get_topology_desc(
        platform="cuda", target_config=CONFIG, topology="1x1x1" if name == "step" else "1x1x2"
    ).devices
    if name == "step":
        on = SingleDeviceSharding(devices[0])
        arguments = (
            shape((64, 64), jnp.float32, sharding=on),
            shape((4, 32, 64), jnp.float32, sharding=on),
            shape((32, 64), jnp.float32, sharding=on),
            shape((), jnp.int32, sharding=on),
        )
        return jax.jit(step, donate_argnums=1).lower(*arguments)
    import numpy

    rows = NamedSharding(Mesh(numpy.array(devices), ("d",)), PartitionSpec("d", None))
    weights = {
        "a": shape((512, 2048), jnp.bfloat16, sharding=rows),
        "b": shape((2048, 512), jnp.bfloat16, sharding=rows),
    }
    x = shape((256, 512), jnp.bfloat16, sharding=rows)
    out = {"a": rows, "b": rows}
    return jax.jit(sharded, donate_argnums=0, out_shardings=out).lower(weights, x)


def scrubbed(text):
    """`text` without the folders of this machine."""
    own_path = re.escape(str(Path(__file__).parent)).encode() + rb"/[a-z_]+\.py"
    return re.sub(rb'/[^"\s]*/(?=site-packages/)', b"/", re.sub(own_path, b"model.py", text))


def scrubbed_proto(data):
    """An HloProto without the folders of this machine."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from xlapipe.dump.readers.hlo_proto import HloProto

    proto = HloProto.FromString(data)
    index = proto.hlo_module.stack_frame_index
    index.file_names[:] = [scrubbed(file.encode()).decode() for file in index.file_names]
    for computation in proto.hlo_module.computations:
        for instruction in computation.instructions:
            metadata = instruction.metadata
            if metadata.source_file:
                metadata.source_file = scrubbed(metadata.source_file.encode()).decode()
    return proto.SerializeToString(deterministic=True)


def main():
    out, name = Path(sys.argv[1]), sys.argv[2]
    for part in ("cpu",) if name == "cpu" else ("step", "sharded"):
        with tempfile.TemporaryDirectory() as folder:
            options = {
                "xla_dump_to": folder,
                "xla_dump_hlo_as_proto": True,
                "xla_dump_hlo_as_text": True,
            }
            if part == "sharded":
                options["xla_gpu_enable_nccl_user_buffers"] = True
            lowered(part).compile(compiler_options=options)
            target = out / part
            target.mkdir(parents=True, exist_ok=True)
            for path in sorted(Path(folder).iterdir()):
                if not KEPT.fullmatch(path.name):
                    continue
                data = path.read_bytes()
                data = scrubbed_proto(data) if path.suffix == ".pb" else scrubbed(data)
                kept = target / (path.name + ".gz")
                kept.write_bytes(gzip.compress(data, 9, mtime=0))


main()
