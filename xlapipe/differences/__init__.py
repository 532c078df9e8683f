"""The difference between two plans and its cost in bytes, as frozen data and as sentences.

`compare` takes two programs, `compare_opened` two dumps. `matching` pairs their instructions, and
`account` attributes every byte. `comparing` compiles a workload in several ways (XLA options,
GEMM policies, commits), and `compilers` compares torch Inductor with XLA. Nothing here
prints, or imports jax.

To add a kind of change: a frozen dataclass with its text in `changes`, the function that finds it
in `instruction_changes`, `leaf_changes` or `schedule_changes`, and a call of it in `compare`.
"""

from xlapipe.differences.compare import compare, compare_opened
from xlapipe.differences.difference import Difference
from xlapipe.differences.sentences import Sentence, Sentences

__all__ = [
    "Difference",
    "Sentence",
    "Sentences",
    "compare",
    "compare_opened",
]
