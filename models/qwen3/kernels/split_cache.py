"""What the attentions of a decode step share: a cache whose slots are split over programs.

Flash decoding (Dao et al., 2023, https://crfm.stanford.edu/2023/10/12/flashdecoding.html): each
program attends to its slots with a running softmax, and the last program of a head to finish
combines the parts.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

from models.qwen3.kernels.rotation import Rows
from models.qwen3.kernels.tiling import LEAST_SLOTS, chunk_of, decode_fits
from models.qwen3.kernels.triton_call import triton_call

# Initial value of a running maximum; with -inf, the difference of two would be NaN.
LOWEST = -1e30
# For R queries: weighted sums of values [R, H], maximum score and sum of the weights [R, 1].
Softmax: TypeAlias = tuple[Array, Array, Array]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Static sizes of a kernel.

    Attributes:
      splits: programs among which the slots of a head are split.
      dtype: of the cache.
      by_head: a program computes one query head, not all of a key/value head.

    Raises:
      ValueError: the slots are neither a multiple of LEAST_SLOTS nor a smaller power of two.
    """

    heads: int
    kv_heads: int
    head_dim: int
    slots: int
    splits: int
    dtype: Any
    by_head: bool = False

    def __post_init__(self) -> None:
        if not decode_fits(self.slots):
            raise ValueError(
                f"the cache has {self.slots} slots; expected a multiple of {LEAST_SLOTS}, or a "
                "smaller power of 2"
            )

    @property
    def chunk(self) -> int:
        """Slots that a program reads at once."""
        return chunk_of(self.slots)

    @property
    def group(self) -> int:
        """Query heads that read one key/value head."""
        return self.heads // self.kv_heads

    @property
    def members(self) -> int:
        """Query heads of a program."""
        return 1 if self.by_head else self.group


class Refs(NamedTuple):
    """References of a kernel: arguments, then outputs.

    The last two outputs hold, for each query head and program, the attention over the program's
    slots, and the logarithm of its softmax weights' sum.
    """

    qkv: Any
    q_scale: Any
    k_scale: Any
    cos: Any
    sin: Any
    positions: Any
    aliased_k: Any  # `k`, `v` and `arrived` are the same memory
    aliased_v: Any
    aliased_arrived: Any
    attended: Any
    k: Any
    v: Any
    arrived: Any
    part: Any
    log_weight: Any


def chunks_of(sizes: Sizes, split: Array, position: Array) -> tuple[Array, Array, Array]:
    """The chunks of program `split`: those in use, divided among as few programs as possible.

    Returns:
      The first one; the one after the last; how many of the head's programs have any.
    """
    used = jnp.minimum(position, sizes.slots - 1) // sizes.chunk + 1
    per_program = (used + sizes.splits - 1) // sizes.splits
    occupied = (used + per_program - 1) // per_program
    first = split * per_program
    return first, jnp.minimum(first + per_program, used), occupied


