"""Imports torchax 0.0.13 with a torch that has no named tensors any more.

torch 2.13 removed the overloads for named tensors, such as `aten.index_add.dimname`, which torchax
lists when it is imported. No program of today calls them.
"""

from types import ModuleType
from typing import Any

import torch


def import_torchax() -> ModuleType:
    """torchax; overloads for named tensors that torch lacks stand for nothing meanwhile."""
    packet: Any = torch._ops.OpOverloadPacket
    original = packet.__getattr__

    def lookup(self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            if "dimname" in name.lower() or "names" in name:
                return object()
            raise

    packet.__getattr__ = lookup
    try:
        import torchax

        torchax.default_env()
    finally:
        packet.__getattr__ = original
    return torchax
