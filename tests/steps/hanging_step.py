"""Steps that never finish to trace, for tests of interrupts."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from xlapipe import Workload


def _hang(x: Any) -> Any:
    folder = Path(os.environ["HANGING_STEPS"])
    tempfile.mkdtemp()  # as XLA makes while it compiles
    (folder / f"{os.getpid()}.new").write_text("")
    (folder / f"{os.getpid()}.new").rename(folder / str(os.getpid()))
    while True:
        time.sleep(1)


def hang(batch: int = 1) -> Workload:
    x = jax.ShapeDtypeStruct((batch, 8), jnp.float32)
    return Workload(name="hang", fn=_hang, args=(x,))
