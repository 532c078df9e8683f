"""Find the GPU or TPU of a name."""

from pathlib import Path

from xlapipe.compile.make_jobs import ATTACHED
from xlapipe.devices.targets.catalogue import catalogue, target_named
from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.target_config import target_attached, target_from_file

_CONFIG_SUFFIXES = (".txtpb", ".pbtxt", ".textproto")


def target(name: str | Path) -> Target:
    """A GPU or TPU to compile for: its memory, compute capability and configuration.

    Args:
      name: a name of `xlapipe targets`, or a device's own, e.g. `NVIDIA H200`; the path of a target
        config; or `attached`, for the attached GPU.

    Raises:
      TargetError: it is unknown or unsupported, or no GPU is attached.
    """
    if is_config(name):
        return target_from_file(name)
    if name == ATTACHED:
        from xlapipe.run.capture_target import captured_target

        return target_attached(captured_target().config)
    names = {row.description: row.name for row in catalogue()}
    return target_named(names.get(str(name), str(name)))


def is_config(target: str | Path) -> bool:
    """Whether a target is the path of a target config."""
    return isinstance(target, Path) or Path(target).suffix in _CONFIG_SUFFIXES
