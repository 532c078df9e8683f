"""From the jaxpr of a step to the values of its forward pass.

jax writes its transformations into the name stack of each equation: `jvp` for what is
differentiated, `transpose` for the backward pass. A value of the forward pass that an equation of
the backward pass reads is kept until then. If a loop's body has both passes, as with accumulated
gradients, one iteration's values are kept, else those of all iterations.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import CodeType
from typing import Any

import jax
from jax import numpy as jnp

from xlapipe.compile.lowering.followed_sizes import (
    WEIGHT_NAME,
    Pattern,
    Size,
    Sizes,
    all_of,
    distinct_keys,
    output_sizes,
    pattern_of,
    seen_by_policy,
)
from xlapipe.compile.lowering.forward_graph import (
    ForwardGraph,
    ForwardValue,
    PolicyKey,
    PolicySite,
    SideEffect,
)
from xlapipe.compile.lowering.jaxprs import carried_inputs, equations, size_bytes, user_line
from xlapipe.compile.lowering.recorded_calls import RecordedCalls
from xlapipe.compile.lowering.repeated_blocks import repeated_calls
from xlapipe.jax_private import harmless_effects, reference_effects
from xlapipe.plans.phases import is_backward, is_differentiated
from xlapipe.plans.program import KeptIn, NamedValue

# Names of axes, allocation and reading of references, and checks.
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def forward_graph(
    closed: Any,
    sites: Sequence[PolicySite] = (),
    before_vmap: Collection[PolicyKey] = (),
    decided: Collection[PolicyKey] = (),
    recorded: Mapping[CodeType, RecordedCalls] | None = None,
    gradients: int = 1,
) -> ForwardGraph:
    """The values that the backward pass uses, and those that they are computed from."""
    walk = _Walk(before_vmap, frozenset(decided))
    walk.step(closed.jaxpr)
    repeated, calls = repeated_calls(walk.tracebacks, recorded or {}, gradients)
    values = walk.result(calls)
    keys = [*(value.key for value in values if value.key is not None), *walk.decided]
    same = distinct_keys(keys)
    return ForwardGraph(
        tuple(replace(v, key=same[v.key]) if v.key is not None else v for v in values),
        tuple(sites),
        tuple(walk.names),
        walk.arguments_bytes(),
        tuple(replace(effect, calls=calls.get(at, ())) for effect, at in walk.effects.items()),
        tuple(dict.fromkeys(same[key] for key in walk.decided)),
        repeated,
    )


def named_values(closed: Any) -> tuple[NamedValue, ...]:
    """The values of the forward pass with a name of `checkpoint_name`, and where they are kept."""
    if all(equation.primitive.name != "name" for equation in equations(closed.jaxpr)):
        return ()
    walk = _Walk()
    walk.step(closed.jaxpr)
    return walk.named()


class _Walk:
    """Equations in order, inner ones in place of calls and loops."""

    def __init__(
        self,
        before_vmap: Collection[PolicyKey] = (),
        decided: Collection[PolicyKey] = (),
    ) -> None:
        self._before_vmap = before_vmap
        self._decided = decided
        self.decided: dict[PolicyKey, None] = {}
        # Jaxprs are entered one after another, so a variable's sizes are those of the last entry.
        self._sizes: dict[Any, Sizes] = {}
        self._made: list[dict[str, Any]] = []
        self._needed: set[int] = set()
        self._carries: set[int] = set()
        self._on_host: set[int] = set()
        self._arguments: list[Any] = []
        self._loops = 0
        self._loops_of_both_passes: set[int] = set()
        self.tracebacks: dict[tuple[Any, str], Counter[tuple[int, ...]]] = defaultdict(Counter)
        self._tracebacks: dict[int, Any] = {}
        self.names: dict[str, None] = {}
        self.effects: dict[SideEffect, Any] = {}

    def step(self, jaxpr: Any) -> None:
        """Adds a whole step. Its arguments have the numbers -1, -2 and so on."""
        self._arguments = [variable.aval for variable in jaxpr.invars]
        self._sizes = {v: all_of(v.aval, Size.DATA) for v in jaxpr.invars}
        numbers = {variable: -number for number, variable in enumerate(jaxpr.invars, start=1)}
        self.equations(jaxpr, numbers, _Place())

    def arguments_bytes(self) -> tuple[int, ...]:
        """Sizes of the arguments that the backward pass reads."""
        return tuple(size_bytes(self._arguments[-n - 1]) for n in sorted(self._needed) if n < 0)

    def result(self, calls: Mapping[Any, tuple[int, ...]]) -> tuple[ForwardValue, ...]:
        """The values that are kept, and those that they are computed from."""
        used = set(self._needed)
        for value in reversed(self._made):
            if value["number"] in used:
                used.update(value["inputs"])
        return tuple(
            replace(self._value(number), calls=calls.get(self._tracebacks.get(number), ()))
            for number in range(len(self._made))
            if number in used
        )

    def named(self) -> tuple[NamedValue, ...]:
        groups: dict[tuple[Any, ...], list[ForwardValue]] = defaultdict(list)
        for made in self._made:
            if made["key"] is not None and made["key"].name is not None:
                value = self._value(made["number"])
                kept = None
                # A name copies nothing: what it is given to is the same value.
                if not self._needed.isdisjoint((value.number, *value.inputs)):
                    kept = KeptIn.HOST if value.on_host else KeptIn.DEVICE
                elif value.number in self._carries:
                    kept = KeptIn.CARRY
                name = made["key"].name
                groups[name, value.shape, value.dtype, value.trips, kept].append(value)
        return tuple(
            NamedValue(
                name=name,
                shape=shape,
                dtype=dtype,
                trips=trips,
                kept=kept,
                count=len(members),
                size_bytes=sum(value.size_bytes for value in members),
            )
            for (name, shape, dtype, trips, kept), members in groups.items()
        )

    def _value(self, number: int) -> ForwardValue:
        made = dict(self._made[number])
        loops = made.pop("loops")
        trips = prod(length for loop, length in loops if loop not in self._loops_of_both_passes)
        made["size_bytes"] *= trips
        return ForwardValue(
            **made,
            trips=trips,
            needed=number in self._needed,
            on_host=number in self._on_host,
        )

    def equations(self, jaxpr: Any, maker: dict[Any, int], around: "_Place") -> None:
        """Adds the equations of a jaxpr."""
        for equation in jaxpr.eqns:
            place = around.inside(equation)
            body = _body(equation)
            if equation.params.get("name") == WEIGHT_NAME:
                self._sizes[equation.outvars[0]] = all_of(equation.invars[0].aval, Size.WEIGHT)
                maker.update(zip(equation.outvars, _numbers(equation.invars, maker), strict=False))
                continue
            if equation.primitive.name == "name":
                self.names[equation.params["name"]] = None
            if body is not None:
                self._inner(equation, body, maker, place)
            elif equation.primitive.name == "cond" and not place.backward:
                self._branches(equation, maker, place)
            elif equation.primitive.name == "while" and not (
                place.differentiated or place.backward
            ):
                self._while(equation, maker, place)
            elif not place.backward and (_keeps_value(equation) or _moves_to_host(equation)):
                self._follow_sizes(equation)
                numbers = tuple(_numbers(equation.invars, maker))
                maker.update(zip(equation.outvars, numbers, strict=False))
                if _moves_to_host(equation):
                    self._on_host.update(numbers)
            elif place.backward:
                self._needed.update(_numbers(equation.invars, maker))
                self._loops_of_both_passes.update(loop for loop, _ in place.loops)
            else:
                tracebacks = place.tracebacks
                if place.differentiated and self._acts_outside(equation, maker):
                    effect = SideEffect(equation.primitive.name, place.line, place.loop)
                    self.effects[effect] = tracebacks
                if place.differentiated and tracebacks:
                    same = self.tracebacks[tracebacks, equation.primitive.name]
                    same[tuple(map(id, tracebacks))] += 1
                number = self._add(equation, maker, place)
                self._tracebacks[number] = tracebacks
                maker.update((output, number) for output in equation.outvars)
                self._follow_sizes(equation)

    def _sizes_of(self, variables: Sequence[Any]) -> tuple[Sizes, ...]:
        return tuple(
            all_of(variable.aval, Size.UNKNOWN)
            if hasattr(variable, "val")
            else self._sizes.get(variable, all_of(variable.aval, Size.UNKNOWN))
            for variable in variables
        )

    def _follow_sizes(self, equation: Any) -> None:
        sizes = output_sizes(equation, self._sizes_of(equation.invars))
        self._sizes.update(zip(equation.outvars, sizes, strict=True))

    def _pass_sizes(self, to: Sequence[Any], given: Sequence[Any]) -> None:
        """From a caller to a body, or from a body to its caller.

        A scan takes a dimension away on the way in, and adds one on the way out.
        """
        for variable, sizes in zip(to, self._sizes_of(given), strict=True):
            unknown = all_of(variable.aval, Size.UNKNOWN)
            self._sizes[variable] = (*unknown, *sizes)[len(sizes) :]

    def _inner(self, equation: Any, body: Any, maker: dict[Any, int], place: "_Place") -> None:
        inner = _passed(body.invars, equation.invars, maker)
        self._pass_sizes(body.invars, equation.invars)
        if equation.primitive.name == "scan":
            self._loops += 1
            loops = (*place.loops, (self._loops, equation.params["length"]))
            place = replace(place, loops=loops)
            if place.differentiated:
                place = replace(place, loop=place.line)
            if not place.backward:
                for variable in body.invars[carried_inputs(equation.params)]:
                    inner[variable] = self._add_carry(variable.aval, place)
        if equation.primitive.name == "shard_map":
            mesh = equation.params["mesh"]  # each of its devices has values of its own
            axes = equation.params.get("manual_axes", mesh.axis_names)
            devices = place.devices * prod(mesh.shape[axis] for axis in axes)
            place = replace(place, devices=devices)
        self.equations(body, inner, place)
        if equation.primitive.name == "scan" and not place.backward:
            carried = carried_inputs(equation.params)
            outputs = body.outvars[: carried.stop - carried.start]
            self._carries.update(_numbers(outputs, inner))
        self._pass_sizes(equation.outvars, body.outvars)
        for outside, inside in zip(equation.outvars, body.outvars, strict=True):
            maker.update((outside, number) for number in _numbers([inside], inner))

    def _branches(self, equation: Any, maker: dict[Any, int], place: "_Place") -> None:
        """Adds the equations of all branches of a `cond`.

        An output is the value of one branch: others may have zeros in place of what is kept.
        """
        outputs: dict[Any, list[int]] = defaultdict(list)
        sizes: list[tuple[Sizes, ...]] = []
        for branch in equation.params["branches"]:
            inner = _passed(branch.jaxpr.invars, equation.invars[1:], maker)
            self._pass_sizes(branch.jaxpr.invars, equation.invars[1:])
            self.equations(branch.jaxpr, inner, place)
            sizes.append(self._sizes_of(branch.jaxpr.outvars))
            for outside, inside in zip(equation.outvars, branch.jaxpr.outvars, strict=True):
                outputs[outside] += _numbers([inside], inner)
        for output, *input_sizes in zip(equation.outvars, *sizes, strict=True):
            self._sizes[output] = tuple(map(max, zip(*input_sizes, strict=True)))
        for output, numbers in outputs.items():
            if numbers:
                maker[output] = max(numbers, key=self._read_bytes)

    def _read_bytes(self, number: int) -> int:
        """What a value is computed from; 1 for a step's argument, which is better than zeros."""
        made = self._made[number] if number >= 0 else None
        return int(made["touched_bytes"] - made["size_bytes"]) if made is not None else 1

    def _while(self, equation: Any, maker: dict[Any, int], place: "_Place") -> None:
        """Adds the equations of one iteration of a loop that is not differentiated."""
        body = equation.params["body_jaxpr"].jaxpr
        inputs = equation.invars[equation.params["cond_nconsts"] :]
        inner = _passed(body.invars, inputs, maker)
        self._pass_sizes(body.invars, inputs)
        self._loops += 1
        place = replace(place, loops=(*place.loops, (self._loops, 1)))
        for variable in body.invars[equation.params["body_nconsts"] :]:
            inner[variable] = self._add_carry(variable.aval, place)
        self.equations(body, inner, place)
        self._pass_sizes(equation.outvars, body.outvars)
        for outside, inside in zip(equation.outvars, body.outvars, strict=True):
            maker.update((outside, number) for number in _numbers([inside], inner))

    def _acts_outside(self, equation: Any, maker: dict[Any, int]) -> bool:
        """Whether it has an effect outside of the differentiated function."""
        effects = [
            effect for effect in equation.effects if not isinstance(effect, harmless_effects)
        ]
        if effects and all(isinstance(effect, reference_effects) for effect in effects):
            # A reference that the function itself makes is recomputed too.
            refs = [number for number in _numbers(equation.invars[:1], maker) if number >= 0]
            return not any(self._made[number]["differentiated"] for number in refs)
        return bool(effects)

    def _add_carry(self, aval: Any, place: "_Place") -> int:
        return self._append(place, None, aval, size_bytes(aval), 0, 0, ())

    def _add(self, equation: Any, maker: dict[Any, int], place: "_Place") -> int:
        inputs = [variable.aval for variable in equation.invars]
        outputs = [variable.aval for variable in equation.outvars]
        own_bytes = sum(map(size_bytes, outputs))
        return self._append(
            place,
            self._key(equation, place),
            outputs[0] if outputs else None,
            own_bytes,
            _operations(equation),
            own_bytes + sum(map(size_bytes, inputs)),
            tuple(dict.fromkeys(n for n in _numbers(equation.invars, maker) if n >= 0)),
        )

    def _key(self, equation: Any, place: "_Place") -> PolicyKey:
        """What a policy sees, with None for sizes that are not of the weights."""
        seen = whole = _key(equation)
        if place.vmapped:
            seen = next((one for one in self._before_vmap if _is_batched(whole, one)), whole)
        if seen.name is not None:  # a policy decides by the name alone
            key = PolicyKey(seen.primitive, (), "", seen.name)
        else:
            sizes = seen_by_policy(equation, self._sizes_of(equation.invars))
            patterns = map(pattern_of, whole.input_shapes, sizes)
            shapes = map(_without_batch, patterns, whole.input_shapes, seen.input_shapes)
            key = seen._replace(input_shapes=tuple(shapes))
        if seen in self._decided:
            self.decided[key] = None
        return key

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
                "size_bytes": own_bytes * place.devices,
                "operations": operations * place.computed,
                "touched_bytes": touched_bytes * place.computed,
                "inputs": inputs,
                "differentiated": place.differentiated,
                "source": place.line,
                "loop": place.loop,
                "loops": place.loops,
            }
        )
        return number


