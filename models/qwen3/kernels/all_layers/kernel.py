"""The layers of a decode step as one Mosaic GPU kernel."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from models.qwen3.kernels.all_layers.block import Block, LayerArrays
from models.qwen3.kernels.all_layers.by_fma.block import BlockByFma
from models.qwen3.kernels.all_layers.by_mma.block import BlockByMma
from models.qwen3.kernels.all_layers.sizes import ARRAYS, BARRIER, BLOCKS, CHUNK, WARPS, Sizes

NAME = "decode_layers"
# Warps of a warpgroup are 4: two groups compute, one does the rest.
_COMPUTING_GROUPS = WARPS // 4
# A thread has 168 registers at the start: more than 3 x 168 in all would wait for ever.
_COMPUTING_REGISTERS, _OTHER_REGISTERS = 216, 72


def decode_layers(
    layers: Sequence[LayerArrays],
    embedding: Float[Array, "V D"],
    frequencies: Float[Array, " half_head"],
    token_id: Int[Array, "1"],
    position: Int[Array, "1"],
    *,
    sizes: Sizes,
) -> Float[Array, " D"]:
    """The residual stream after all layers, float32, for one token of one sequence.

    Writes the token's keys and values into the caches at `position`, unless that is their length or
    more. Sizes must be those of `sizes.persistent_fits`.

    Args:
      layers: caches are references.
    """
    block: type[Block] = BlockByMma if sizes.by_mma else BlockByFma
    memory = block.memory(sizes)

    def inline(method: str, refs: Sequence[Any]) -> None:
        """Runs a method of the block."""

        def run(context: Any, *values: Any) -> None:
            del context
            split = ARRAYS * len(layers)
            by_layer = [values[i : i + ARRAYS] for i in range(0, split, ARRAYS)]
            getattr(block(by_layer, values[split:], sizes), method)()

        plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * len(refs))(run)(*refs)

    def kernel(*refs: Any) -> None:
        exchange = pl.get_global(plgpu.SemaphoreType.REGULAR((sizes.exchange_bytes // 4,)))
        refs = (*refs, exchange)
        inline("initialize", refs)
        group = lax.axis_index("warpgroup")

        @pl.when(group == _COMPUTING_GROUPS)
        def _others() -> None:
            plgpu.set_max_registers(_OTHER_REGISTERS, action="decrease")
            inline("run_others", refs)

        @pl.when(group < _COMPUTING_GROUPS)
        def _compute() -> None:
            plgpu.set_max_registers(_COMPUTING_REGISTERS, action="increase")
            inline("compute", refs)

    result: Array = plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((sizes.hidden,), jnp.float32),
        scratch_types=[
            plgpu.SMEM((size // 4,), jnp.int32)
            for size in (
                memory.slots * CHUNK,
                2 * memory.slots * BARRIER,
                memory.sums_bytes,
                sizes.table_bytes,
                *memory.work_bytes,
            )
        ],
        grid=(BLOCKS,),
        grid_names=("block",),
        num_threads=_COMPUTING_GROUPS + 1,
        thread_name="warpgroup",
        kernel_name=NAME,
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )(*(array for layer in layers for array in layer), frequencies, position, token_id, embedding)
    return result
