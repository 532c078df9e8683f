"""`xlapipe.load` of a step on two devices, which are CPUs as in run_on_cpus.py, called twice.

python load_on_cpus.py FOLDER
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from run_on_cpus import compile_for_cpus, select_cpus
from small_sharded import FEATURES, ROWS

import xlapipe
from xlapipe.run import executable
from xlapipe.run.built_executable import BuiltExecutable
from xlapipe.run.executable import LoadedExecutable


def compile_built(built: BuiltExecutable, devices: Sequence[Any]) -> LoadedExecutable:
    return compile_for_cpus(built.path, devices)


executable.select_devices = select_cpus
executable.load_executable = compile_built
random = np.random.default_rng(0)
weight, x = (random.normal(size=(n, FEATURES)).astype(np.float32) for n in (FEATURES, ROWS))
step = xlapipe.load(Path(sys.argv[1]), wait=False)
placed_x = step.put("x", x)
assert isinstance(placed_x, jax.Array) and len(placed_x.addressable_shards) == 2
given: Any = weight
for _ in range(2):
    given, y, total = step(given, placed_x)  # the second call takes the output of the first
    expected = np.maximum(x @ weight.T, 0)
    weight = weight - 0.5 * expected.T @ x
    for found, value in ((given, weight), (y, expected), (total, expected.sum())):
        np.testing.assert_allclose(np.asarray(found), value, rtol=1e-3, atol=1e-3)
print(*step.arguments, *step.outputs)
