"""Makes the two dumps beside this file: one program under the jaxlib before an upgrade and after.

    PYTHONPATH=. python tests/differences/upgrade/make_upgrade.py OUT

Run in the checkout, with jax 0.9.2 for OUT `jaxlib-0.9.2` and with 0.10.2 for `jaxlib-0.10.2`
(each with its jax-cuda13-plugin and jax-cuda13-pjrt, flax, and the CUDA compiler's wheels). The
program is Qwen3's prefill with two layers, two prompts of 64 tokens and a cache of 512, for the
H200, untuned, with no GPU attached. XLA's texts are kept, packed, without the machine's folders.
"""

import gzip
import os
import re
import sys
import tempfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from models.qwen3.workloads import qwen3_prefill
from xlapipe.devices.targets.catalogue import target_named

ROOT = str(Path(__file__).parents[3])
KEPT = re.compile(
    r".*((before|after)_optimizations\.txt|buffer-assignment(-values)?\.txt|live-range\.txt"
    r"|thunk_sequence(_after_thunk_passes)?\.txt)"
)
# Fields of a target config that jaxlib 0.9 does not know.
NEWER = re.compile(r'(?m)^ *(thread_dim_limit_[xyz]: \d+|runtime_version: ".*")\n')


def scrubbed(text: bytes) -> bytes:
    """`text` without the folders of this machine."""
    text = text.replace(f"{ROOT}/".encode(), b"")
    return re.sub(rb'/[^"\s]*/(?=site-packages/|lib/python)', b"/", text)


def main(out: Path) -> None:
    jax.config.update("jax_enable_compilation_cache", False)
    config = target_named("h200").config_text
    if jax.__version_info__ < (0, 10):
        config = NEWER.sub("", config)
    topology = topologies.get_topology_desc(platform="cuda", target_config=config, topology="1x1x1")
    on = SingleDeviceSharding(topology.devices[0])
    workload = qwen3_prefill(batch=2, length=64, cache_length=512)
    arguments = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=on),
        tuple(workload.args),
    )
    lowered = jax.jit(workload.fn, donate_argnums=workload.donated).lower(*arguments)
    with tempfile.TemporaryDirectory() as folder:
        lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        out.mkdir(parents=True, exist_ok=True)
        for path in sorted(Path(folder).iterdir()):
            if KEPT.fullmatch(path.name):
                packed = gzip.compress(scrubbed(path.read_bytes()), 9, mtime=0)
                (out / f"{path.name}.gz").write_bytes(packed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
