"""Everything that turns a lowered program into a plan, but the program and its options.

Part of the keys of the cache: another compiler, another xlapipe, or another variable that XLA
reads is another key.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import msgspec

from xlapipe.devices.platforms import Platform

_JAX = ("jax", "jaxlib")
# Variables of XLA, its plugins, the libraries that they load, and LLVM.
_READ_BY_COMPILERS = re.compile(
    r"(XLA_|JAX_|TF_|TPU_|LIBTPU_|CUDA|CUDNN|NVIDIA_|NCCL_|LD_|LLVM_|MLIR_|TRITON_)"
)
# Holds only paths of the compile's own folder, whose files are in the key.
_OWN_VARIABLES = ("XLA_FLAGS",)
_PROGRAMS = ("ptxas", "nvlink")


def compiler_identity(own_platform: Platform, environment: Mapping[str, str]) -> dict[str, object]:
    """What compiles: contents of packages, xlapipe itself, and the environment, as plain data."""
    return {
        "packages": {name: _package(name) for name in (*_JAX, *own_platform.compiler_packages)},
        "xlapipe": _xlapipe_sources(),
        "python": sys.version,
        "machine": platform.machine(),
        "standard library": os.path.dirname(os.__file__),
        "variables": {
            name: value
            for name, value in sorted(environment.items())
            if _READ_BY_COMPILERS.match(name) and name not in _OWN_VARIABLES
        },
        "programs": {name: _program(name, environment.get("PATH")) for name in _PROGRAMS},
    }


def digest_of(**parts: object) -> str:
    """SHA-256 of plain data and dataclasses, whatever the order of keys."""
    plain = msgspec.to_builtins(parts, enc_hook=str, order="deterministic")
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _package(name: str) -> list[str] | None:
    """Version of an installed package, and a digest of the list of its files with their digests."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return None
    record = installed.read_text("RECORD") or ""
    return [installed.version, hashlib.sha256(record.encode()).hexdigest()]


def _program(name: str, path: str | None) -> tuple[str, int, int] | None:
    """Where XLA would find a program, its bytes and when it was written: toolkits are replaced."""
    place = shutil.which(name, path=path)
    if place is None:
        return None
    state = Path(place).stat()
    return place, state.st_size, state.st_mtime_ns


@cache
def _xlapipe_sources() -> str:
    """Digest of xlapipe's own modules: a checkout changes without another version."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
