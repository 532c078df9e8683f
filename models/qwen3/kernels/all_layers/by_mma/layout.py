"""Where each value is: in packets between blocks, in chunks of weights, and in operands of mma.

A warp multiplies all rows of its block with 128 of each 1,024 columns: 64 of each 512. Lane (g, j)
= (lane // 4, lane % 4) supplies, for each such 128, the 4 columns from `64 warp + 32 T + 8 j + 4 s`
on of half c of the 1,024, where g = 4 c + 2 T + s is called the tile. So the packets that a
lane reads are those that it supplies, and no value is passed on to other lanes.

Functions take `ops`, the operations on integers: `Lanes` in the kernel, plain integers in tests.
"""

from typing import Any, Protocol, runtime_checkable

Value = Any

# Bytes of a vector's packets: 8 warps, 2 loads, 32 lanes, 2 packets of 8 bytes.
_WARP, _LOAD, _LANE, _PACKET = 1024, 512, 16, 8
VECTOR_PACKETS = 8 * _WARP
# Bytes of the packets of queries; those of keys and values follow.
QUERY_PACKETS = 8 * _WARP


@runtime_checkable
class IntegerOps(Protocol):
    """Operations on integers of a thread."""

    def plus(self, first: Value, *rest: Value) -> Value: ...

    def minus(self, a: Value, b: Value) -> Value: ...

    def times(self, a: Value, b: Value) -> Value: ...

    def right(self, a: Value, places: int) -> Value: ...

    def bits(self, a: Value, mask: int) -> Value: ...

    def less(self, a: Value, b: Value) -> Value: ...

    def pick(self, condition: Value, a: Value, b: Value) -> Value: ...


def bit(ops: IntegerOps, a: Value, place: int) -> Value:
    return ops.bits(ops.right(a, place), 1)


def packet_at(
    ops: IntegerOps, *, warp: Value, load: Value, tile: Value, j: Value, which: Value
) -> Value:
    """Offset of a packet among those of a vector: of the lane (tile, j) of a warp that reads it.

    A lane reads two loads of two packets.
    """
    lane = ops.plus(ops.times(tile, 4), j)
    return ops.plus(
        ops.times(warp, _WARP),
        ops.times(load, _LOAD),
        ops.times(lane, _LANE),
        ops.times(which, _PACKET),
    )


def tile_of(ops: IntegerOps, c: Value, t: Value, s: Value) -> Value:
    return ops.plus(ops.times(c, 4), ops.times(t, 2), s)


def own_column(ops: IntegerOps, warp: Value, lane: Value) -> Value:
    """The first of the 4 columns, of 1,024, that a lane supplies."""
    tile, j = ops.right(lane, 2), ops.bits(lane, 3)
    return ops.plus(
        ops.times(bit(ops, tile, 2), 512),
        ops.times(warp, 64),
        ops.times(bit(ops, tile, 1), 32),
        ops.times(j, 8),
        ops.times(bit(ops, tile, 0), 4),
    )


def packet_of_eight(ops: IntegerOps, block: Value, index: Value) -> Value:
    """Where a block's eight columns of a set of 512 are read, in one of two halves of columns.

    Of the residual stream, packet `index` has value `8 block + index`.

    Of the 3,072 activations, a half has three sets, of each of which a block has 8 columns. Packet
    P = index % 4 of a lane has two values of set P // 2, and one of set 2.
    """
    return packet_at(
        ops,
        warp=ops.right(ops.bits(block, 63), 3),
        load=bit(ops, index, 1),
        tile=tile_of(ops, ops.right(block, 6), bit(ops, block, 2), bit(ops, index, 2)),
        j=ops.bits(block, 3),
        which=bit(ops, index, 0),
    )


def attended_packet(ops: IntegerOps, block: Value, index: Value) -> Value:
    """The packet of values `16 block + 2 index` and the next of attention's output.

    Its 2,048 columns are two halves, c, of two sets of 512: a lane reads a load for each set.
    """
    quarter = ops.right(block, 5)
    return packet_at(
        ops,
        warp=ops.right(ops.bits(block, 31), 2),
        load=ops.bits(quarter, 1),
        tile=tile_of(ops, ops.right(quarter, 1), bit(ops, block, 1), bit(ops, index, 1)),
        j=ops.plus(ops.times(ops.bits(block, 1), 2), bit(ops, index, 2)),
        which=bit(ops, index, 0),
    )


def activation_values(ops: IntegerOps, index: Value) -> tuple[Value, Value]:
    """Which of a block's activations packet `index` has: the first of a pair, and a third.

    Activation `8 set + i` of a block is value i of the block's 8 columns of the set.
    """
    s = ops.times(bit(ops, index, 2), 4)
    pair = ops.plus(ops.times(bit(ops, index, 1), 8), s, ops.times(bit(ops, index, 0), 2))
    return pair, ops.plus(16, s, ops.bits(index, 3))


def first_activation_row(ops: IntegerOps, block: Value) -> Value:
    """The first row of gate of a block; the others of its sets follow at distances of 512."""
    return ops.plus(ops.times(ops.right(block, 6), 1536), ops.times(ops.bits(block, 63), 8))


def head_packet(ops: IntegerOps, block: Value, index: Value) -> Value:
    """The packet of rows `32 block + 2 index` and the next of qkv, for their key/value head.

    Lane `16 h + l` of each warp reads elements 8 l to 8 l + 7 of query head h of the two; or, of
    the packets after QUERY_PACKETS, of the key (h = 0) or value (h = 1).
    """
    is_query = ops.less(block, 64)
    after = ops.minus(block, 64)
    kv_head = ops.pick(is_query, ops.right(block, 3), ops.right(ops.bits(after, 31), 2))
    h = ops.pick(is_query, bit(ops, block, 2), ops.right(after, 5))
    lane = ops.plus(ops.times(h, 16), ops.times(ops.bits(block, 3), 4), ops.right(index, 2))
    return ops.plus(
        ops.pick(is_query, 0, QUERY_PACKETS),
        ops.times(kv_head, _WARP),
        ops.times(bit(ops, index, 1), _LOAD),
        ops.times(lane, _LANE),
        ops.times(bit(ops, index, 0), _PACKET),
    )


def wide_row(ops: IntegerOps, g: Value, group: int) -> tuple[Value, Value]:
    """Chunk, and bytes in it, of row g of a group of 8 rows of 1,024 columns: 4 rows a chunk."""
    return ops.plus(ops.right(g, 2), 2 * group), ops.times(ops.bits(g, 3), 2048)


def narrow_row(ops: IntegerOps, g: Value, sets: int, half: int, number: int) -> tuple[Value, Value]:
    """Chunk, and bytes in it, of row g of 8 rows of 2 halves of `sets` times 512 columns."""
    kilobytes = ops.plus(ops.times(g, 2 * sets), sets * half + number)
    return ops.right(kilobytes, 3), ops.times(ops.bits(kilobytes, 7), 1024)
