"""Whether the GPU that a program is traced for supports float8 matmuls."""

import jax

import xlapipe

MIN_COMPUTE_CAPABILITY = (8, 9)


def gpu_without_float8() -> str | None:
    """The target GPU if it lacks float8, e.g. `NVIDIA A100-SXM4-80GB (sm_80)`; otherwise None.

    `xlapipe` sets an abstract mesh that describes the target GPU, which need not be attached. A
    GPU that is in neither jax's devices nor the target catalogue is assumed to support float8.
    """
    device_kind, capability = _target_gpu()
    if capability is None:
        return None
    major, minor = (int(part) for part in capability.split("."))
    return (
        None if (major, minor) >= MIN_COMPUTE_CAPABILITY else f"{device_kind} (sm_{major}{minor})"
    )


def _target_gpu() -> tuple[str, str | None]:
    """Device kind and compute capability of the target GPU; the capability is None if unknown."""
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    attached = {
        device.device_kind: device.compute_capability
        for device in jax.local_devices()
        if device.platform == "gpu"
    }
    if abstract is None:
        return next(iter(attached.items()), ("", None))
    if abstract.device_kind in attached:
        return abstract.device_kind, attached[abstract.device_kind]
    try:
        return abstract.device_kind, xlapipe.target(abstract.device_kind).compute_capability
    except xlapipe.XlapipeError:
        return abstract.device_kind, None