@dataclass(frozen=True)
class _Place:
    """Where an equation is.

    Attributes:
      stack: name stacks of the calls around it, and its own.
      line: the user's line; that of the call around it if it has none.
      tracebacks: jax's of the same equation, after those of the calls around it, which the body of
        a loop may lack.
      loop: line of the innermost scan that is differentiated.
      loops: number and iterations of each scan around it, the outermost first.
      devices: that compute it, each a separate value, inside of `shard_map`.
    """

    stack: str = ""
    line: str | None = None
    tracebacks: tuple[Any, ...] = ()
    loop: str | None = None
    loops: tuple[tuple[int, int], ...] = ()
    devices: int = 1

    @property
    def computed(self) -> int:
        """How often an equation runs, on all devices."""
        return self.devices * prod(length for _, length in self.loops)

    @property
    def backward(self) -> bool:
        return is_backward(self.stack)

    @property
    def differentiated(self) -> bool:
        return is_differentiated(self.stack)

    @property
    def vmapped(self) -> bool:
        """Whether the gradient around it is under `jax.vmap`."""
        return is_differentiated(self.stack.partition("vmap(")[2])

    def inside(self, equation: Any) -> "_Place":
        """The place of an equation inside of the jaxpr that the equation at this place runs."""
        stack = f"{self.stack}/{equation.source_info.name_stack}"
        line = user_line(equation)
        if line is None:
            return replace(self, stack=stack)
        tracebacks = (*self.tracebacks, equation.source_info.traceback)
        return replace(self, stack=stack, line=line, tracebacks=tracebacks)


