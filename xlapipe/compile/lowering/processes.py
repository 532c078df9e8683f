"""Whether every process of a program over several hosts lowers to the same program.

Processes whose programs differ wait for each other's collectives forever. The step is traced as
each process sees itself: its number and its local devices.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.mlir import ir
from jax.interpreters import mlir

from xlapipe.plans.wording import counted

# More processes are sampled; so are these if one takes longer to trace.
_ALL_UP_TO = 8
_ALL_WITHIN_SECONDS = 2.0
_LOCATION = re.compile(r"\s*loc\((?P<location>.*)\)\s*$")
_FILE_LINE = re.compile(r'"(?P<file>[^"<>]+)":(?P<line>\d+)')
# Numbers of Python functions differ in each trace.
_CALLBACK = re.compile(r"callback")


@dataclass(frozen=True)
class TracedProcess:
    """The process that a step is traced for.

    Attributes:
      asked: questions of the user's code about the process, with their lines.
    """

    number: int = 0
    asked: dict[str, None] = field(default_factory=dict)


def compared_processes(
    hosts: int, first: bytes, seconds: float, trace: Callable[[TracedProcess], bytes]
) -> str:
    """What differs between the processes, or how many were compared if not all; else empty."""
    numbers = list(_sampled(hosts, seconds))
    modules = {}
    asked: dict[str, None] = {}
    for number in numbers:
        process = TracedProcess(number)
        modules[number] = trace(process)
        asked |= process.asked
    others = [number for number in numbers if modules[number] != first]
    pairs = {number: _first_difference(first, modules[number]) for number in others}
    groups: dict[str, list[int]] = defaultdict(list)
    for number, text in pairs.items():
        if text:
            groups[text].append(number)
    if not groups:
        return "" if len(numbers) == hosts - 1 else _sample_text(hosts, numbers)
    repeated = TracedProcess(0)
    jax.clear_caches()  # jax would give the trace of before
    if _first_difference(first, trace(repeated)):
        return (
            "each trace of the step is another program, so processes differ: "
            f"{next(iter(groups))}; let it depend on its arguments alone, not on random numbers, "
            "the time or files"
        )
    why = f"; the step asks {', '.join(list(asked)[:3])}" if asked else ""
    text = "; ".join(f"{_names(group)}: {text}" for text, group in list(groups.items())[:3])
    return (
        f"processes lower to different programs, so their collectives may wait for each other "
        f"forever: {text}{why}"
    )


def _sampled(hosts: int, seconds: float) -> Iterator[int]:
    if hosts <= _ALL_UP_TO and seconds * hosts <= _ALL_UP_TO * _ALL_WITHIN_SECONDS:
        yield from range(1, hosts)
    else:
        yield from sorted({1, hosts // 2, hosts - 1})


def _sample_text(hosts: int, numbers: list[int]) -> str:
    return (
        f"{counted(len(numbers) + 1, 'process', 'processes')} of {hosts} were traced, and lower to "
        f"the same program: 0, {', '.join(map(str, numbers))}"
    )


def _names(numbers: list[int]) -> str:
    noun = "process" if len(numbers) == 1 else "processes"
    return f"{noun} {', '.join(map(str, numbers[:8]))}{' …' if len(numbers) > 8 else ''}"


def _first_difference(one: bytes, two: bytes) -> str:
    """The first operations that differ, with the user's line; empty if only callbacks do."""
    if one == two:
        return ""
    lines, other_lines = _operations(one), _operations(two)
    pairs = enumerate(zip(lines, other_lines, strict=False))
    place = next((number for number, (mine, theirs) in pairs if mine[0] != theirs[0]), None)
    if place is not None:
        texts = (
            f"`{items[place][0]:.120}`{_user_line(items[place:])}" for items in (other_lines, lines)
        )
        return ", in process 0 ".join(texts)
    if len(lines) != len(other_lines):
        return f"{len(other_lines)} operations, in process 0 {len(lines)}"
    return ""


def _user_line(operations: list[tuple[str, str]]) -> str:
    """The line of the first operation; of a constant, that of what uses it."""
    return next((line for text, line in operations if " = stablehlo.constant" not in text), "")


def _operations(module: bytes) -> list[tuple[str, str]]:
    """The text of each operation, and the line of the user's that made it."""
    with mlir.make_ir_context():
        parsed: Any = ir.Module.parse(module)
        text = parsed.operation.get_asm(enable_debug_info=True, use_local_scope=True)
    operations = []
    for line in text.splitlines():
        match = _LOCATION.search(line)
        body = line[: match.start()] if match is not None else line
        if body.strip() and _CALLBACK.search(body) is None:
            operations.append((body.strip(), _line_of(match["location"] if match else "")))
    return operations


def _line_of(location: str) -> str:
    match = _FILE_LINE.search(location)
    return f" at {match['file']}:{match['line']}" if match is not None else ""
