"""Tile sizes of the kernels, and the shapes that they support. Imports no jax: bounds use it."""

from importlib.metadata import version

from models.qwen3.config import Qwen3Config

# Decode: cache slots that a program reads at once (a chunk); for one sequence, into registers.
SLOTS = 64
# The minimum of a chunk, unless the whole cache is smaller.
LEAST_SLOTS = 32
# Decode: the maximum number of programs of attention, which compute all queries of a key/value head
# together, or one query head each; with more chunks, each program reads several.
PROGRAMS = 256
PROGRAMS_BY_HEAD = 512
# Decode of several sequences: the maximum number of them, since a program holds the products of all
# of them with its rows; and what the model's widths must be multiples of.
MAX_BATCH = 64
LEAST_TILE = 32
# Prompts: queries of a program, and keys that it reads at once.
QUERIES = 128
KEYS = 128
# The minimum for a tensor core.
LEAST = 16
# Compute capability of the GPUs that the kernels for Hopper support.
HOPPER = "9.0"
# The first jax whose kernels for Hopper ran on a GPU. jax 0.10 drops the names of kernels that
# write to references, and names them all NAMELESS.
_JAX_FOR_HOPPER = (0, 11)
NAMELESS = "new_body"
# Prompts on Hopper: tokens and outputs of a tile, and the slice of the contracted axis that is
# read at once. A head has the number of elements of a tile's outputs.
HOPPER_ROWS = 128
HOPPER_COLUMNS = 128
HOPPER_INNER = 64


def chunk_of(slots: int) -> int:
    """Slots of a chunk."""
    return power_of_two(slots, SLOTS)


def splits_of(heads: int, slots: int, *, by_head: bool = False) -> int:
    """Number of programs that the slots of one of `heads` heads are split over: a power of two.

    Args:
      heads: of all sequences.
      by_head: the heads are query heads, not key/value heads.
    """
    splits, most = 1, PROGRAMS_BY_HEAD if by_head else PROGRAMS
    while splits * 2 <= slots // chunk_of(slots) and heads * splits * 2 <= most:
        splits *= 2
    return splits


def power_of_two(number: int, limit: int) -> int:
    """The largest power of two that divides `number` and is at most `limit`, a power of two."""
    return min(number & -number, limit)


def decode_fits(slots: int) -> bool:
    """Whether a cache of `slots` consists of whole chunks."""
    return slots % LEAST_SLOTS == 0 or _is_power_of_two(slots)


def batch_fits(config: Qwen3Config, batch: int) -> bool:
    """Whether decode's kernels for several sequences support `batch` sequences of the model.

    They divide weights into whole tiles, and were compared with XLA for 0.6B, 4B and 8B.
    """
    widths = (config.hidden_size, config.intermediate_size, config.qkv_size, config.q_size)
    return batch <= MAX_BATCH and all(width % LEAST_TILE == 0 for width in widths)


def prompt_fits(length: int) -> bool:
    """Whether prompts of `length` tokens, padding included, consist of whole blocks."""
    return length % QUERIES == 0 or (LEAST <= length < QUERIES and _is_power_of_two(length))


def hopper_fits(config: Qwen3Config, length: int, compute_capability: str | None) -> bool:
    """Whether the kernels for Hopper support the GPU, the model, and prompts of `length` tokens.

    The tokens, padding included, and the model's sizes must be whole tiles; its dtype has 16 bits.

    Args:
      compute_capability: e.g. `9.0`; None if unknown.
    """
    return (
        compute_capability == HOPPER
        and jax_for_hopper()
        and config.itemsize == 2
        and length % HOPPER_ROWS == 0
        and config.head_dim == HOPPER_COLUMNS
        and config.hidden_size % HOPPER_INNER == 0
        and config.intermediate_size % HOPPER_COLUMNS == 0
        # A tile is two heads of the same kind.
        and config.num_attention_heads % 2 == config.num_key_value_heads % 2 == 0
    )


def jax_for_hopper() -> bool:
    """Whether the kernels for Hopper are known to run with the installed jax."""
    return tuple(map(int, version("jax").split(".")[:2])) >= _JAX_FOR_HOPPER


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
