"""What is different between two plans, and what it costs: frozen data, and sentences about it.

`compare` takes two programs, `compare_paths` two dumps. Nothing here prints, or imports jax.
"""

from xlapipe.diff.changes import Difference
from xlapipe.diff.compare import compare
from xlapipe.diff.paths import Opened, compare_opened, compare_paths, opened
from xlapipe.diff.sentences import (
    Sentence,
    account_sentences,
    change_sentences,
    program_sentences,
)

__all__ = [
    "Difference",
    "Opened",
    "Sentence",
    "account_sentences",
    "change_sentences",
    "compare",
    "compare_opened",
    "compare_paths",
    "opened",
    "program_sentences",
]
