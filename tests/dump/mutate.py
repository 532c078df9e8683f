"""Damage dumps at random, as disks, copies, editors and attackers might."""

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any

_NUMBERS = ("0", "1", "-1", "7", str(2**31), str(2**63 - 1), str(2**63), "9" * 30, "٣", "1e9", "")
_SNIPPETS = (
    "\0", "{", "}", "((((((((", '"', "\\", "\n", "\r\n", " value: ", "allocation 0: size 4:",
    "Total bytes used: 4 (4B)", ", maybe-live-out", "HloLiveRange (max 3):", "%", "#0", "}}}}",
    "/*index=5*/", " reused by buffers of a different color:", "é", "\x85", "ROOT ", "ENTRY ",
)  # fmt: skip
_NUMBER = re.compile(r"\d+")


def text(original: str, chance: random.Random) -> str:
    """`original` with one to three kinds of damage."""
    damaged = original
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        damaged = chance.choice(_TEXT)(damaged, chance)
    return damaged


def _cut(data: str, chance: random.Random) -> str:
    return data[: chance.randrange(len(data) + 1)]


def _cut_begin(data: str, chance: random.Random) -> str:
    return data[chance.randrange(len(data) + 1) :]


def _drop(data: str, chance: random.Random) -> str:
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start + chance.choice((1, 2, 10, 100, 3000)) :]


def _number(data: str, chance: random.Random) -> str:
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return data
    number = chance.choice(numbers)
    new = chance.choice((*_NUMBERS, str(int(number[0][:15]) + 1), number[0][:-1]))
    return data[: number.start()] + new + data[number.end() :]


def _insert(data: str, chance: random.Random) -> str:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(_SNIPPETS) + data[at:]


def _replace(data: str, chance: random.Random) -> str:
    if not data:
        return data
    at = chance.randrange(len(data))
    return data[:at] + chr(chance.choice((0, 9, 32, 40, 44, 58, 64, 123, 255))) + data[at + 1 :]


def _lines(data: str, chance: random.Random) -> str:
    """`data` with lines dropped, doubled, moved or swapped."""
    lines = data.split("\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[at])
        case 2:
            lines.insert(other, lines.pop(at))
        case _:
            lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)


_TEXT = (_cut, _cut_begin, _drop, _number, _number, _number, _insert, _replace, _lines, _lines)


def wire(original: bytes, chance: random.Random) -> bytes:
    """`original` with bytes flipped, dropped, doubled or inserted, or cut short."""
    data = bytearray(original)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                del data[at:]
            case 1:
                del data[at : at + chance.choice((1, 2, 8, 200))]
            case 2:
                data[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 2, 8))))
            case 3:
                data[at:at] = data[at : at + 50]
            case _:
                if at < len(data):
                    data[at] ^= 1 << chance.randrange(8)
    return bytes(data)


def fields(message: object, chance: random.Random) -> None:
    """Change one field somewhere in a protobuf message; its wire form stays valid."""
    while True:
        present = [d for d, _ in message.ListFields()]  # type: ignore[attr-defined]
        if not present:
            return
        field = chance.choice(present)
        value = getattr(message, field.name)
        is_message = field.message_type is not None
        is_map = is_message and field.message_type.GetOptions().map_entry
        if is_map:
            if value:
                message = value[chance.choice(sorted(value))]
            continue
        if isinstance(value, (str, bytes, int, bool)) or hasattr(value, "ListFields"):
            if is_message:
                message = value
                continue
            setattr(message, field.name, _other(value, chance))
            return
        at = chance.randrange(len(value))
        action = chance.randrange(8)
        if action == 0:
            del value[at]
        elif action == 1 and is_message:
            value.add().CopyFrom(value[at])
        elif is_message:
            message = value[at]
            continue
        else:
            value[at] = _other(value[at], chance)
        return


def _other(value: object, chance: random.Random) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = max(min(value, 2**31 - 2), 1 - 2**31)  # fits into the smallest type of a field
        return chance.choice((0, 1, -1, near + 1, near - 1, 2**31 - 1, -(2**31)))
    if isinstance(value, bytes):
        return wire(value, chance)
    return chance.choice(("", "x", "{}", "\0", "get-tuple-element", str(value) * 2))


VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, -0.5, 1e308, 2**63, 10**40, "", "2", "\x1b[2J", "\ud800",
    "../../etc/passwd", "a" * 5000, [], {}, [[]], {"": ""}, [None], ["a", 1], {"a": {"b": []}},
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def json_value(original: Any, chance: random.Random) -> Any:
    """`original` with one to three values replaced, removed, repeated or moved."""
    value = json.loads(json.dumps(original))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        path = chance.choice(list(places(value)))
        if not path:
            return copy.deepcopy(chance.choice(VALUES))
        parent = value
        for step in path[:-1]:
            parent = parent[step]
        action = chance.randrange(4)
        if action == 0:
            del parent[path[-1]]
        elif action == 1 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
        elif action == 2 and isinstance(parent, dict):
            parent[chance.choice(("", "\n", "name", "size_bytes"))] = parent.pop(path[-1])
        else:
            parent[path[-1]] = copy.deepcopy(chance.choice(VALUES))
    return value
