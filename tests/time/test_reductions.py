"""What reductions add up, and how blocks divide sums of columns."""

import pytest

from tests.shared.small_hlo import plan_of_text
from tests.time.small_work import work_of_text
from xlapipe.plans.hlo import Computation, Instruction
from xlapipe.time.predict.reductions import Reduced, column_tile, reduced
from xlapipe.time.predict.work import KernelWork


def _sums(shape: str, along: str, result: str) -> tuple[Instruction, Computation]:
    text = f"""HloModule small, is_scheduled=true
add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}
ENTRY main {{
  p = {shape} parameter(0)
  z = f32[] constant(0)
  ROOT r = {result} reduce(p, z), dimensions={along}, to_apply=add
}}
"""
    module = plan_of_text(text).module
    assert module is not None
    main = module.entry_computation
    assert main is not None
    return main.by_name["r"], main


@pytest.mark.parametrize(
    ("shape", "along", "result", "expected"),
    [
        ("f32[3,64,96]{2,1,0}", "{1}", "f32[3,96]{1,0}", Reduced("column", 64, 96, 288)),
        ("f32[3,64,96]{2,1,0}", "{0,1}", "f32[96]{0}", Reduced("column", 192, 96, 96)),
        ("f32[3,64,96]{2,1,0}", "{2}", "f32[3,64]{1,0}", Reduced("row", 96, 1, 192)),
        # What is contiguous is by the layout.
        ("f32[64,96]{0,1}", "{0}", "f32[96]{0}", Reduced("row", 64, 1, 96)),
    ],
)
def test_columns_are_of_sums_beside_each_other(
    shape: str, along: str, result: str, expected: Reduced
) -> None:
    assert reduced(*_sums(shape, along, result)) == expected


@pytest.mark.parametrize(
    ("columns", "blocks", "elements", "vector", "whole"),
    [
        # 32 rows of threads share 2,048 rows; each has four elements of a row of 768: 6 blocks.
        (Reduced("column", 2048, 768, 3 * 768), 18, 256, 4, True),
        # Some of the last block's threads are beside the row.
        (Reduced("column", 3072, 224, 224), 4, 192, 2, False),
        (Reduced("column", 1000, 64, 64), 1, 64, 2, False),
        # Of each 32 threads, five have an element: as many of the others are idle.
        (Reduced("column", 365, 5, 137 * 5), 137, 12, 1, False),
    ],
)
def test_threads_of_a_block_divide_columns(
    columns: Reduced, blocks: int, elements: int, vector: int, whole: bool
) -> None:
    tile = column_tile(columns, blocks * 1024, 1024)
    assert (tile.elements, tile.vector, tile.whole) == (elements, vector, whole)
    assert tile.elements_of_all == columns.length * columns.sums / (blocks * 1024)


def _work(result: str, root: str, blocks: int) -> KernelWork:
    text = f"""HloModule small, is_scheduled=true
add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}
fused {{
  p = bf16[2048,512]{{1,0}} parameter(0)
  f = f32[2048,512]{{1,0}} convert(p)
  z = f32[] constant(0)
  r = f32[512]{{0}} reduce(f, z), dimensions={{0}}, to_apply=add
  ROOT t = {result} {root}
}}
ENTRY main {{
  p = bf16[2048,512]{{1,0}} parameter(0)
  ROOT f = {result} fusion(p), kind=kInput, calls=fused
}}
"""
    return work_of_text(text, blocks, 1024)


def test_a_thread_waits_for_each_result_that_it_writes_and_less_for_what_it_reads() -> None:
    whole = "f32[2048,512]{1,0}"
    alone = _work("f32[512]{0}", "bitcast(r)", 4)
    beside = _work(f"(f32[512]{{0}}, {whole})", "tuple(r, f)", 4)
    assert beside.serial_accesses == pytest.approx(alone.serial_accesses * 2.25 / 1.25)
