"""Checks the versions of CUDA's libraries as jax's plugin does when it starts. Imports no jax."""

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from xlapipe.errors import TargetError

_SKIP = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
# A library's name, its prefix in jax's module, and the oldest version. jax compares those of cuDNN
# and cuFFT with a hundredth of the version that it was built with, which every version exceeds.
_OLDEST = (
    ("CUDA", "cuda_runtime", 12010),
    ("cuDNN", "cudnn", 0),
    ("cuFFT", "cufft", 0),
    ("cuPTI", "cupti", 18),
    ("cuBLAS", "cublas", 120100),
    ("cuSPARSE", "cusparse", 12100),
)
# cuDNN 9.10.0 has other values of enums than later ones.
_BROKEN_CUDNN = 91000


def check_cuda_versions(environment: Mapping[str, str] | None = None) -> None:
    """Compares the libraries that are loaded with the versions that jax's plugin needs.

    Does nothing if jax's own check is switched off.

    Raises:
      TargetError: a library is missing or outdated.
    """
    if (os.environ if environment is None else environment).get(_SKIP):
        return
    try:
        versions = import_module("jax_cuda13_plugin._versions")
    except ImportError as error:
        raise TargetError(f"jax's CUDA plugin: {error}; fix: install jax[cuda13]") from None
    problems = list(_problems(versions))
    if problems:
        raise TargetError(
            f"libraries that jax's CUDA plugin needs: {'; '.join(problems)}; fix: `xlapipe doctor` "
            "lists what is missing"
        )


def _problems(versions: Any) -> Iterator[str]:
    for name, prefix, needed in _OLDEST:
        try:
            version = _call(versions, f"{prefix}_get_version")
        except RuntimeError as error:
            yield f"{name} cannot be loaded: {error}"
            continue
        if version < needed:
            yield f"{name} {version}, expected at least {needed}"
        if name == "cuDNN" and version == _BROKEN_CUDNN != _call(versions, "cudnn_build_version"):
            yield f"{name} {version}, whose enums differ from those of later versions"


def _call(versions: Any, name: str) -> int:
    return int(getattr(versions, name)())
