"""A manifest and an autotune lock, for tests that change a field of one."""

from xlapipe.dumps.autotune_lock import AutotuneLock
from xlapipe.dumps.manifest import Manifest

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
