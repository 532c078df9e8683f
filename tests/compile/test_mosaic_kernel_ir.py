"""Source locations are removed from Mosaic GPU kernels, which the runtime can still read."""

import hashlib

import jax
import jax.numpy as jnp
import pytest
from jax._src.lib.mlir import ir
from jax.experimental.mosaic.gpu import core as mosaic
from jax.sharding import AbstractMesh

from models.qwen3.kernels.hopper_products import prompt_swiglu
from xlapipe.compile.lowering import module_kernels as kernel_ir

pytestmark = pytest.mark.jax


def test_stripping_removes_locations_but_no_operations() -> None:
    def step(x: jax.Array, weight: jax.Array) -> jax.Array:
        return prompt_swiglu(x, weight, programs=1)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((128, 64), (256, 64))]
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        lowered = jax.jit(step).trace(*shapes).lower(lowering_platforms=("cuda",))
    module = lowered._lowering.stablehlo()

    def kernel() -> tuple[bytes, bytes]:
        (call,) = (
            operation
            for operation in kernel_ir.operations(module.operation)
            if operation.name == "stablehlo.custom_call"
        )
        config = ir.DictAttr(call.attributes["mhlo.backend_config"])
        attributes = {
            item.name: ir.StringAttr(item.attr).value_bytes
            for item in config
            if "use" not in item.name and "skip" not in item.name
        }
        return attributes["module"], attributes["kernel_hash"]

    def operations(bytecode: bytes) -> list[str]:
        """Names of the operations, as the runtime reads them."""
        with module.context, ir.Location.unknown():
            module.context.allow_unregistered_dialects = True
            parsed = ir.Module.parse(bytecode)
            read = mosaic._run_serde_pass(parsed, serialize=False)
            return [operation.name for operation in kernel_ir.operations(read.operation)]

    before, _ = kernel()
    name = b"hopper_products.py"
    assert name in before
    kernel_ir.stripped_bytecode(module)
    after, digest = kernel()
    assert name not in after
    assert digest == hashlib.sha256(after).digest()
    assert operations(after) == operations(before)
