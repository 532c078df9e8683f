"""The division of a step's time, for invented kernels."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def overlap() -> Any:
    path = Path(__file__).parent / "gpu" / "overlap.py"
    spec = importlib.util.spec_from_file_location("overlap", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["overlap"] = module
    spec.loader.exec_module(module)
    return module


def test_a_step_is_divided_into_compute_collectives_exposed_and_idle_time(overlap: Any) -> None:
    kernels = [
        overlap.Kernel("ncclDevKernel_AllGather", 0.0, 2.0),
        overlap.Kernel("nvjet_gemm", 1.0, 4.0),
        overlap.Kernel("loop_add_fusion", 3.0, 5.0),
        overlap.Kernel("ncclDevKernel_ReduceScatter", 4.5, 7.0),
        overlap.Kernel("nvjet_gemm", 9.0, 10.0),
    ]
    assert overlap.divide(kernels, steps=2) == overlap.Division(
        gemm_seconds=2.0,
        compute_seconds=2.5,
        collective_seconds=2.25,
        exposed_seconds=1.5,
        idle_seconds=1.0,
    )


def test_without_kernels_there_is_no_division(overlap: Any) -> None:
    assert overlap.divide([], steps=1) is None
