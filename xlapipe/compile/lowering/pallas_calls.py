"""The Pallas kernels of a traced program."""

from collections.abc import Container, Iterator
from typing import Any

from jax.extend.core import jaxprs_in_params


def pallas_calls(jaxpr: Any, names: Container[str] = ("pallas_call",)) -> Iterator[Any]:
    """The equations that call a Pallas kernel, also in jaxprs that others call; in their order.

    Args:
      names: of jax's primitives.
    """
    for equation in jaxpr.eqns:
        if equation.primitive.name in names:
            yield equation
            continue
        for called in jaxprs_in_params(equation.params):
            yield from pallas_calls(called, names)
