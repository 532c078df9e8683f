"""From the jaxpr of a step to the values of its forward pass.

jax writes its transformations into the name stack of each equation: `jvp` for what is
differentiated, `transpose` for the backward pass. A value of the forward pass that an equation of
the backward pass reads is kept until then.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from jax import numpy as jnp
from jax._src import source_info_util

from xlapipe.lowering.forward_graph import ForwardValue, PolicyKey
from xlapipe.lowering.user_frame import is_user_code

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def forward_values(closed: Any) -> tuple[tuple[ForwardValue, ...], tuple[str, ...]]:
    """The values that the backward pass uses, and those that they are computed from.

    Args:
      closed: the ClosedJaxpr of a whole step.

    Returns:
      The values, and all names of `checkpoint_name` in the step.
    """
    walk = _Walk()
    walk.equations(closed.jaxpr, {}, _Place())
    return walk.result(), tuple(walk.names)


def _user_line(equation: Any) -> str | None:
    """`file:line` of the innermost frame of the user's own code; None without one."""
    traceback = equation.source_info.traceback
    if traceback is None:
        return None
    for frame in source_info_util.user_frames(traceback):
        if is_user_code(frame.file_name):
            return f"{frame.file_name}:{frame.start_line}"
    return None


class _Walk:
    """Equations in order, inner ones in place of calls and loops."""

    def __init__(self) -> None:
        self._made: list[dict[str, Any]] = []
        self._needed: set[int] = set()
        self.names: dict[str, None] = {}

    def result(self) -> tuple[ForwardValue, ...]:
        used = set(self._needed)
        for value in reversed(self._made):
            if value["number"] in used:
                used.update(value["inputs"])
        return tuple(
            ForwardValue(**value, needed=value["number"] in self._needed)
            for value in self._made
            if value["number"] in used
        )

    def equations(self, jaxpr: Any, maker: dict[Any, int], around: "_Place") -> None:
        """Adds the equations of a jaxpr.

        Args:
          maker: number of the value of each variable that the forward pass makes.
        """
        for equation in jaxpr.eqns:
            place = around.inside(equation)
            body = _body(equation)
            if equation.primitive.name == "name":
                self.names[equation.params["name"]] = None
            if body is not None:
                self._inner(equation, body, maker, place)
            elif _keeps_value(equation):
                maker.update(zip(equation.outvars, _numbers(equation.invars, maker), strict=False))
            elif place.backward:
                self._needed.update(_numbers(equation.invars, maker))
            else:
                number = self._add(equation, maker, place)
                maker.update((output, number) for output in equation.outvars)

    def _inner(self, equation: Any, body: Any, maker: dict[Any, int], place: "_Place") -> None:
        inner = {
            inside: maker[outside]
            for inside, outside in zip(body.invars, equation.invars, strict=True)
            if not hasattr(outside, "val") and outside in maker
        }
        if equation.primitive.name == "scan":
            trips = place.trips * equation.params["length"]
            place = replace(place, trips=trips, loop=place.line)
            if not place.backward:
                for variable in body.invars[_carried(equation.params)]:
                    inner[variable] = self._add_carry(variable.aval, place)
        self.equations(body, inner, place)
        for outside, inside in zip(equation.outvars, body.outvars, strict=True):
            if not hasattr(inside, "val") and inside in inner:
                maker[outside] = inner[inside]

    def _add_carry(self, aval: Any, place: "_Place") -> int:
        return self._append(place, None, aval, _bytes(aval), 0, 0, ())

    def _add(self, equation: Any, maker: dict[Any, int], place: "_Place") -> int:
        inputs = [variable.aval for variable in equation.invars]
        outputs = [variable.aval for variable in equation.outvars]
        own_bytes = sum(map(_bytes, outputs))
        key = PolicyKey(
            equation.primitive.name,
            tuple(tuple(getattr(aval, "shape", ())) for aval in inputs),
            str(getattr(inputs[0], "dtype", "")) if inputs else "",
            equation.params["name"] if equation.primitive.name == "name" else None,
        )
        return self._append(
            place,
            key,
            outputs[0] if outputs else None,
            own_bytes,
            _operations(equation),
            own_bytes + sum(map(_bytes, inputs)),
            tuple(dict.fromkeys(_numbers(equation.invars, maker))),
        )

    def _append(
        self,
        place: "_Place",
        key: PolicyKey | None,
        aval: Any,
        own_bytes: int,
        operations: int,
        touched_bytes: int,
        inputs: tuple[int, ...],
    ) -> int:
        """Adds a value, whose figures are of one iteration."""
        number = len(self._made)
        self._made.append(
            {
                "number": number,
                "key": key,
                "shape": tuple(getattr(aval, "shape", ())),
                "dtype": str(getattr(aval, "dtype", "")),
                "size_bytes": own_bytes * place.trips,
                "operations": operations * place.trips,
                "touched_bytes": touched_bytes * place.trips,
                "inputs": inputs,
                "differentiated": place.differentiated,
                "source": place.line,
                "loop": place.loop,
                "trips": place.trips,
            }
        )
        return number


