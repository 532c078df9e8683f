"""The CUDA context is created in a thread, while jax is imported."""

import ctypes
import os
from typing import Any

import pytest

from xlapipe.run.cuda_context import load_libraries, start_cuda_context

pytestmark = pytest.mark.jax

NO_DEVICE = 100


class Driver:
    """Records the libraries that are loaded, and the calls of the CUDA driver's functions."""

    def __init__(self, init_result: int) -> None:
        self.calls: list[str] = []
        self._init_result = init_result

    def load(self, path: str) -> "Driver":
        self.calls.append(path)
        return self

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the names are CUDA's
        self.calls.append("cuInit")
        return self._init_result

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        self.calls.append(f"cuDeviceGet {ordinal}")
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        self.calls.append("cuDevicePrimaryCtxRetain")
        return 0


def calls(monkeypatch: pytest.MonkeyPatch, init_result: int) -> list[str]:
    driver = Driver(init_result)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", driver.load)
    thread = start_cuda_context()
    assert thread is not None
    thread.join()
    return driver.calls


def test_the_context_of_the_first_gpu_is_retained_before_xlas_libraries_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, init, device, retain, plugin, *_ = calls(monkeypatch, init_result=0)
    assert [driver, init, device] == ["libcuda.so.1", "cuInit", "cuDeviceGet 0"]
    assert retain == "cuDevicePrimaryCtxRetain"
    assert plugin.endswith("/jax_plugins/xla_cuda13/xla_cuda_plugin.so")


@pytest.mark.parametrize(("chosen", "expected"), [(None, "1"), ("0", "0")])
def test_xla_logs_no_information_unless_the_user_chose(
    chosen: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chosen is None:
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    else:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", chosen)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: None)
    load_libraries()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == expected


def test_without_a_gpu_nothing_else_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls(monkeypatch, init_result=NO_DEVICE) == ["libcuda.so.1", "cuInit"]


def test_no_context_is_created_for_another_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert start_cuda_context() is None
