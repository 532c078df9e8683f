"""Operations that Python traced repeatedly: the body of an unrolled loop."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from jax.extend.core import jaxprs_in_params

from xlapipe.compile.lowering.jaxpr_collectives import source_of
from xlapipe.plans.compile_times import Copies


def traced_copies(closed_jaxpr: Any) -> Copies | None:
    """The operations that were traced most often; None if none was traced twice.

    A traceback has the position in each function's bytecode, so that two operations of one
    traceback are of two iterations of a loop, or of one that is differentiated.

    Args:
      closed_jaxpr: the `jaxpr` of a `jax.stages.Traced`.
    """
    first: dict[Any, Any] = {}
    counts: Counter[Any] = Counter()
    for equation in _equations(closed_jaxpr.jaxpr, set()):
        traceback = equation.source_info.traceback
        if traceback is not None:
            key = (equation.primitive.name, str(equation.source_info.name_stack), traceback)
            first.setdefault(key, equation)
            counts[key] += 1
    operations: Counter[int] = Counter()
    for count in counts.values():
        operations[count] += count
    del operations[1]
    if not operations:
        return None
    times, total = max(operations.items(), key=lambda item: (item[1], item[0]))
    key = next(key for key, count in counts.items() if count == times)
    return Copies(source_of(first[key]), times, total, counts.total())


def _equations(jaxpr: Any, seen: set[int]) -> Iterator[Any]:
    """The equations of a jaxpr and of those that it calls, each jaxpr once."""
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name != "pallas_call":
            for inner in jaxprs_in_params(equation.params):
                yield from _equations(inner, seen)
