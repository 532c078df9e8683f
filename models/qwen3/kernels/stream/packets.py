"""Polls packets of 8 bytes between blocks; `persistent.packets` has what a packet holds."""

from collections.abc import Sequence
from typing import Any

from models.qwen3.kernels.persistent.lanes import ALL_LANES, TURNS, Lanes
from models.qwen3.kernels.persistent.packets import Words

Value = Any


def poll(
    o: Lanes,
    address: Value,
    offsets: Sequence[int],
    epoch: Value,
    *,
    short: bool,
    in_last: Value | None = None,
    at_once: int = 2,
) -> list[Words]:
    """Reads packets until all of them have the epoch; all lanes of the warp.

    Args:
      offsets: from `address` on, of each read.
      short: the epoch has 16 bits.
      in_last: whether this lane has packets at the last offset. Its results are 0 otherwise.
      at_once: packets of a read: 1 or 2.
    """
    reads = range(len(offsets))
    count = at_once * len(offsets)
    address_operand, epoch_operand, last_operand = (f"${2 * count + i}" for i in range(3))
    packets = [f"a{number}" for number in range(count)]
    statements = [
        ".reg .pred q, t, u",
        f".reg .pred {', '.join(f'p{number}' for number in reads)}",
        f".reg .b64 {', '.join(packets)}",
        ".reg .b32 x, y, n",
        "mov.b32 n, 0",
        *(f"setp.eq.u32 p{number}, 0, 0" for number in reads),
        *(f"mov.b64 {packet}, 0" for packet in packets[-at_once:]),
    ]
    last = f"p{reads[-1]}"
    if in_last is not None:
        statements += [f"setp.ne.u32 u, {last_operand}, 0", f"mov.pred {last}, u"]
    loads, checks = [], []
    vector = ".v2" if at_once == 2 else ""
    for number, offset in enumerate(offsets):
        own = packets[at_once * number : at_once * (number + 1)]
        places = f"{{{', '.join(own)}}}" if vector else own[0]
        loads.append(
            f"@p{number} ld.relaxed.gpu.global{vector}.b64 {places}, [{address_operand}+{offset}]"
        )
        for register, packet in zip("xy", own, strict=False):
            low = 2 * int(packet[1:])
            checks.append(f"mov.b64 {{${low}, ${low + 1}}}, {packet}")
            checks.append(f"xor.b32 {register}, ${low + 1}, {epoch_operand}")
        checks += ["or.b32 x, x, y"] if vector else []
        checks += ["shl.b32 x, x, 16"] if short else []
        checks.append(f"setp.ne.u32 p{number}, x, 0")
    if in_last is not None:
        checks.append(f"and.pred {last}, {last}, u")
    missing = ["mov.pred q, p0", *(f"or.pred q, q, p{number}" for number in reads[1:])]
    # All lanes leave the loop together, as in `Lanes.wait`.
    missing.append(f"vote.sync.any.pred q, q, {ALL_LANES}")
    text = "; ".join([*statements, "POLL: " + loads[0], *loads[1:], *checks, *missing])
    text = (
        f"{{ {text}; @!q bra DONE; add.u32 n, n, 1; setp.gt.u32 t, n, {TURNS}; @t trap; "
        "bra POLL; DONE: }"
    )
    # Outputs are written before the loop reads the address again.
    constraints = ["=&r"] * (2 * count) + ["l", "r", "r"]
    one = o.integer(1)
    inside = one if in_last is None else o.pick(in_last, one, 0)
    words = o.words(2 * count, text, [address, epoch, inside], ",".join(constraints))
    o.synchronize_warp()
    return list(zip(words[::2], words[1::2], strict=True))
