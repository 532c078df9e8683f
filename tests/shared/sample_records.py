"""A manifest, a lock, predictions and planned memory, for tests that change a field of one."""

from dataclasses import replace
from typing import Any

from xlapipe.dump.autotune_lock import AutotuneLock
from xlapipe.dump.manifest import Manifest
from xlapipe.search.planned_memory import PlannedMemory
from xlapipe.time.predict import Prediction

MANIFEST = Manifest(
    workload="step",
    target="h200",
    target_description="NVIDIA H200",
    target_source="attached",
    gemm_policy="auto",
    tuned=True,
    versions={"jaxlib": "0.11.2"},
    options={},
    arguments=(),
    outputs=(),
    requested_dots=(),
    expectations=(),
    memory_analysis={},
)

LOCK = AutotuneLock(
    workload="step",
    gemm_policy="auto",
    target="h200",
    device="NVIDIA H200",
    compute_capability="9.0",
    device_memory_bytes=150_109_880_320,
    versions={"jaxlib": "0.11.2"},
    target_config="gpu_device_info { core_count: 132 }",
    results='entries { key { target { device: "x" } } }',
)


def predicted(seconds: float, low_seconds: float, high_seconds: float) -> Prediction:
    """The predicted time of a step, without its kernels."""
    return Prediction(
        kernels=(),
        step_seconds=seconds,
        at_least_seconds=None,
        low_seconds=low_seconds,
        high_seconds=high_seconds,
        latency_seconds=seconds,
        span_seconds=seconds,
        device="NVIDIA H200",
        scaled_from=None,
        assumptions=(),
        uncounted=(),
    )


def at_least(seconds: float, why: str) -> Prediction:
    """A lower bound of the time of a step."""
    return replace(
        predicted(seconds, seconds, seconds),
        **dict.fromkeys(("step_seconds", "low_seconds", "high_seconds", "latency_seconds")),
        at_least_seconds=seconds,
        assumptions=(why,),
        uncounted=(why,),
    )


def planned(temp_bytes: int = 3, *, usable_bytes: int = 75, **others: Any) -> PlannedMemory:
    """A plan for a device of which a process may use three quarters.

    Args:
      others: further fields.
    """
    fields: dict[str, Any] = {
        "argument_bytes": 1,
        "output_bytes": 2,
        "topology": None,
        "seconds": {"all": 1.5},
        **others,
    }
    return PlannedMemory(
        workload="w",
        temp_bytes=temp_bytes,
        device_memory_bytes=4 * usable_bytes // 3,
        usable_bytes=usable_bytes,
        **fields,
    )
