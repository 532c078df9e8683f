"""How the kernel divides a model, by its sizes, and what it supports. Imports no jax."""

from dataclasses import dataclass
from functools import cached_property

from models.qwen3.config import QWEN3_0_6B, Qwen3Config
from models.qwen3.kernels.tiling import HOPPER, jax_for_hopper

# All blocks run at once, one on each multiprocessor; matrices are divided evenly over them.
BLOCKS = 128
# Warps of a block that compute, and their threads; warps that fetch.
WARPS = 8
THREADS = 32 * WARPS
FETCHING_WARPS = 4
KV_HEADS, HEAD = 8, 128
# Blocks among which a key/value head's slots are divided.
PARTS = BLOCKS // KV_HEADS
# Rows of a chunk, each of which another warp fetches, and its columns at most; columns that a warp
# multiplies at once, 8 a lane.
ROWS, COLUMNS, STEP = FETCHING_WARPS, 1024, 256
# Bytes of a chunk, and slots of the cache of this size.
CHUNK = 2 * ROWS * COLUMNS
CHUNK_SLOTS = CHUNK // (2 * HEAD)
# Copies of a vector's packets, each of which is read by a different group of blocks. A power of
# two, at most 4.
COPIES = 4
PACKET = 8
# Bytes of an mbarrier.
BARRIER = 8
# Bytes of shared memory that a block of Hopper has at most, and what Mosaic aligns an array to. It
# needs some bytes itself.
_ALIGNMENT_BYTES = 1024
_SHARED_BYTES = 232_448 - _ALIGNMENT_BYTES
# Arrays of a layer, whose addresses are in a table in shared memory.
ARRAYS = 10
# More were not run: each array is an argument of the kernel.
MAX_LAYERS = 40


@dataclass(frozen=True)
class Matrix:
    """A block's rows of a matrix, and the chunks that they are fetched in.

    Attributes:
      rows: of a block.
      columns: of the matrix.
    """

    rows: int
    columns: int

    @property
    def segments(self) -> int:
        """Chunks of the same rows; the last one can have fewer columns."""
        return -(-self.columns // COLUMNS)

    @property
    def chunks(self) -> int:
        return self.rows // ROWS * self.segments

    @property
    def last_columns(self) -> int:
        return self.columns - COLUMNS * (self.segments - 1)


@dataclass(frozen=True)
class Sizes:
    """A block's share of a model."""

    config: Qwen3Config
    cache_length: int

    @property
    def by_mma(self) -> bool:
        """Whether the block of Qwen3-0.6B (`by_mma`) is used; it was not run with more layers."""
        own, small = self.config, QWEN3_0_6B
        return own.num_hidden_layers <= small.num_hidden_layers and (
            own.hidden_size,
            own.q_size,
            own.intermediate_size,
        ) == (small.hidden_size, small.q_size, small.intermediate_size)

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.config.hidden_size

    @property
    def group(self) -> int:
        """Query heads that read one key/value head."""
        return self.config.queries_per_kv_head

    @cached_property
    def qkv(self) -> Matrix:
        return Matrix(self.config.qkv_size // BLOCKS, self.hidden)

    @cached_property
    def out(self) -> Matrix:
        return Matrix(self.hidden // BLOCKS, self.config.q_size)

    @cached_property
    def gate_up(self) -> Matrix:
        """Rows of gate, then as many of up."""
        return Matrix(2 * self.activations, self.hidden)

    @cached_property
    def down(self) -> Matrix:
        return Matrix(self.hidden // BLOCKS, self.config.intermediate_size)

    @property
    def activations(self) -> int:
        """Number of activations that a block computes."""
        return self.config.intermediate_size // BLOCKS

    @property
    def activation_packets(self) -> int:
        """Number of packets for a block's activations; a packet has three."""
        return -(-self.activations // 3)

    @property
    def attended(self) -> int:
        """Values of attention that a block combines."""
        return self.config.q_size // BLOCKS

    # Bytes in shared memory.

    @property
    def vector_bytes(self) -> int:
        """A vector that is multiplied, or what attention needs."""
        return max(
            4 * self.hidden,
            4 * self.config.q_size,
            2 * self.config.intermediate_size,
            self.attention_bytes,
        )

    @property
    def attention_bytes(self) -> int:
        """Queries, new key and value; each warp's maxima and totals; its weighted sums."""
        return (self.group + 2) * 2 * HEAD + WARPS * self.group * (8 + 4 * HEAD)

    @property
    def sums_bytes(self) -> int:
        """Sums of rows by segment, and each warp's sum of squares."""
        matrices = (self.qkv, self.out, self.gate_up, self.down)
        return 4 * WARPS + max(4 * m.rows * m.segments for m in matrices)

    @property
    def table_bytes(self) -> int:
        return 8 * ARRAYS * self.config.num_hidden_layers

    @property
    def angles_bytes(self) -> int:
        """Cosines and sines of the position's angles."""
        return 2 * 4 * HEAD

    @property
    def slots(self) -> int:
        """Slots of the ring: those that fit beside the other arrays, which Mosaic aligns."""
        arrays = (self.vector_bytes, self.sums_bytes, self.table_bytes, self.angles_bytes)
        # The barriers of all slots fit one aligned piece.
        pieces = 1 + sum(-(-size // _ALIGNMENT_BYTES) for size in arrays)
        return (_SHARED_BYTES - pieces * _ALIGNMENT_BYTES) // CHUNK

    # Bytes in global memory, for packets.

    @property
    def vectors_bytes(self) -> tuple[int, int, int, int]:
        """Bytes of the residual stream before and after attention, its output, activations."""
        hidden, attended = PACKET * self.hidden, PACKET * self.config.q_size // 2
        return (hidden, hidden, attended, PACKET * BLOCKS * self.activation_packets)

    @property
    def heads_bytes(self) -> int:
        return PACKET * self.config.qkv_size // 2

    @property
    def exchange_bytes(self) -> int:
        parts = PACKET * self.config.q_size * PARTS
        return COPIES * sum(self.vectors_bytes) + self.heads_bytes + parts


def persistent_fits(
    config: Qwen3Config,
    cache_length: int,
    *,
    compute_capability: str | None,
    multiprocessors: int | None,
) -> bool:
    """Whether the kernel supports the GPU, the model and the cache, for one sequence.

    Its blocks wait for one another, so that all of them must run at once: each needs a
    multiprocessor.
    """
    widths = (config.hidden_size, config.qkv_size, config.intermediate_size)
    return (
        compute_capability == HOPPER
        and jax_for_hopper()
        and multiprocessors is not None
        and multiprocessors >= BLOCKS
        and config.itemsize == 2
        and config.num_hidden_layers <= MAX_LAYERS
        and cache_length % CHUNK_SLOTS == 0
        and (config.num_key_value_heads, config.head_dim) == (KV_HEADS, HEAD)
        and all(width % (ROWS * BLOCKS) == 0 for width in widths)
        and Sizes(config, cache_length).slots >= WARPS
    )
