"""Whether the GPU that a program is traced for multiplies float8."""

import jax

from xlapipe.targets.target import catalogue

LEAST_CAPABILITY = (8, 9)


def gpu_without_float8() -> str | None:
    """`NVIDIA A100-SXM4-80GB (sm_80)` if that is what is traced for; None where float8 is there.

    On a machine without a GPU, only the mesh in use tells of one (`xlapipe` sets it). A GPU that
    neither jax nor the catalogue of targets knows is taken to have float8, as newer ones do.
    """
    kind, capability = _traced_for()
    if capability is None:
        return None
    major, minor = (int(part) for part in capability.split("."))
    return None if (major, minor) >= LEAST_CAPABILITY else f"{kind} (sm_{major}{minor})"


def _traced_for() -> tuple[str, str | None]:
    """Kind of the GPU and its compute capability; None for no GPU, or one that is not known."""
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    attached = {
        device.device_kind: device.compute_capability
        for device in jax.local_devices()
        if device.platform == "gpu"
    }
    if abstract is None:
        return next(iter(attached.items()), ("", None))
    known = {row.description: row.compute_capability for row in catalogue()}
    return abstract.device_kind, (known | attached).get(abstract.device_kind)
