"""Packets of 8 bytes between blocks: values, and the epoch in which they were written.

A reader polls the packets themselves, so that there are no flags, fences or counters. 8 bytes are
written and read at once. Epochs count up from 1, and XLA zeroes the memory before each launch.
"""

from collections.abc import Sequence
from typing import Any

from models.qwen3.kernels.persistent.lanes import ALL_LANES, TURNS, Lanes

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
    o: Lanes, addresses: Sequence[Value], epoch: Value, *, short: bool, per_address: int = 2
) -> list[Words]:
    """Reads packets until all of them have the epoch; all lanes of the warp.

    Args:
      short: the epoch has 16 bits.
      per_address: packets that are read at each address: 1 or 2.
    """
    count = per_address * len(addresses)
    packets = [f"a{number}" for number in range(count)]
    predicates = [f"p{number}" for number in range(len(addresses))]
    epoch_operand = f"${2 * count + len(addresses)}"
    statements = [
        ".reg .pred q, t",
        f".reg .pred {', '.join(predicates)}",
        f".reg .b64 {', '.join(packets)}",
        ".reg .b32 x, y, n",
        "mov.b32 n, 0",
        *(f"setp.eq.u32 {predicate}, 0, 0" for predicate in predicates),
    ]
    loads, checks = [], []
    vector = ".v2" if per_address == 2 else ""
    for number, predicate in enumerate(predicates):
        own = packets[per_address * number : per_address * (number + 1)]
        places = f"{{{', '.join(own)}}}" if vector else own[0]
        address = f"${2 * count + number}"
        loads.append(f"@{predicate} ld.relaxed.gpu.global{vector}.b64 {places}, [{address}]")
        for register, packet in zip("xy", own, strict=False):
            low = 2 * int(packet[1:])
            checks.append(f"mov.b64 {{${low}, ${low + 1}}}, {packet}")
            checks.append(f"xor.b32 {register}, ${low + 1}, {epoch_operand}")
        checks += ["or.b32 x, x, y"] if vector else []
        checks += ["shl.b32 x, x, 16"] if short else []
        checks.append(f"setp.ne.u32 {predicate}, x, 0")
    missing = ["and.pred q, p0, p0", *(f"or.pred q, q, {name}" for name in predicates[1:])]
    # All lanes leave the loop together, as in `Lanes.wait`.
    missing.append(f"vote.sync.any.pred q, q, {ALL_LANES}")
    text = "; ".join([*statements, "POLL: " + loads[0], *loads[1:], *checks, *missing])
    text = (
        f"{{ {text}; @!q bra DONE; add.u32 n, n, 1; setp.gt.u32 t, n, {TURNS}; @t trap; "
        "bra POLL; DONE: }"
    )
    # Outputs are written before the loop reads the addresses again.
    constraints = ["=&r"] * (2 * count) + ["l"] * len(addresses) + ["r"]
    words = o.words(2 * count, text, [*addresses, epoch], ",".join(constraints))
    o.synchronize_warp()
    return list(zip(words[::2], words[1::2], strict=True))
