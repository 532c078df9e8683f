"""Selects the GPUs of jax that an executable runs on; refuses GPUs it was not built for."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import jax

from xlapipe.compile.doctor import missing_to_communicate
from xlapipe.dump.manifest import Manifest
from xlapipe.errors import TargetError
from xlapipe.run.check_devices import check_build, check_hosts, check_kind, first_of, no_gpu


def select_devices(path: Path, manifest: Manifest, hosts: int = 1) -> tuple[Any, ...]:
    """The GPUs to run on, in the order of the mesh.

    If more GPUs are attached than the mesh has, a single process uses the first ones.

    Args:
      path: folder of the executable, for messages.
      hosts: number of hosts that the processes run on.

    Raises:
      DumpError: the executable was built with other versions of jaxlib or the plugin.
      TargetError: it was built for a TPU; the attached GPUs differ from those that it was built
        for in number, kind or hosts; or NCCL is missing.
    """
    check_build(path, manifest)
    attached = _attached_gpus()
    check_hosts(path, manifest, hosts)
    devices = first_devices(path, manifest, attached)
    _check_nccl(path, prod((manifest.mesh or {}).values()))
    check_kind(path, manifest, devices)
    return devices


def first_devices(path: Path, manifest: Manifest, attached: Sequence[Any]) -> tuple[Any, ...]:
    """The first attached devices, one for each position of the mesh.

    Raises:
      TargetError: there are fewer, or several processes have more.
    """
    return first_of(path, manifest, attached, jax.process_count())


def _attached_gpus() -> list[Any]:
    try:
        return jax.devices("gpu")
    except RuntimeError as error:
        raise no_gpu(error) from None


def _check_nccl(path: Path, count: int) -> None:
    missing = missing_to_communicate() if count > 1 else None
    if missing is not None:
        raise TargetError(
            f"{path}: built for {count} GPUs, which communicate through NCCL: {missing.problem}"
        )
