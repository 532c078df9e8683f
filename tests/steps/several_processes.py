"""Steps over two and more hosts whose processes trace the same program, or others."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlapipe import Workload

X = jax.ShapeDtypeStruct((64, 8), jnp.float32)


def workload(form: str, devices: int = 16) -> Workload:
    def step(x: Any) -> Any:
        y = x * 2
        if form == "process" and jax.process_index() == 1:
            y = y + 1
        if form == "local":
            y = y * sum(device.id for device in jax.local_devices())
        if form == "constant":
            y = y + np.float32(time.perf_counter_ns() % 2**20)
        if form == "size":
            y = y / jax.process_count()
        if form == "callback":
            jax.debug.callback(lambda value: None, y.sum())
        return y.sum()

    spec = jax.sharding.PartitionSpec("data")
    return Workload(name="step", fn=step, args=(X,), mesh={"data": devices}, in_specs=(spec,))
