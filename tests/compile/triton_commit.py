"""Prints the commit of Triton that the installed jaxlib is built with, as XLA states it.

    python -m tests.compile.triton_commit

XLA of jaxlib 0.12 ignores autotune results of another one; see `TRITON_COMMITS`. It logs the
versions of its backends when it compiles a product, and decides what it logs when it is loaded.
"""

import os
import re
import subprocess
import sys

from xlapipe.devices.targets.catalogue import target_named

_PROGRAM = """
import sys
import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
topology = topologies.get_topology_desc(
    platform="cuda", target_config=sys.stdin.read(), topology="1x1x1"
)
x = jax.ShapeDtypeStruct((64, 64), "bfloat16", sharding=SingleDeviceSharding(topology.devices[0]))
jax.jit(lambda x: x @ x).trace(x).lower(lowering_platforms=("cuda",)).compile()
"""
_COMMIT = re.compile(r"Codegen version: .*\bTRITON:(\w+)")


def triton_commit() -> str:
    """The commit; compiles a product in a process of its own."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "autotuner_cache_interface=1",
    }
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=target_named("h200").config_text,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    match = _COMMIT.search(process.stderr)
    if match is None:
        raise SystemExit(f"XLA states no commit of Triton: {process.stderr[-2000:]}")
    return match[1]


if __name__ == "__main__":
    print(triton_commit())
