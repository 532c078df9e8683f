"""What is counted in the code of Pallas kernels for TPUs that state no cost."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from xlapipe.compile.lowering.kernel_codes import stated_costs
from xlapipe.plans.kernel_code import StatedCost

ROWS, HEADS, LENGTH, HEAD, BLOCK = 3, 2, 512, 128, 128
BLOCKS = LENGTH // BLOCK


def costs(mask: masks.Mask) -> dict[str, StatedCost]:
    """Costs of attention and its gradients over three rows of a batch, in a scan of two layers."""
    names = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_kv_compute")
    sizes = splash.BlockSizes(
        **dict.fromkeys((*names, "block_kv_dkv_compute"), BLOCK), use_fused_bwd_kernel=True
    )
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([mask] * HEADS), head_shards=1, q_seq_shards=1, block_sizes=sizes
    )

    def total(q: jax.Array) -> jax.Array:
        def layer(q: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.vmap(kernel)(q, q, q), None

        return jax.lax.scan(layer, q, None, length=2)[0].astype(jnp.float32).sum()

    q = jax.ShapeDtypeStruct((ROWS, HEADS, LENGTH, HEAD), jnp.bfloat16)
    traced = jax.jit(jax.grad(total)).trace(q)
    return {cost.kernel: cost for cost in stated_costs(traced.jaxpr, {})}


def test_products_of_blocks_that_a_constant_mask_leaves_are_counted() -> None:
    full, causal = costs(masks.FullMask((LENGTH, LENGTH))), costs(masks.CausalMask((LENGTH,) * 2))
    whole, below = BLOCKS**2, BLOCKS * (BLOCKS + 1) // 2
    for given, blocks in ((full, whole), (causal, below)):
        forward, backward = given["splash_mha_fwd_residuals"], given["splash_mha_dkv_no_residuals"]
        one = 2 * BLOCK * BLOCK * HEAD * ROWS * HEADS * blocks
        assert forward.flops == 2 * one and backward.flops == 5 * one
        assert sum(product[-1] for product in forward.products) == 2 * ROWS * HEADS * blocks
        assert {product[1:4] for product in forward.products} == {(BLOCK, BLOCK, BLOCK)}
        assert forward.functions >= BLOCK * BLOCK * ROWS * HEADS * blocks


@pytest.mark.parametrize(("flops", "counted"), [(7, False), (-1, True), (2**63 - 1, True)])
def test_the_statement_of_an_author_is_not_counted_again_but_one_that_cannot_be(
    flops: int, counted: bool
) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x, y):  # type: ignore[no-untyped-def]
        y[...] = x[...] @ x[...]

    def call(x):  # type: ignore[no-untyped-def]
        stated = pl.CostEstimate(flops=flops, transcendentals=0, bytes_accessed=9)
        tpu = pltpu.CompilerParams()
        return pl.pallas_call(
            kernel, out_shape=x, cost_estimate=stated, name="k", compiler_params=tpu
        )(x)

    traced = jax.jit(call).trace(jax.ShapeDtypeStruct((128, 128), jnp.float32))
    (cost,) = stated_costs(traced.jaxpr, {})
    expected = (2 * 128**3, 2 * 4 * 128**2, 1) if counted else (7, 9, 0)
    assert (cost.flops, cost.accessed_bytes, len(cost.products)) == expected
