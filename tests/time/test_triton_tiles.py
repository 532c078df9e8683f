"""How Triton's blocks divide results, from the tiles in XLA's configuration."""

import dataclasses

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.time.predict.gpu import HOPPER
from xlapipe.time.predict.product_work import is_untuned
from xlapipe.time.predict.triton_tiles import (
    ProductTile,
    dependent_sums,
    misaligned_share,
    pieces_of_a_tile,
    product_tile,
    tuned_tile,
)


def _fusion(shape: str, sizes: str, body: str, operands: str) -> tuple[Instruction, Computation]:
    """A fusion by Triton of 8 warps, with `sizes` as XLA's tile of its result."""
    quoted = ",".join(f'"{size}"' for size in sizes.split("x"))
    given = [
        f"  p{number} = {text} parameter({number})" for number, text in enumerate(operands.split())
    ]
    inner = [line.replace("  p", "  q") for line in given]
    config = (
        '{"fusion_backend_config":{"kind":"__triton","block_level_fusion_config":'
        f'{{"num_warps":"8","output_tiles":[{{"sizes":[{quoted}]}}]}}}}}}'
    )
    names = ", ".join(f"p{number}" for number in range(len(given)))
    text = "\n".join(
        [
            "HloModule small, is_scheduled=true",
            "add {",
            "  a = f32[] parameter(0)",
            "  b = f32[] parameter(1)",
            "  ROOT c = f32[] add(a, b)",
            "}",
            "fused {",
            *inner,
            body,
            "}",
            "ENTRY main {",
            *given,
            f"  ROOT f = {shape} fusion({names}), kind=kCustom, calls=fused, "
            f"backend_config={config}",
            "}",
        ]
    )
    module = plan_of_text(text).module
    assert module is not None
    return module.computations["main"].by_name["f"], module.computations["fused"]


def _tile(product: Instruction, body: Computation, terms: float = 512) -> ProductTile | None:
    dot = body.by_name["d"]
    operands = [body.by_name[name].shape.arrays[0] for name in dot.operands]
    return product_tile(product, dot, operands, terms, 2.0)


_PRODUCT = "  ROOT d = {shape} dot(q0, q1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"


@pytest.mark.parametrize(
    ("m", "n", "tile", "blocks", "sides"),
    [
        (128, 256, "64x128", 4, (64, 128)),
        (100, 80, "64x64", 4, (64, 64)),
        (7, 9, "8x16", 1, (8, 16)),
    ],
)
def test_tiles_at_the_edges_of_a_result_count_whole(
    m: int, n: int, tile: str, blocks: int, sides: tuple[int, int]
) -> None:
    shape = f"bf16[{m},{n}]{{1,0}}"
    operands = f"bf16[{m},512]{{1,0}} bf16[512,{n}]{{1,0}}"
    tiles = _tile(*_fusion(shape, tile, _PRODUCT.format(shape=shape), operands))
    assert tiles is not None
    assert (tiles.blocks, tiles.sides) == (blocks, sides)


def test_a_block_computes_in_steps_over_the_terms() -> None:
    shape = "bf16[128,256]{1,0}"
    body = _PRODUCT.format(shape=shape) + ', backend_config={"sizes":["64"]}'
    operands = "bf16[128,500]{1,0} bf16[500,256]{1,0}"
    tile = _tile(*_fusion(shape, "64x128", body, operands), terms=500)
    assert tile is not None
    assert (tile.depth, tile.steps, tile.warps, tile.stages) == (64, 8, 8, 1)
    assert tile.step_bytes == (64 + 128) * 64 * 2
    assert tile.step_flops == 2 * 64 * 128 * 64
    # Rows of 500 elements of 2 bytes, which one operand has, are no multiple of 16 bytes.
    assert 0 < tile.misaligned < 64 * (64 + 128) / 2


