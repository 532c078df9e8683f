"""How kernels divide products with weights, by the weight's shape. Imports no jax."""

from typing import NamedTuple

from models.qwen3.config import Qwen3Config
from models.qwen3.kernels.tiling import power_of_two


class Form(NamedTuple):
    """How a kernel divides its matrix for one sequence.

    Attributes:
      rows: of each matrix, of a program.
      columns: that a program reads at once.
      looped: in a loop over the columns; otherwise all are on their way before the first product.
    """

    rows: int
    columns: int
    warps: int
    looped: bool = True


class BatchForm(NamedTuple):
    """How a kernel divides its matrix for several sequences.

    Attributes:
      rows, columns: of the tile of each matrix that a program reads at once.
      warps: of a program.
      stages: tiles in shared memory: one is multiplied, the others are on their way.
      splits: programs that the columns are divided among.
    """

    rows: int
    columns: int
    warps: int = 4
    stages: int = 4
    splits: int = 1


# The fastest of `tests/gpu/qwen3_matvecs.json`, by the weight's shape, outputs × inputs.
FORMS = {
    # 1.7B: qkv, o, gate and up, down, output head
    (4096, 2048): Form(4, 2048, 4),
    (2048, 2048): Form(1, 2048, 1),
    (12288, 2048): Form(2, 512, 2),
    (2048, 6144): Form(1, 2048, 2),
    (151936, 2048): Form(1, 2048, 1),
    # 4B: qkv, o, gate and up, down, output head
    (6144, 2560): Form(8, 512, 2),
    (2560, 4096): Form(1, 512, 1),
    (19456, 2560): Form(2, 512, 1),
    (2560, 9728): Form(1, 512, 1),
    (151936, 2560): Form(8, 512, 2),
    # 8B: qkv, o, gate and up, down, output head
    (6144, 4096): Form(4, 512, 2),
    (4096, 4096): Form(1, 512, 1),
    (24576, 4096): Form(4, 512, 2),
    (4096, 12288): Form(1, 512, 1),
    (151936, 4096): Form(8, 512, 2),
    # 14B: qkv, o, gate and up, down, output head
    (7168, 5120): Form(8, 512, 2),
    (5120, 5120): Form(1, 1024, 2),
    (34816, 5120): Form(2, 512, 1),
    (5120, 17408): Form(4, 512, 2),
    (151936, 5120): Form(2, 512, 1),
}
# The fastest of `tests/gpu/qwen3_products.json`, with 32 sequences. Every program of attention adds
# the sums of qkv, which are at most MOST_QKV_SPLITS.
MOST_QKV_SPLITS = 2
BATCH_FORMS = {
    # 4B: qkv, o, gate and up, down
    (6144, 2560): BatchForm(64, 128, 4, 3, 2),
    (2560, 4096): BatchForm(64, 64, 4, 4, 8),
    (19456, 2560): BatchForm(64, 64, 4, 4),
    (2560, 9728): BatchForm(64, 128, 4, 4, 4),
    # 8B: qkv, o, gate and up, down
    (6144, 4096): BatchForm(64, 64, 4, 5, 2),
    (4096, 4096): BatchForm(64, 128, 4, 5, 2),
    (24576, 4096): BatchForm(64, 64, 4, 4),
    (4096, 12288): BatchForm(64, 128, 4, 5, 2),
}
# Decode of one sequence: the maximum hidden size of a model without measured forms.
_MOST_HIDDEN = 2048
# Where a matrix has no measured form: columns at most, elements of a program at most, warps.
_COLUMNS, _ELEMENTS, _WARPS = 1024, 4096, 2
# The same for several sequences: rows and columns at most, of one matrix and of gate and up; and
# the number of programs that one matrix is divided among, if its sizes allow it.
_BATCH_TILE, _BATCH_TILE_OF_TWO = (64, 128), (32, 256)
_BATCH_PROGRAMS = 96


def form_of(shape: tuple[int, ...], matrices: int = 1) -> Form:
    """The measured form of a weight of `matrices` matrices; without one, whole rows.

    Triton requires powers of two. Columns are the largest one that divides the inputs; rows are the
    largest one that divides the outputs and keeps the tile within _ELEMENTS.
    """
    if shape in FORMS:
        return FORMS[shape]
    outputs, inputs = shape
    most_rows = 1 << max(0, (_ELEMENTS // (inputs * matrices)).bit_length() - 1)
    rows = power_of_two(outputs // matrices, most_rows)
    return Form(rows, power_of_two(inputs, _COLUMNS), _WARPS, looped=False)


def batch_form_of(shape: tuple[int, ...], matrices: int = 1) -> BatchForm:
    """The measured form for several sequences; without one, enough programs if possible."""
    if shape in BATCH_FORMS:
        return BATCH_FORMS[shape]
    most_rows, most_columns = _BATCH_TILE if matrices == 1 else _BATCH_TILE_OF_TWO
    outputs, inputs = shape[0] // matrices, shape[1]
    rows, columns = power_of_two(outputs, most_rows), power_of_two(inputs, most_columns)
    if matrices > 1:
        return BatchForm(rows, columns)
    programs, steps = outputs // rows, inputs // columns
    divisors = [splits for splits in range(1, steps + 1) if steps % splits == 0]
    splits = next((it for it in divisors if programs * it >= _BATCH_PROGRAMS), steps)
    return BatchForm(rows, columns, splits=splits)


def shapes_of(config: Qwen3Config) -> dict[str, tuple[int, int]]:
    """The weights' shapes, outputs × inputs."""
    d, f = config.hidden_size, config.intermediate_size
    return {
        "qkv": (config.qkv_size, d),
        "o": (d, config.q_size),
        "gate_up": (2 * f, d),
        "down": (d, f),
        "head": (config.vocab_size, d),
    }


def measured(config: Qwen3Config) -> bool:
    """Whether all of the model's products have measured forms."""
    return all(shape in FORMS for shape in shapes_of(config).values())


def single_fits(config: Qwen3Config) -> bool:
    """Whether the kernels for one sequence are known, or expected, to be faster than XLA."""
    return measured(config) or config.hidden_size <= _MOST_HIDDEN