@dataclass(frozen=True)
class _Place:
    """Where an equation is.

    Attributes:
      stack: name stacks of the calls around it, and its own.
      line: of the user; that of the call around it if it has none.
      loop: line of the innermost scan.
      trips: iterations of all loops around it.
    """

    stack: str = ""
    line: str | None = None
    loop: str | None = None
    trips: int = 1

    @property
    def backward(self) -> bool:
        return "transpose(" in self.stack

    @property
    def differentiated(self) -> bool:
        return "jvp(" in self.stack

    def inside(self, equation: Any) -> "_Place":
        """The place of an equation in a jaxpr that is here."""
        stack = f"{self.stack}/{equation.source_info.name_stack}"
        return replace(self, stack=stack, line=_user_line(equation) or self.line)


def _numbers(variables: Sequence[Any], maker: dict[Any, int]) -> Iterator[int]:
    for variable in variables:
        if not hasattr(variable, "val") and variable in maker:
            yield maker[variable]


def _body(equation: Any) -> Any:
    """The jaxpr of a call or loop whose inputs and outputs are those of the equation."""
    for name in _BODIES:
        body = equation.params.get(name)
        body = getattr(body, "jaxpr", body)
        if (
            hasattr(body, "eqns")
            and len(body.outvars) == len(equation.outvars)
            and len(body.invars) == len(equation.invars)
        ):
            return body
    return None


def _keeps_value(equation: Any) -> bool:
    """Whether it is the mark that `jax.checkpoint` puts on a value that it keeps."""
    if equation.primitive.name != "reduce_precision":
        return False
    finfo: Any = jnp.finfo  # jax's stub lacks its types
    return bool(equation.params["mantissa_bits"] == finfo(equation.invars[0].aval.dtype).nmant)


def _carried(parameters: Mapping[str, Any]) -> slice:
    """Which inputs of a scan's body it passes from one iteration to the next."""
    if "num_carry" in parameters:  # until jax 0.10
        first, count = parameters["num_consts"], parameters["num_carry"]
    else:
        first, count = (len(part) for part in parameters["ft_in"].unpack()[:2])
    return slice(first, first + count)


def _bytes(aval: Any) -> int:
    shape, dtype = getattr(aval, "shape", ()), getattr(aval, "dtype", None)
    return int(prod(shape)) * int(getattr(dtype, "itemsize", 0))


def _operations(equation: Any) -> int:
    """Of matrix products and convolutions; 0 for others, which memory bounds."""
    name = equation.primitive.name
    if name not in ("dot_general", "conv_general_dilated"):
        return 0
    output, right = equation.outvars[0].aval, equation.invars[1].aval
    if name == "dot_general":
        left = equation.invars[0].aval
        (contracted, _), _ = equation.params["dimension_numbers"]
        return int(2 * prod(output.shape) * prod(left.shape[axis] for axis in contracted))
    features = equation.params["dimension_numbers"].rhs_spec[0]
    return int(2 * prod(output.shape) * prod(right.shape) // max(1, right.shape[features]))
