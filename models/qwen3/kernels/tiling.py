"""What the kernels read at once, and of which shapes. Imports no jax, so that bounds can use it."""

from importlib.metadata import version

from models.qwen3.config import Qwen3Config

# Cache slots that a program of a decode step reads at once: what its threads hold in registers.
SLOTS = 64
# The fewest in a chunk, unless the whole cache has fewer.
LEAST_SLOTS = 32
# Programs of a decode step's attention, at most; beyond them each takes several chunks.
PROGRAMS = 256
# Of a prompt: queries of a program, and the keys that it reads at once.
QUERIES = 128
KEYS = 128
# The least that a tensor core takes.
LEAST = 16
# The compute capability of the GPUs that its kernels are for.
HOPPER = "9.0"
# The first jax with which they ran on a GPU. The one before it drops the names of kernels that
# write into references, and calls them all NAMELESS.
_JAX_FOR_HOPPER = (0, 11)
NAMELESS = "new_body"
# Of a prompt's products on Hopper: tokens and outputs of a tile, and the slice of the contracted
# axis that is read at once. A head is one tile's outputs.
HOPPER_ROWS = 128
HOPPER_COLUMNS = 128
HOPPER_INNER = 64


def chunk_of(slots: int) -> int:
    """Slots of a chunk in a cache of so many: the largest power of two that divides them."""
    return min(SLOTS, slots & -slots)


def splits_of(kv_heads: int, slots: int) -> int:
    """Among how many programs the slots of a key/value head are split: a power of two."""
    splits = 1
    while splits * 2 <= slots // chunk_of(slots) and kv_heads * splits * 2 <= PROGRAMS:
        splits *= 2
    return splits


def decode_fits(slots: int) -> bool:
    """Whether a cache of so many slots can be read in whole chunks."""
    return slots % LEAST_SLOTS == 0 or _is_power_of_two(slots)


def prompt_fits(length: int) -> bool:
    """Whether prompts of so many tokens, padding included, can be read in whole blocks."""
    return length % QUERIES == 0 or (LEAST <= length < QUERIES and _is_power_of_two(length))


def hopper_fits(config: Qwen3Config, length: int, compute_capability: str | None) -> bool:
    """Whether the kernels for Hopper are for such a GPU, and take prompts of so many tokens.

    The tokens, padding included, and the model's sizes have to make whole tiles, in 16 bits.

    Args:
      compute_capability: e.g. `9.0`; None where it is not known.
    """
    return (
        compute_capability == HOPPER
        and jax_for_hopper()
        and config.itemsize == 2
        and length % HOPPER_ROWS == 0
        and config.head_dim == HOPPER_COLUMNS
        and config.hidden_size % HOPPER_INNER == 0
        and config.intermediate_size % HOPPER_COLUMNS == 0
        # Two heads of one kind make a tile.
        and config.num_attention_heads % 2 == config.num_key_value_heads % 2 == 0
    )


def jax_for_hopper() -> bool:
    """Whether the jax that is here is one whose kernels for Hopper are known to run."""
    return tuple(map(int, version("jax").split(".")[:2])) >= _JAX_FOR_HOPPER


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