def _numbers(variables: Sequence[Any], maker: Mapping[Any, int]) -> Iterator[int]:
    for variable in variables:
        if not hasattr(variable, "val") and variable in maker:
            yield maker[variable]


def policy_keys(jaxpr: Any) -> Iterator[PolicyKey]:
    """What a policy sees of the equations of a jaxpr and of those inside of them."""
    return map(_key, equations(jaxpr))


def _key(equation: Any) -> PolicyKey:
    inputs = [variable.aval for variable in equation.invars]
    return policy_key(equation.primitive, inputs, equation.params)


def policy_key(primitive: Any, inputs: Sequence[Any], parameters: Mapping[str, Any]) -> PolicyKey:
    """The key of what a policy is called with; `inputs` are abstract values."""
    return PolicyKey(
        primitive.name,
        tuple(tuple(getattr(aval, "shape", ())) for aval in inputs),
        str(getattr(inputs[0], "dtype", "")) if inputs else "",
        parameters["name"] if primitive.name == "name" else None,
        parameters["dimension_numbers"] if primitive.name == "dot_general" else None,
    )


def _is_batched(batched: PolicyKey, one: PolicyKey) -> bool:
    """Whether `jax.vmap` can have made a value of one key from that of the other."""
    if (batched.primitive, batched.dtype, batched.name) != (one.primitive, one.dtype, one.name):
        return False
    return len(batched.input_shapes) == len(one.input_shapes) and all(
        shape == whole or _batch_axis(whole, shape) is not None
        for whole, shape in zip(batched.input_shapes, one.input_shapes, strict=True)
    )


