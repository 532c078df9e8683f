"""Packets of 8 bytes between blocks: values, and the epoch in which they were written.

A reader polls the packets themselves, so that there are no flags, fences or counters. 8 bytes are
written and read at once. Epochs count up from 1, and XLA zeroes the memory before each launch.
"""

from collections.abc import Sequence
from typing import Any

from models.qwen3.kernels.all_layers.lanes import ALL_LANES, TURNS, Lanes

Value = Any
Words = tuple[Value, Value]


def of_float(o: Lanes, value: Value, epoch: Value) -> Words:
    """A float32, and an epoch of 32 bits."""
    return o.as_word(value), epoch


def of_two(o: Lanes, a: Value, b: Value, epoch: Value) -> Words:
    """Two floats of 24 bits, rounded, and an epoch of 16 bits."""
    a, b = (o.plus(o.as_word(value), 128) for value in (a, b))
    return o.bytes_of(a, b, "3217"), o.bytes_of(epoch, b, "6510")


def two_of(o: Lanes, words: Words) -> list[Value]:
    low, high = words
    b = o.bytes_of(o.bits(low, 255), high, "0761")
    return [o.as_float(o.bits(low, -256)), o.as_float(b)]


def of_three(o: Lanes, a: Value, b: Value, c: Value, epoch: Value) -> Words:
    """Three bfloat16, and an epoch of 16 bits."""
    return o.bf16_pair(a, b), o.either(o.bf16_pair(o.real(0.0), c), epoch)


def store(o: Lanes, address: Value, words: Words) -> None:
    text = "{ .reg .b64 t; mov.b64 t, {$1, $2}; st.relaxed.gpu.global.b64 [$0], t; }"
    o.ptx(text, address, *words)


def poll(
    o: Lanes,
    addresses: Sequence[Value],
    epoch: Value,
    *,
    short: bool,
    at_once: int = 2,
    offsets: Sequence[int] = (),
    in_last: Value | None = None,
) -> list[Words]:
    """Reads packets until all of them have the epoch; all lanes of the warp.

    Args:
      addresses: of each read; a single one if there are `offsets`.
      short: the epoch has 16 bits.
      at_once: packets of a read: 1 or 2.
      offsets: of each read from the address.
      in_last: whether this lane has packets at the last offset. Its results are 0 otherwise.
    """
    count = at_once * max(len(addresses), len(offsets))
    packets = [f"a{number}" for number in range(count)]
    operands = [f"${2 * count + number}" for number in range(len(addresses) + 2)]
    *places, epoch_operand, last_operand = operands
    if offsets:
        places = [f"{places[0]}+{offset}" for offset in offsets]
    predicates = [f"p{number}" for number in range(len(places))]
    statements = [
        f".reg .pred q, t{', u' if offsets else ''}",
        f".reg .pred {', '.join(predicates)}",
        f".reg .b64 {', '.join(packets)}",
        ".reg .b32 x, y, n",
        "mov.b32 n, 0",
        *(f"setp.eq.u32 {predicate}, 0, 0" for predicate in predicates),
    ]
    if offsets:
        statements += [f"mov.b64 {packet}, 0" for packet in packets[-at_once:]]
    if in_last is not None:
        statements += [f"setp.ne.u32 u, {last_operand}, 0", f"mov.pred {predicates[-1]}, u"]
    loads, checks = [], []
    vector = ".v2" if at_once == 2 else ""
    for number, (predicate, place) in enumerate(zip(predicates, places, strict=True)):
        own = packets[at_once * number : at_once * (number + 1)]
        words = f"{{{', '.join(own)}}}" if vector else own[0]
        loads.append(f"@{predicate} ld.relaxed.gpu.global{vector}.b64 {words}, [{place}]")
        for register, packet in zip("xy", own, strict=False):
            low = 2 * int(packet[1:])
            checks.append(f"mov.b64 {{${low}, ${low + 1}}}, {packet}")
            checks.append(f"xor.b32 {register}, ${low + 1}, {epoch_operand}")
        checks += ["or.b32 x, x, y"] if vector else []
        checks += ["shl.b32 x, x, 16"] if short else []
        checks.append(f"setp.ne.u32 {predicate}, x, 0")
    if in_last is not None:
        checks.append(f"and.pred {predicates[-1]}, {predicates[-1]}, u")
    # These two do the same. Both are kept as they were timed.
    missing = ["mov.pred q, p0" if offsets else "and.pred q, p0, p0"]
    missing += [f"or.pred q, q, {name}" for name in predicates[1:]]
    # All lanes leave the loop together, as in `Lanes.wait`.
    missing.append(f"vote.sync.any.pred q, q, {ALL_LANES}")
    text = "; ".join([*statements, "POLL: " + loads[0], *loads[1:], *checks, *missing])
    text = (
        f"{{ {text}; @!q bra DONE; add.u32 n, n, 1; setp.gt.u32 t, n, {TURNS}; @t trap; "
        "bra POLL; DONE: }"
    )
    inputs = [*addresses, epoch]
    if offsets:
        one = o.integer(1)
        inputs.append(one if in_last is None else o.pick(in_last, one, 0))
    # Outputs are written before the loop reads the addresses again.
    constraints = ["=&r"] * (2 * count) + ["l"] * len(addresses)
    constraints += ["r"] * (len(inputs) - len(addresses))
    polled = o.words(2 * count, text, inputs, ",".join(constraints))
    o.synchronize_warp()
    return list(zip(polled[::2], polled[1::2], strict=True))
