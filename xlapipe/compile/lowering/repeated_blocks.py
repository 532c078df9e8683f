"""Functions of the user that a forward pass calls repeatedly, such as a model's blocks.

A traceback has the calls around an equation, but not which iteration of a loop it is of: eight
equations with the same calls are of eight iterations. How often Python called each function tells
a block from the function with the loop.
"""

import linecache
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

from xlapipe.compile.lowering.forward_graph import RepeatedCall
from xlapipe.compile.lowering.names import is_user_code
from xlapipe.compile.lowering.recorded_calls import RecordedCalls

# Code objects and positions in them, the outermost first.
_Frames = tuple[tuple[CodeType, int], ...]


def repeated_calls(
    equations: Mapping[tuple[Any, str], Counter[tuple[int, ...]]],
    recorded: Mapping[CodeType, RecordedCalls],
    gradients: int,
) -> tuple[tuple[RepeatedCall, ...], Mapping[Any, tuple[int, ...]]]:
    """The functions, in the order of their first call, and the numbers of those of tracebacks."""
    frames = {tracebacks: _frames(tracebacks) for tracebacks, _ in equations}
    inside: dict[CodeType, Counter[tuple[_Frames, str]]] = defaultdict(Counter)
    cached: dict[CodeType, Counter[tuple[_Frames, str]]] = defaultdict(Counter)
    for (tracebacks, primitive), counts in equations.items():
        equation = frames[tracebacks], primitive
        codes_of = [traceback.raw_frames()[0] for traceback in tracebacks]
        for code in _user_codes(frames[tracebacks]):
            level = next(n for n, codes in enumerate(codes_of) if code in codes)
            inside[code][equation] += counts.total()
            cached[code][equation] += counts.total() - len({ids[level] for ids in counts})
    calls = {}
    for code, group in inside.items():
        known = recorded.get(code, RecordedCalls()).count
        calls[code] = known + _rarest(code, cached[code] if known else group)
    repeated = [code for code, count in calls.items() if count > max(1, gradients)]
    codes = [code for code in repeated if not _only_calls_another(code, repeated, inside, calls)]
    outer = {code: _outer(code, codes, inside) for code in codes}
    number = {code: n for n, code in enumerate(codes)}
    functions = tuple(
        _repeated(code, calls[code], number.get(group) if group is not None else None, recorded)
        for code, group in outer.items()
    )
    members = {
        tracebacks: tuple(number[code] for code in _user_codes(group) if code in number)
        for tracebacks, group in frames.items()
    }
    return functions, members


def _frames(tracebacks: Sequence[Any]) -> _Frames:
    """Those of the outermost call first, which inner tracebacks often repeat."""
    raw = (traceback.raw_frames() for traceback in tracebacks)
    return tuple(
        frame
        for codes, positions in raw
        for frame in zip(reversed(codes), reversed(positions), strict=True)
    )


def _user_codes(frames: _Frames) -> tuple[CodeType, ...]:
    """The user's functions, each once, the outermost first."""
    codes = (code for code, _ in frames if is_user_code(code.co_filename))
    return tuple(code for code in dict.fromkeys(codes) if not code.co_name.startswith("<"))


def _rarest(code: CodeType, equations: Mapping[tuple[_Frames, str], int]) -> int:
    """Equations of a path of calls are of the same number of iterations as the rarest of them."""
    paths: dict[_Frames, list[int]] = defaultdict(list)
    for (frames, _), count in equations.items():
        position = next(n for n, (frame_code, _) in enumerate(frames) if frame_code is code)
        paths[frames[:position]].append(count)
    return sum(map(min, paths.values()))


def _only_calls_another(
    code: CodeType,
    repeated: Sequence[CodeType],
    inside: Mapping[CodeType, Counter[tuple[_Frames, str]]],
    calls: Mapping[CodeType, int],
) -> bool:
    """Whether another function has the same equations and is the one to wrap.

    That is the outer one, unless the inner one is called more often.
    """
    for other in repeated:
        if other is code or inside[other] != inside[code]:
            continue
        frames = next(iter(inside[code]))[0]
        codes = _user_codes(frames)
        is_outer = codes.index(code) < codes.index(other)
        if calls[other] > calls[code] if is_outer else calls[other] >= calls[code]:
            return True
    return False


def _outer(
    code: CodeType,
    codes: Sequence[CodeType],
    inside: Mapping[CodeType, Counter[tuple[_Frames, str]]],
) -> CodeType | None:
    """The innermost function that most equations of a function are computed in.

    If those of a part, such as an MLP, are in several functions: the one that has most of them.
    """
    around: Counter[CodeType] = Counter()
    outside, half = 0, inside[code].total() / 2
    for (frames, _), count in inside[code].items():
        user_codes = _user_codes(frames)
        others = [other for other in user_codes[: user_codes.index(code)] if other in codes]
        around.update(dict.fromkeys(others, count))
        outside += 0 if others else count
    most = [other for other, count in around.items() if count > half]
    if not most and outside < half:
        return max(around, key=around.__getitem__)
    return min(most, key=lambda other: inside[other].total(), default=None)


def _repeated(
    code: CodeType, calls: int, outer: int | None, recorded: Mapping[CodeType, RecordedCalls]
) -> RepeatedCall:
    record = recorded.get(code, RecordedCalls())
    return RepeatedCall(
        function=code.co_qualname.rpartition("<locals>.")[2],
        source=f"{code.co_filename}:{_line_to_decorate(code)}",
        calls=calls,
        outer=outer,
        form=record.form,
        static_argnums=record.static_argnums,
        other_output=record.other_output,
        loop=record.loop,
    )


def _line_to_decorate(code: CodeType) -> int:
    """The line above which a decorator of the function itself is written."""
    line = code.co_firstlineno
    text = linecache.getline(code.co_filename, line).strip()
    return line + (text in ("@staticmethod", "@classmethod", "@property"))