@pytest.mark.parametrize("stages", [1, 3])
def test_rows_of_an_odd_number_of_short_elements_take_longest(stages: int) -> None:
    def misaligned(element: str, terms: int) -> float:
        shape = f"{element}[128,256]{{1,0}}"
        body = _PRODUCT.format(shape=shape) + ', backend_config={"sizes":["64"]}'
        operands = f"{element}[128,{terms}]{{1,0}} {element}[{terms},256]{{1,0}}"
        product, fused = _fusion(shape, "64x128", body, operands)
        config = product.backend_config.replace('"num_warps"', f'"num_stages":{stages},"num_warps"')
        tile = _tile(product._replace(backend_config=config), fused, terms=terms)
        assert tile is not None
        assert tile.stages == stages
        return tile.misaligned

    assert misaligned("bf16", 512) == 0
    assert misaligned("bf16", 501) > misaligned("bf16", 502) == misaligned("bf16", 500) > 0
    # Of 4 bytes, copies are asynchronous wherever rows start.
    assert misaligned("f32", 501) == misaligned("f32", 502) == 64 * (64 + 128) / 2


def test_a_multiprocessor_has_as_many_blocks_as_its_memory_and_registers_hold() -> None:
    small = ProductTile((16.0, 16.0), 1000, 32, 512, 1, 2, 2)
    stages = dataclasses.replace(small, stages=4, depth=512)
    large = dataclasses.replace(small, sides=(256.0, 256.0))
    assert small.resident > stages.resident > 1
    assert large.resident == 1


def test_a_tuned_tile_covers_the_result() -> None:
    tile = tuned_tile(ProductTile((16.0, 16.0), 4096, 32, 512, 1, 2, 2), 4096, 1 << 20)
    assert (tile.area, tile.blocks, tile.terms) == (4096, 256, 512)


def test_rows_that_do_not_start_at_multiples_of_16_bytes_are_misaligned() -> None:
    shape = "bf16[128,100]{1,0}"
    operands = "bf16[128,512]{1,0} bf16[512,100]{1,0}"
    product, body = _fusion(shape, "64x64", _PRODUCT.format(shape=shape), operands)
    # 200 bytes a row of the second operand and of the result, 1,024 of the first one.
    odd, even = 512 * 100 + 128 * 100, 128 * 512
    given = [item.shape for item in body.instructions if item.opcode == "parameter"]
    matrices = [shape.arrays[0] for shape in (*given, product.shape)]
    assert misaligned_share(matrices) == pytest.approx(odd / (odd + even))


_SOFTMAX = """  zero = f32[] constant(0)
  e = {shape} exponential(q0)
  s = f32[{kept}] reduce(e, zero), dimensions={{3}}, to_apply=add
  w = {shape} broadcast(s), dimensions={{0,1,2}}
  ROOT d = {shape} divide(e, w)"""


@pytest.mark.parametrize(
    ("tile", "pieces", "rows"),
    [("1x1x8x1024", 1, 8), ("1x8x1x1024", 8, 1), ("1x8x2x1024", 8, 2), ("2x16x1x1024", 32, 1)],
)
def test_rows_of_a_tile_that_are_not_next_to_each_other_are_pieces(
    tile: str, pieces: int, rows: int
) -> None:
    shape = "f32[8,16,1024,1024]{3,2,1,0}"
    body = _SOFTMAX.format(shape=shape, kept="8,16,1024")
    fusion, computation = _fusion(shape, tile, body, shape)
    found = pieces_of_a_tile(fusion, computation, 1024)
    assert found == (pieces, rows)
    assert found.separate == max(1.0, pieces / rows)


def test_a_softmax_of_a_slice_has_the_tile_of_one_of_the_whole() -> None:
    shape, wider = "f32[8,16,1024,1024]{3,2,1,0}", "f32[8,16,1024,1040]{3,2,1,0}"
    body = _SOFTMAX.format(shape=shape, kept="8,16,1024")
    kept = f"  part = {shape} slice(q0), slice={{[0:8], [0:16], [0:1024], [0:1024]}}\n"
    of_slice = kept + body.replace("exponential(q0)", "exponential(part)")
    whole, part = (
        pieces_of_a_tile(*_fusion(shape, "1x1x2x1024", text, operand), 1024)
        for text, operand in ((body, shape), (of_slice, wider))
    )
    assert part == whole == (1, 2)


