"""The layers of a decode step as one Mosaic GPU kernel."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from models.qwen3.kernels.persistent.kernel import LayerArrays
from models.qwen3.kernels.stream.block import Block, References
from models.qwen3.kernels.stream.sizes import ARRAYS, BARRIER, BLOCKS, CHUNK, WARPS, Sizes

NAME = "decode_layers"
# Warps of a warpgroup are 4: two groups compute, one fetches.
_COMPUTING_GROUPS = WARPS // 4
# A thread has 168 registers at the start: more than 3 x 168 in all would wait for ever.
_COMPUTING_REGISTERS, _FETCHING_REGISTERS = 216, 72
# Chunks on their way at most. Packets wait for weights that are on their way at the same time.
WINDOW = 8


def decode_layers(
    layers: Sequence[LayerArrays],
    embedding: Float[Array, "V D"],
    frequencies: Float[Array, " half_head"],
    token_id: Int[Array, "1"],
    position: Int[Array, "1"],
    *,
    sizes: Sizes,
    window: int = WINDOW,
) -> Float[Array, " D"]:
    """The residual stream after all layers, float32, for one token of one sequence.

    Writes the token's keys and values into the caches at `position`, unless that is their length or
    more. Sizes must be those of `sizes.persistent_fits`.
    """

    def inline(method: str, refs: Sequence[Any]) -> None:
        """Runs a method of Block."""

        def run(context: Any, *values: Any) -> None:
            del context
            split = ARRAYS * len(layers)
            by_layer = [values[i : i + ARRAYS] for i in range(0, split, ARRAYS)]
            getattr(Block(References(by_layer, *values[split:]), sizes, window), method)()

        plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * len(refs))(run)(*refs)

    def kernel(*refs: Any) -> None:
        exchange = pl.get_global(plgpu.SemaphoreType.REGULAR((sizes.exchange_bytes // 4,)))
        refs = (*refs, exchange)
        inline("initialize", refs)
        group = lax.axis_index("warpgroup")

        @pl.when(group == _COMPUTING_GROUPS)
        def _fetch() -> None:
            plgpu.set_max_registers(_FETCHING_REGISTERS, action="decrease")
            inline("fetch", refs)

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
                sizes.slots * CHUNK,
                2 * sizes.slots * BARRIER,
                sizes.sums_bytes,
                sizes.table_bytes,
                sizes.angles_bytes,
                sizes.vector_bytes,
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
