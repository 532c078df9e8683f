"""Results of loops of which the L2 cache gets every sector in parts."""

import pytest

from tests.time.small_work import work_of_text


def _scattered(element: str, rows: int, columns: int, results: int) -> float:
    """Bytes written in parts, relative to those written; a thread has four elements."""
    shape = f"{element}[{rows},{columns}]{{1,0}}"
    whole = f"({', '.join([shape] * results)})" if results > 1 else shape
    root = f"tuple({', '.join(['n'] * results)})" if results > 1 else "negate(n)"
    text = f"""HloModule small, is_scheduled=true
fused {{
  p = {shape} parameter(0)
  n = {shape} negate(p)
  ROOT r = {whole} {root}
}}
ENTRY main {{
  p = {shape} parameter(0)
  ROOT f = {whole} fusion(p), kind=kLoop, calls=fused
}}
"""
    work = work_of_text(text, -(-rows * columns // (4 * 128)), 128)
    return work.scattered_bytes / work.written_bytes


@pytest.mark.parametrize(
    ("element", "rows", "columns", "results", "parts"),
    [
        ("f32", 1024, 1024, 1, 0),
        ("f32", 1024, 1024, 2, 0),
        # Blocks go beyond the end, and rows are no multiple of a thread's elements.
        ("f32", 1001, 1003, 1, 0),
        ("f32", 1001, 1003, 2, 4),
        # XLA makes no vectors of complex numbers; the L2 cache holds 8 MB of them, but not 134.
        ("c64", 1024, 1024, 1, 2),
        ("c64", 4096, 4096, 1, 4),
    ],
)
def test_what_is_not_adjacent_to_the_compiler_is_written_in_parts(
    element: str, rows: int, columns: int, results: int, parts: int
) -> None:
    assert _scattered(element, rows, columns, results) == parts