@dataclass(frozen=True)
class Program:
    """A program of a kernel: its sequence and key/value head, and the chunks that it reads.

    Attributes:
      position: of the new token.
      first, end, occupied: as returned by `chunks_of`.
    """

    refs: Refs
    sizes: Sizes
    sequence: Array
    kv_head: Array
    split: Array
    position: Array
    first: Array
    end: Array
    occupied: Array

    def owns_new(self) -> Array:
        """Whether this program has the new token's slot."""
        owner = self.position // self.sizes.chunk
        owned: Array = (self.first <= owner) & (owner < self.end)
        return owned

    def load_chunk(self, number: Array) -> tuple[Array, Array]:
        """Keys and values of a chunk, [C, H] each."""
        slots = pl.ds(number * self.sizes.chunk, self.sizes.chunk)
        at = (self.sequence, self.kv_head, slots, slice(None))
        return plgpu.load(self.refs.k.at[at]), plgpu.load(self.refs.v.at[at])

    def write_new(self, owned: Array, key: Array, value: Array) -> None:
        """Writes the new key and value, if this program owns their slot."""
        slot = (self.sequence, self.kv_head, pl.ds(self.position, 1), slice(None))

        @pl.when(owned)
        def _write() -> None:
            plgpu.store(self.refs.k.at[slot], key)
            plgpu.store(self.refs.v.at[slot], value)

    def combine_last(
        self, counter: tuple[Array, ...], zero: Array, combine: Callable[[], None]
    ) -> None:
        """Calls `combine` in the last program of a head to arrive, when all parts are stored.

        Each thread's part must be visible: `synchronize_threads` comes before.

        Args:
          counter: of the head, in `arrived`.
        """
        finished_before = plgpu.atomic_add(self.refs.arrived, counter, zero + 1)

        @pl.when(finished_before == self.occupied - 1)
        def _combine() -> None:
            self.refs.arrived[counter] = zero
            combine()

    def combined_parts(
        self, heads: Iterable[Any], exp: Callable[[Array], Array]
    ) -> Iterator[tuple[Any, Array]]:
        """Each head and its attention [H], float32: the weighted mean of all programs' parts.

        Args:
          heads: numbers of the heads in `refs.part`.
          exp: the power whose logarithm `refs.log_weight` has.
        """
        refs, sizes = self.refs, self.sizes
        programs = jnp.arange(sizes.splits)
        has_part = programs < self.occupied
        mask = jnp.broadcast_to(has_part[:, None], (sizes.splits, sizes.head_dim))
        # Issues all loads before the first use of any.
        parts_of_heads = [
            (
                head,
                plgpu.load(refs.log_weight.at[head, programs], mask=has_part, other=LOWEST),
                plgpu.load(refs.part.at[head, :, :], mask=mask, other=0.0),
            )
            for head in heads
        ]
        for head, logs, parts in parts_of_heads:
            weights = exp(logs - jnp.max(logs))
            yield head, jnp.sum(parts * weights[:, None], axis=0) / jnp.sum(weights)


def attention_call(
    kernel: Callable[[Refs], None],
    sizes: Sizes,
    attended: jax.ShapeDtypeStruct,
    qkv: Float[Array, "..."],
    scales: tuple[Float[Array, " H"], Float[Array, " H"]],
    rotation: Rows,
    positions: Int[Array, " B"],
    caches: tuple[Float[Array, "B K S H"], Float[Array, "B K S H"]],
    arrived: Int[Array, "..."],
    *,
    grid: tuple[int, ...],
    name: str,
    interpret: bool,
    num_warps: int,
    num_stages: int = 1,
) -> tuple[Array, Array, Array, Array]:
    """Runs a kernel; returns the attention, both caches, updated in place, and `arrived`.

    Args:
      attended: of the attention.
      scales: of the norms of queries and of keys.
      arrived: zeros; returned as zeros, so that the next layer can use them.
    """
    heads = sizes.heads * positions.shape[0]
    attended_out, k_cache, v_cache, arrived, *_ = triton_call(
        lambda *refs: kernel(Refs(*refs)),
        (
            attended,
            *(jax.ShapeDtypeStruct(cache.shape, sizes.dtype) for cache in caches),
            jax.ShapeDtypeStruct(arrived.shape, arrived.dtype),
            jax.ShapeDtypeStruct((heads, sizes.splits, sizes.head_dim), jnp.float32),
            jax.ShapeDtypeStruct((heads, sizes.splits), jnp.float32),
        ),
        *(qkv, *scales, rotation.cos, rotation.sin, positions, *caches, arrived),
        grid=grid,
        num_warps=num_warps,
        num_stages=num_stages,
        name=name,
        interpret=interpret,
        aliases={6: 1, 7: 2, 8: 3},
    )
    return attended_out, k_cache, v_cache, arrived


def normed_and_rotated(
    x: Array,
    swapped: Array,
    scales: tuple[Array, Array],
    rotation: tuple[Array, Array],
    sizes: Sizes,
    eps: float,
) -> Array:
    """Heads [R, H] after RMSNorm and RoPE, in the cache's dtype.

    Args:
      swapped: the elements that RoPE combines x with.
      scales: the norm's, of x and of `swapped`.
      rotation: cosines and sines.
    """
    inverse = lax.rsqrt(jnp.sum(x * x, axis=1, keepdims=True) / sizes.head_dim + eps)
    rotated = x * scales[0] * rotation[0] + swapped * scales[1] * rotation[1]
    return (rotated * inverse).astype(sizes.dtype)


def of_no_slot(rows: int, sizes: Sizes) -> Softmax:
    """The running softmax of some queries before any slot."""
    return (
        jnp.zeros((rows, sizes.head_dim), jnp.float32),
        jnp.full((rows, 1), LOWEST, jnp.float32),
        jnp.zeros((rows, 1), jnp.float32),
    )
