"""The persistent kernel's division of work, simulated lane by lane with its own offsets."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from models.qwen3.config import QWEN3_0_6B
from models.qwen3.kernels.all_layers.by_mma import layout
from models.qwen3.kernels.all_layers.by_mma.layout import QUERY_PACKETS, VECTOR_PACKETS
from models.qwen3.kernels.all_layers.sizes import BLOCKS, CHUNK, Sizes
from tests.models.integers import Integers

pytestmark = pytest.mark.jax

HIDDEN = QWEN3_0_6B.hidden_size
Values = npt.NDArray[np.float64]
WARPS, LANES = 8, 32
WARP_LANES = np.arange(LANES)


OPS = Integers()


def written(
    packet: Callable[[Integers, int, int], int], values: Callable[[int, int], Any], per_block: int
) -> dict[int, Any]:
    """The values of each packet by its offset; every packet is written once."""
    packets: dict[int, Any] = {}
    for block in range(BLOCKS):
        for index in range(per_block):
            offset = packet(OPS, block, index)
            assert offset not in packets
            packets[offset] = values(block, index)
    return packets


def polled(packets: dict[int, Any], warp: int, lane: int) -> list[Any]:
    """The packets that a lane reads, in order."""
    return [
        packets[1024 * warp + 512 * load + 16 * lane + 8 * which]
        for load in (0, 1)
        for which in (0, 1)
    ]


def lanes_of_warps() -> list[tuple[int, int]]:
    return [(warp, lane) for warp in range(WARPS) for lane in range(LANES)]


def halves_column(warp: int, lane: int, sets: int, number: int) -> int:
    """The first column that a lane supplies of set `number`, of two halves of `sets` sets."""
    own = layout.own_column(OPS, warp, lane)
    return 512 * (sets * (own // 512) + number) + own % 512


def test_lanes_poll_the_residual_stream_that_they_supply() -> None:
    packets = written(layout.packet_of_eight, lambda block, index: 8 * block + index, 8)
    assert max(packets) == VECTOR_PACKETS - 8
    for warp, lane in lanes_of_warps():
        column = layout.own_column(OPS, warp, lane)
        assert polled(packets, warp, lane) == list(range(column, column + 4))


def test_lanes_poll_the_attention_that_they_supply() -> None:
    packets = written(layout.attended_packet, lambda block, index: 16 * block + 2 * index, 8)
    assert max(packets) == VECTOR_PACKETS - 8
    for warp, lane in lanes_of_warps():
        columns = [halves_column(warp, lane, 2, number) for number in (0, 1)]
        assert polled(packets, warp, lane) == [c + pair for c in columns for pair in (0, 2)]


def test_lanes_poll_the_activations_that_they_supply() -> None:
    def values(block: int, index: int) -> tuple[int, int]:
        row = layout.first_activation_row(OPS, block)
        pair, third = layout.activation_values(OPS, index)
        first, last = (row + 512 * (n // 8) + n % 8 for n in (pair, third))
        return first, last

    packets = written(layout.packet_of_eight, values, 8)
    for warp, lane in lanes_of_warps():
        first, second, third = (halves_column(warp, lane, 3, number) for number in range(3))
        pairs = (first, first + 2, second, second + 2)
        expected = [(pair, third + number) for number, pair in enumerate(pairs)]
        assert polled(packets, warp, lane) == expected


def test_lanes_poll_the_heads_that_they_attend_with() -> None:
    packets = written(layout.head_packet, lambda block, index: 32 * block + 2 * index, 16)
    for kv_head in range(8):
        for lane in range(LANES):
            half, first = lane // 16, 8 * (lane % 16)
            query = 128 * (2 * kv_head + half) + first
            new = 2048 + 1024 * half + 128 * kv_head + first
            assert polled(packets, kv_head, lane) == list(range(query, query + 8, 2))
            shifted = {offset - QUERY_PACKETS: row for offset, row in packets.items()}
            assert polled(shifted, kv_head, lane) == list(range(new, new + 8, 2))


def mma(a: Values, b: Values) -> Values:
    """m16n8k16 of operands by lane, [32, 4, 2] and [32, 2, 2]: sums by lane, [32, 4]."""
    left, right = np.zeros((16, 16)), np.zeros((16, 8))
    for lane in range(LANES):
        g, j = divmod(lane, 4)
        for word, (row, k) in enumerate([(g, 0), (g + 8, 0), (g, 8), (g + 8, 8)]):
            left[row, 2 * j + k : 2 * j + k + 2] = a[lane, word]
        for word in (0, 1):
            right[2 * j + 8 * word : 2 * j + 8 * word + 2, g] = b[lane, word]
    sums = left @ right
    g, j = WARP_LANES // 4, WARP_LANES % 4
    return np.stack(
        [sums[g, 2 * j], sums[g, 2 * j + 1], sums[g + 8, 2 * j], sums[g + 8, 2 * j + 1]], axis=1
    )


def quad_sums(values: Values) -> Values:
    values = values + values[WARP_LANES ^ 1]
    return values + values[WARP_LANES ^ 2]


def operands(rows: list[list[Values]]) -> Values:
    """A by tile and s, [2, 2, 32, 4, 2], from both rows' 8 elements of each tile, by lane."""
    result = np.zeros((2, 2, LANES, 4, 2))
    for lane in range(LANES):
        for tile in (0, 1):
            low, high = (row[lane].reshape(2, 4, 2)[tile] for row in rows)
            for s in (0, 1):
                result[tile, s, lane] = [low[2 * s], high[2 * s], low[2 * s + 1], high[2 * s + 1]]
    return result


