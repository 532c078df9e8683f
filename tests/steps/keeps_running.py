"""A module that leaves a thread and a slow function for the interpreter's end."""

import atexit
import threading
import time

import jax
import jax.numpy as jnp

from xlapipe import Workload

threading.Thread(target=time.sleep, args=(900,)).start()
atexit.register(time.sleep, 900)


def workload(n: int = 64) -> Workload:
    return Workload(name="keeps-running", fn=jnp.sin, args=(jax.ShapeDtypeStruct((n,), "f"),))
