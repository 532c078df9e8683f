"""The training step with all layers' weights gathered before the loop."""

from typing import Any
from unittest import mock

from models.qwen3.sharded import forward, loss
from models.qwen3.sharded.gathered_weight import gathered
from models.qwen3.sharded.workloads import qwen3_train
from xlapipe import Workload


def gathered_at_once() -> Workload:
    """The training step, which gathers the weights of all layers before the loop over layers."""

    def layers(x: Any, stacked: Any, config: Any, *, unrolled: bool) -> Any:
        whole = {
            name: gathered(leaf, 1, config.dtype) if leaf.ndim > 2 else leaf
            for name, leaf in stacked.items()
        }
        with mock.patch.object(forward, "gathered", lambda leaf, axis, dtype: leaf):
            return forward.layers(x, whole, config, unrolled=unrolled)

    loss.layers = layers
    return qwen3_train(layers=3, batch=2, seq=128, devices=4, tensor=2)