def _batch_axis(whole: Pattern, shape: Pattern) -> int | None:
    """The dimension that the first of two shapes has and the second has not; None without one."""
    axes = range(len(whole))
    return next((a for a in axes if whole[:a] + whole[a + 1 :] == shape), None)


def _without_batch(pattern: Pattern, whole: Pattern, shape: Pattern) -> Pattern:
    """A pattern of a shape, without the dimension that `jax.vmap` added to it."""
    axis = _batch_axis(whole, shape)
    return pattern if axis is None else pattern[:axis] + pattern[axis + 1 :]


def _passed(
    inside: Sequence[Any], outside: Sequence[Any], maker: Mapping[Any, int]
) -> dict[Any, int]:
    """The numbers of the inputs of a body whose caller passes these variables."""
    return {
        inner: number
        for inner, outer in zip(inside, outside, strict=True)
        for number in _numbers([outer], maker)
    }


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


def _moves_to_host(equation: Any) -> bool:
    """Whether it is what a policy that offloads puts after a value."""
    if equation.primitive.name != "device_put":
        return False
    return bool(equation.outvars[0].aval.memory_space == jax.memory.Space.Host)


def _operations(equation: Any) -> int:
    """Operations of a matrix product or convolution; 0 for others, which memory bounds."""
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
