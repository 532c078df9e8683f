"""A program as torch Inductor and as XLA compiled it, side by side.

`compare_compilers` takes a dump of each. It does not claim that both are the same program: it
matches arguments and outputs by dtype, shape and order, and lists those that do not match.
"""

from xlapipe.differences.compilers.comparison import CompilerComparison, compare_compilers

__all__ = ["CompilerComparison", "compare_compilers"]
