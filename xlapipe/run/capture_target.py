"""Captures the attached GPU's target config.

A child process does it, because jax keeps the GPU until its process ends.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime

from xlapipe.devices.environment.machine import Machine
from xlapipe.devices.targets.target_config import target_attached
from xlapipe.errors import TargetError
from xlapipe.run.check_devices import no_gpu

_CHILD_PROGRAM = """
import json, sys
from importlib.metadata import version
import jax
from xlapipe.jax_private import get_topology_for_devices
devices = jax.devices("gpu")
json.dump({
    "config": str(get_topology_for_devices(devices).target_config),
    "versions": {name: version(name) for name in ("jax", "jaxlib", "jax-cuda13-plugin")},
}, sys.stdout)
"""
_TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class CapturedTarget:
    """A GPU's own GpuTargetConfigProto as text, and where it is from; the date is ISO's, UTC."""

    device: str
    driver: str | None
    versions: dict[str, str]
    date: str
    config: str

    def text(self) -> str:
        """The config with its provenance in comments; `--target-config` reads this."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return (
            f"# GpuTargetConfigProto of an attached {self.device}\n"
            f"# driver {self.driver or 'unknown'}; {versions}; {self.date}\n"
            f"# xlapipe device capture\n{self.config}"
        )


def captured_target() -> CapturedTarget:
    """The target config of the attached GPU."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cuda,cpu",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD_PROGRAM],
            capture_output=True,
            text=True,
            env=environment,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TargetError(
            f"the attached GPU did not answer within {_TIMEOUT_SECONDS} s; fix: check it with "
            "`nvidia-smi`"
        ) from None
    if child.returncode != 0:
        last_line = [line for line in child.stderr.splitlines() if line.strip()][-1:]
        raise no_gpu(f"{' '.join(last_line):.300}")
    answer = json.loads(child.stdout)
    gpu = Machine.local().gpu()
    return CapturedTarget(
        device=target_attached(answer["config"]).description,
        driver=gpu.driver_version if gpu is not None else None,
        versions=answer["versions"],
        date=datetime.now(UTC).date().isoformat(),
        config=answer["config"],
    )
