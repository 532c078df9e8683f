"""A module in a file compiles as the step that it is of: HLO, StableHLO and exported bytes."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export

import xlapipe
from xlapipe import XlapipeError
from xlapipe.api.step_plan import StepPlan
from xlapipe.compile.lowering.given_module import workload

W = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
X = jax.ShapeDtypeStruct((64, 256), jnp.float32)


def step(w: Any, counts: Any, x: Any) -> Any:
    y = jnp.tanh(x.astype(jnp.bfloat16) @ w)
    return w + jnp.float32(1e-3).astype(w.dtype), counts + (y > 0).sum(0), y


JITTED = jax.jit(step, donate_argnums=(0, 1))
ARGUMENTS = (W, jax.ShapeDtypeStruct((256,), jnp.int32), X)


@pytest.fixture(scope="module")
def plan() -> StepPlan:
    return xlapipe.plan(JITTED, *ARGUMENTS)


def files(plan: StepPlan, folder: Path) -> dict[str, Path]:
    lowered = JITTED.trace(*ARGUMENTS).lower(lowering_platforms=("cuda",))
    hlo = lowered.compiler_ir("hlo")
    contents: dict[str, bytes] = {
        "text.hlo": (plan.opened.program.hlo_before or "").encode(),
        "module.pb": b"\x0a" + _length(hlo.as_serialized_hlo_module_proto()),
        "step.mlir": lowered.as_text().encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


def _length(content: bytes) -> bytes:
    """A field of a protobuf message: its length, and its content."""
    size, parts = len(content), []
    while size > 127:
        parts.append(size & 127 | 128)
        size >>= 7
    return bytes([*parts, size]) + content


def test_every_form_has_the_memory_of_the_step(plan: StepPlan, tmp_path: Path) -> None:
    expected = sorted(item.size_bytes for item in plan.plan.allocations)
    for name, path in files(plan, tmp_path).items():
        given = xlapipe.plan(str(path))
        assert sorted(item.size_bytes for item in given.plan.allocations) == expected, name
        assert len(given.plan.aliases) == len(plan.plan.aliases) == 2, name
        assert [gemm.backend for gemm in given.gemms()] == [gemm.backend for gemm in plan.gemms()]


def test_exported_bytes_compile_for_their_platform(tmp_path: Path, plan: StepPlan) -> None:
    pytest.importorskip("flatbuffers")
    for platform in ("cuda", "cpu"):
        made = export.export(JITTED, platforms=[platform])(*ARGUMENTS)
        (tmp_path / platform).write_bytes(made.serialize())
    given = xlapipe.plan(str(tmp_path / "cuda"))
    assert given.total_allocation_bytes == plan.total_allocation_bytes
    with pytest.raises(XlapipeError, match=r"exported for cpu, expected cuda; fix"):
        workload(str(tmp_path / "cpu"))


@pytest.mark.parametrize(
    "content", [b"HloModule broken\n ENTRY {", b"module @x {", b"\x01\x02", b""]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.hlo"
    path.write_bytes(content)
    with pytest.raises(XlapipeError, match=r"expected HLO text.*fix: "):
        workload(str(path))


def test_a_module_of_several_devices_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step.mlir"
    lowered = JITTED.trace(*ARGUMENTS).lower(lowering_platforms=("cuda",)).as_text()
    path.write_text(lowered.replace("mhlo.num_partitions = 1", "mhlo.num_partitions = 8"))
    with pytest.raises(XlapipeError, match=r"a module of 8 devices, expected one of one.*fix"):
        workload(str(path))