def tiles(memory: Values, address: int, lane: int) -> Values:
    """8 elements of both tiles of a row, the second one first for odd rows."""
    odd = 64 * (lane // 4 % 2)
    starts = ((address + odd) // 2, (address + 64 - odd) // 2)
    return np.concatenate([memory[start : start + 8] for start in starts])


def vectors(own: Values, s: int) -> Values:
    """B: a lane's 4 values, or 1,000 times those of lane ^ 4 in place of what rounding left."""
    is_own = (s == WARP_LANES // 4 % 2)[:, None]
    return np.where(is_own, own, 1000 * own[WARP_LANES ^ 4]).reshape(LANES, 2, 2)


def of_own_tile(by_tile: Values) -> Values:
    return by_tile[(WARP_LANES // 4 ^ WARP_LANES) & 1, WARP_LANES]


def test_mma_multiplies_rows_of_1024_columns() -> None:
    generator = np.random.default_rng(0)
    weight = generator.integers(-3, 4, (32, HIDDEN)).astype(float)
    x = generator.integers(-3, 4, HIDDEN).astype(float)
    memory, totals = weight.reshape(-1), np.zeros(32)
    for warp in range(WARPS):
        own = np.stack(
            [x[(c := layout.own_column(OPS, warp, lane)) : c + 4] for lane in WARP_LANES]
        )
        for block in (0, 1):
            sums = np.zeros((2, LANES, 4))
            for c in (0, 1):
                rows = []
                for half in (0, 1):
                    places = [layout.wide_row(OPS, g, 2 * block + half) for g in WARP_LANES // 4]
                    rows.append(
                        [
                            tiles(memory, CHUNK * chunk + at + 1024 * c + 128 * warp + 16 * j, lane)
                            for lane, (chunk, at), j in zip(
                                WARP_LANES, places, WARP_LANES % 4, strict=True
                            )
                        ]
                    )
                a = operands(rows)
                in_half = (c == WARP_LANES // 16)[:, None, None]
                for s in (0, 1):
                    b = np.where(in_half, vectors(own, s), 0)
                    sums += np.stack([mma(a[tile, s], b) for tile in (0, 1)])
            mine = of_own_tile(sums)
            totals[16 * block : 16 * block + 8] += quad_sums(mine[:, 0] + mine[:, 1])[::4]
            totals[16 * block + 8 : 16 * block + 16] += quad_sums(mine[:, 2] + mine[:, 3])[::4]
    np.testing.assert_array_equal(totals, 1001 * weight @ x)


@pytest.mark.parametrize("sets", [2, 3])
def test_mma_multiplies_both_halves_of_8_rows(sets: int) -> None:
    generator = np.random.default_rng(1)
    weight = generator.integers(-3, 4, (8, 1024 * sets)).astype(float)
    x = generator.integers(-3, 4, 1024 * sets).astype(float)
    memory, totals = weight.reshape(-1), np.zeros(8)
    for warp in range(WARPS):
        sums = np.zeros((2, LANES, 4))
        for number in range(sets):
            columns = [halves_column(warp, lane, sets, number) for lane in WARP_LANES]
            own = np.stack([x[column : column + 4] for column in columns])
            rows = []
            for half in (0, 1):
                places = [layout.narrow_row(OPS, g, sets, half, number) for g in WARP_LANES // 4]
                rows.append(
                    [
                        tiles(memory, CHUNK * chunk + at + 128 * warp + 16 * (lane % 4), lane)
                        for lane, (chunk, at) in zip(WARP_LANES, places, strict=True)
                    ]
                )
            a = operands(rows)
            for s in (0, 1):
                sums += np.stack([mma(a[tile, s], vectors(own, s)) for tile in (0, 1)])
        mine = of_own_tile(sums)
        first_half = WARP_LANES % 4 < 2
        row = np.where(first_half, mine[:, 0] + mine[:, 1], mine[:, 2] + mine[:, 3])
        totals += quad_sums(row)[::4]
    np.testing.assert_array_equal(totals, 1001 * weight @ x)


def test_activation_rows_are_divided_evenly() -> None:
    rows = [
        layout.first_activation_row(OPS, block) + 512 * number + index
        for block in range(BLOCKS)
        for number in range(3)
        for index in range(8)
    ]
    assert sorted(rows) == list(range(QWEN3_0_6B.intermediate_size))


def test_vectors_have_the_same_packets_in_the_layout_and_in_the_sizes() -> None:
    sizes = Sizes(QWEN3_0_6B, 2048)
    assert sizes.by_mma
    assert sizes.vectors_bytes == (VECTOR_PACKETS,) * 4
    assert sizes.heads_bytes == 2 * QUERY_PACKETS
    assert sizes.exchange_bytes == 409_600
