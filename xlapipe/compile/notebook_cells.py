"""Cells of the notebook that this process runs, by the file names that their code has.

Jupyter's kernel names the code of a cell `/tmp/ipykernel_PID/HASH.py`, which does not
identify the cell, and uses the number of the cell only in its tracebacks.
"""

import sys
from collections.abc import Mapping
from typing import Any


def cell_numbers() -> Mapping[str, int]:
    """The number of each cell, as in `In [3]`, by its file name; empty without IPython."""
    module: Any = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    numbers: Mapping[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return numbers


def cells_in(module: bytes) -> dict[str, int]:
    """The cells whose file names are in a lowered module."""
    return {name: number for name, number in cell_numbers().items() if name.encode() in module}
