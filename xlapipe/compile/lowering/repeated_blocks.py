"""Functions of the user that a forward pass calls repeatedly, such as a model's blocks.

A traceback has the calls around an equation, but not which iteration of a loop it is of: eight
equations with the same calls are of eight iterations. The innermost function that contains all of
them is the one that is called eight times.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from types import CodeType
from typing import Any

from xlapipe.compile.lowering.forward_graph import RepeatedCall
from xlapipe.compile.lowering.user_frame import is_user_code

# A call of fewer of the equations is a helper.
_LEAST_SHARE = 0.1
_WRAPPERS = {"/flax/linen/": "nn.remat", "/equinox/": "eqx.filter_checkpoint"}

# Code objects and positions in them, the outermost first; the last position may be left out.
_Calls = tuple[tuple[CodeType, int | None], ...]


def repeated_calls(equations: Counter[tuple[Any, str]]) -> tuple[RepeatedCall, ...]:
    """The functions, in the order of their first call.

    Args:
      equations: how many equations have this traceback and primitive.
    """
    counts: Counter[tuple[_Calls, str]] = Counter()
    for (traceback, primitive), count in equations.items():
        codes, positions = traceback.raw_frames()
        calls = tuple(zip(reversed(codes), reversed(positions), strict=True))
        counts[calls, primitive] += count
    inside: dict[_Calls, list[tuple[tuple[_Calls, str], int]]] = defaultdict(list)
    for (calls, primitive), count in counts.items():
        for number, (code, _) in enumerate(calls):
            if is_user_code(code.co_filename):
                inside[*calls[:number], (code, None)].append(((calls, primitive), count))
    repeated = {calls: own for calls, own in inside.items() if min(count for _, count in own) > 1}
    whole = counts.total()
    result: Counter[tuple[CodeType, str | None]] = Counter()
    for calls in (calls for calls in repeated if not _is_inside_another(calls, repeated)):
        if sum(count for _, count in repeated[calls]) < _LEAST_SHARE * whole:
            continue
        nearest = max((its for its, own in repeated.items() if own == repeated[calls]), key=len)
        usual = Counter(count for _, count in repeated[nearest]).most_common(1)[0][0]
        result[nearest[-1][0], _wrapper(nearest)] += usual
    return tuple(
        RepeatedCall(
            function=code.co_qualname.rpartition("<locals>.")[2],
            source=f"{code.co_filename}:{code.co_firstlineno}",
            calls=count,
            wrapper=wrapper,
        )
        for (code, wrapper), count in result.items()
    )


def _is_inside_another(calls: _Calls, repeated: Mapping[_Calls, object]) -> bool:
    outer = ((*calls[:n], (calls[n][0], None)) for n in range(len(calls) - 1))
    return any(prefix in repeated for prefix in outer)


def _wrapper(calls: _Calls) -> str | None:
    """The library that calls the function, by the form of jax.checkpoint that it needs."""
    caller = calls[-2][0].co_filename if len(calls) > 1 else ""
    return next((name for part, name in _WRAPPERS.items() if part in caller), None)
