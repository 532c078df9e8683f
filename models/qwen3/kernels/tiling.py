"""What the kernels read at once, and of which shapes. Imports no jax, so that bounds can use it."""

# Cache slots that a program of a decode step reads at once: what its threads hold in registers.
SLOTS = 32
# Programs of a decode step's attention, at most; beyond them each takes several chunks.
PROGRAMS = 1024
# Of a prompt: queries of a program, and the keys that it reads at once.
QUERIES = 128
KEYS = 128
# The least that a tensor core takes.
LEAST = 16


def splits_of(heads: int, slots: int) -> int:
    """Among how many programs the slots of a head are split: a power of two."""
    splits = 1
    while splits * 2 <= max(1, slots // SLOTS) and heads * splits * 2 <= PROGRAMS:
        splits *= 2
    return splits


def decode_fits(slots: int) -> bool:
    """Whether a cache of so many slots can be read in whole chunks."""
    return slots % SLOTS == 0 or (slots < SLOTS and _is_power_of_two(slots))


def prompt_fits(length: int) -> bool:
    """Whether prompts of so many tokens, padding included, can be read in whole blocks."""
    return length % QUERIES == 0 or (LEAST <= length < QUERIES and _is_power_of_two(length))


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
