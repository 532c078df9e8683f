"""The layers of a decode step as one Mosaic GPU kernel."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from models.qwen3.kernels.persistent.attention import SHARED_BYTES
from models.qwen3.kernels.persistent.blocks import (
    ARRAYS,
    Block,
    References,
    Tuning,
)
from models.qwen3.kernels.persistent.products import ROWS
from models.qwen3.kernels.persistent.ring import BARRIER
from models.qwen3.kernels.persistent.sizes import (
    BLOCKS,
    CHUNK,
    COMPUTING_WARPS,
    EXCHANGE_BYTES,
    HIDDEN,
)

NAME = "decode_layers"
# Warps of a warpgroup are 4: two groups compute, one fetches and publishes.
# A block has 168 registers for each of its threads: more than 3 x 168 in all would wait for ever.
_COMPUTING_GROUPS = COMPUTING_WARPS // 4
_COMPUTING_REGISTERS, _OTHER_REGISTERS = 216, 72


class LayerArrays(NamedTuple):
    """A layer's arrays, in the order of `blocks.ARRAYS`; caches are references."""

    qkv: Array
    out: Array
    gate_up: Array
    down: Array
    keys: Any
    values: Any
    before: Array
    after: Array
    query_gain: Array
    key_gain: Array


def decode_layers(
    layers: Sequence[LayerArrays],
    embedding: Float[Array, "V D"],
    frequencies: Float[Array, " half_head"],
    token_id: Int[Array, "1"],
    position: Int[Array, "1"],
    *,
    eps: float,
    tuning: Tuning | None = None,
) -> Float[Array, " D"]:
    """The residual stream after all layers, float32, for one token of one sequence.

    Writes the token's keys and values into the caches at `position`, unless that is their length or
    more. Sizes must be those of `sizes.has_small_sizes`.
    """
    tuning = tuning or Tuning()
    block_sizes = {
        "cache_length": layers[0].keys.shape[2],
        "vocab_size": embedding.shape[0],
        "eps": eps,
        "tuning": tuning,
    }

    def inline(method: str, refs: Sequence[Any]) -> None:
        """Runs a method of Block."""

        def run(context: Any, *values: Any) -> None:
            del context
            split = ARRAYS * len(layers)
            by_layer = [values[i : i + ARRAYS] for i in range(0, split, ARRAYS)]
            getattr(Block(References(by_layer, *values[split:]), **block_sizes), method)()

        plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * len(refs))(run)(*refs)

    def kernel(*refs: Any) -> None:
        exchange = pl.get_global(plgpu.SemaphoreType.REGULAR((EXCHANGE_BYTES // 4,)))
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
        out_type=jax.ShapeDtypeStruct((HIDDEN,), jnp.float32),
        scratch_types=[
            plgpu.SMEM((size // 4,), jnp.int32)
            for size in (
                tuning.slots * CHUNK,
                2 * tuning.slots * BARRIER,
                2 * 4 * ROWS * COMPUTING_WARPS,
                8 * ARRAYS * len(layers),
                SHARED_BYTES,
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