def test_sums_of_which_one_needs_another_are_counted_one_after_another() -> None:
    shape, kept = "f32[64,1024]{1,0}", "f32[64]{0}"
    summed = "dimensions={1}, to_apply=add"
    body = (
        "  zero = f32[] constant(0)\n"
        f"  mean = {kept} reduce(q0, zero), {summed}\n"
        f"  other = {kept} reduce(q0, zero), {summed}\n"
        f"  wide = {shape} broadcast(mean), dimensions={{0}}\n"
        f"  centred = {shape} subtract(q0, wide)\n"
        f"  variance = {kept} reduce(centred, zero), {summed}\n"
        f"  ROOT both = {kept} multiply(variance, other)"
    )
    _, computation = _fusion(kept, "8", body, shape)
    assert dependent_sums(computation) == 2


def test_rows_that_are_summed_lie_beside_each_other() -> None:
    body = (
        "  zero = f32[] constant(0)\n"
        "  ROOT s = f32[8192]{0} reduce(q0, zero), dimensions={1}, to_apply=add"
    )
    fusion, computation = _fusion("f32[8192]{0}", "16", body, "f32[8192,512]{1,0}")
    assert pieces_of_a_tile(fusion, computation, 512) == (1, 16)


def _products(tiles: list[str], shape: str) -> HloModule:
    """Products of one shape by Triton, with tiles."""
    sizes = [f'"{tile}"'.replace(",", '","') for tile in tiles]
    fusions = [
        f"  f{number} = {shape} fusion(p0), kind=kCustom, calls=fused, "
        'backend_config={"fusion_backend_config":{"block_level_fusion_config":{"num_stages":1,'
        f'"num_tiles_per_pid":0,"num_warps":"2","output_tiles":[{{"sizes":[{size}]}}]}},'
        '"kind":"__triton_nested_gemm_fusion"}}'
        for number, size in enumerate(sizes)
    ]
    text = "\n".join(
        [
            "HloModule small, is_scheduled=true",
            "fused {",
            f"  ROOT q0 = {shape} parameter(0)",
            "}",
            "ENTRY main {",
            f"  p0 = {shape} parameter(0)",
            *fusions,
            f"  ROOT t = ({shape}) tuple(p0)",
            "}",
        ]
    )
    module = plan_of_text(text).module
    assert module is not None
    return module


@pytest.mark.parametrize(
    ("tiles", "untuned"),
    [
        ("1,8,16 1,16,8", True),
        ("1,8,16 1,64,32", True),
        ("1,8,16 1,64,64", False),
        ("1,64,32", False),
        ("", False),
    ],
)
def test_a_plan_is_untuned_if_all_of_its_products_have_default_tiles(
    tiles: str, untuned: bool
) -> None:
    module = _products(tiles.split(), "f32[4,64,64]{2,1,0}")
    assert is_untuned(module, HOPPER) == untuned


@pytest.mark.parametrize(
    ("shape", "untuned"),
    [("f32[4,1024,1024]", True), ("f32[4,9,262144]", False), ("f32[4,64,64]", False)],
)
def test_no_tuner_takes_a_small_tile_for_a_large_result(shape: str, untuned: bool) -> None:
    """Whatever tiles the other products have."""
    assert is_untuned(_products(["1,8,16", "1,128,8"], f"{shape}{{2,1,0}}"), HOPPER) == untuned


@pytest.mark.parametrize("tile", ["0x64", "9999999999x9999999999"])
def test_a_damaged_tile_counts_as_none(tile: str) -> None:
    shape = "bf16[128,256]{1,0}"
    operands = "bf16[128,512]{1,0} bf16[512,256]{1,0}"
    product, body = _fusion(shape, tile, _PRODUCT.format(shape=shape), operands)
    assert _tile(product, body) is None
    assert pieces_of_a_tile(product, body, 0) == (1, 1)
