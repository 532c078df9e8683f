"""Which dimensions of a step's values have a size of the differentiated arguments (weights).

It also joins keys of a policy that match the same value at some size.

A policy of `jax.checkpoint` sees shapes. Those that come from weights are the same for every batch
and sequence, others are not, so sizes are followed from the weights through the jaxpr. Where an
equation's rule is unknown, a dimension counts as one of another size, which is always safe: a
policy then distinguishes fewer values.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from math import prod
from typing import Any

from xlapipe.compile.lowering.forward_graph import PolicyKey

Shapes = tuple[tuple[int | None, ...], ...]
# The name that the differentiated arguments have while a step is recorded.
WEIGHT_NAME = "differentiated argument (xlapipe)"


class Size(IntEnum):
    """Where the size of a dimension comes from; the largest of several counts."""

    UNKNOWN = 0
    WEIGHT = 1
    DATA = 2


Sizes = tuple[Size, ...]
Pattern = tuple[int | None, ...]


def all_of(aval: Any, size: Size) -> Sizes:
    """The same for each dimension of an abstract value."""
    return (size,) * len(getattr(aval, "shape", ()))


def pattern_of(shape: Pattern, sizes: Sizes) -> Pattern:
    """A shape with None for each size that is not one of the weights."""
    return tuple(
        length if size is Size.WEIGHT or (length == 1 and size is Size.UNKNOWN) else None
        for length, size in zip(shape, sizes, strict=True)
    )


def output_sizes(equation: Any, inputs: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """The sizes of an equation's outputs, from those of its inputs."""
    rule = _RULES.get(equation.primitive.name)
    if rule is None and equation.primitive.name.startswith(("reduce_", "arg")):
        rule = _without("axes") if "axes" in equation.params else None
    outputs = []
    for output in equation.outvars:
        shape = tuple(getattr(output.aval, "shape", ()))
        sizes = rule(equation, inputs, shape) if rule is not None else ()
        known = len(sizes) == len(shape)
        outputs.append(sizes if known else _by_position(equation, inputs, shape))
    return tuple(outputs)


def seen_by_policy(equation: Any, inputs: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """The sizes of the inputs; those that must be equal are all DATA if one is."""
    input_sizes = [list(sizes) for sizes in inputs]
    name = equation.primitive.name
    if name == "dot_general":
        (left, right), (left_batch, right_batch) = equation.params["dimension_numbers"]
        pairs = (*zip(left, right, strict=True), *zip(left_batch, right_batch, strict=True))
        for axis, other in pairs:
            input_sizes[0][axis] = input_sizes[1][other] = max(
                input_sizes[0][axis], input_sizes[1][other]
            )
    elif name == "gather":
        # Sizes that are indexed are not in the output: another length has another table.
        shape = equation.invars[0].aval.shape
        for axis, length in enumerate(equation.params["slice_sizes"]):
            input_sizes[0][axis] = input_sizes[0][axis] if length == shape[axis] else Size.DATA
    elif name != "conv_general_dilated":
        shapes = [tuple(getattr(variable.aval, "shape", ())) for variable in equation.invars]
        for number, shape in enumerate(shapes):
            for axis, length in enumerate(shape):
                equal = (
                    inputs[other][axis]
                    for other, its in enumerate(shapes)
                    if len(its) == len(shape) and its[axis] == length
                )
                input_sizes[number][axis] = max(equal)
    return tuple(map(tuple, input_sizes))


def _by_position(equation: Any, inputs: Sequence[Sizes], shape: Sequence[int]) -> Sizes:
    """Sizes of results of element operations, and of operations whose rule is unknown."""
    sizes = [Size.UNKNOWN] * len(shape)
    for variable, variable_sizes in zip(equation.invars, inputs, strict=True):
        its = tuple(getattr(variable.aval, "shape", ()))
        for axis, size in enumerate(variable_sizes if len(its) == len(shape) else ()):
            if its[axis] == shape[axis] or (size is Size.DATA and its[axis] != 1):
                sizes[axis] = max(sizes[axis], size)
    return tuple(sizes)


def _product_sizes(equation: Any, inputs: Sequence[Sizes], shape: Sequence[int]) -> Sizes:
    (left, right), (left_batch, right_batch) = equation.params["dimension_numbers"]
    batch = (max(inputs[0][i], inputs[1][j]) for i, j in zip(left_batch, right_batch, strict=True))
    return (
        *batch,
        *(size for i, size in enumerate(inputs[0]) if i not in (*left, *left_batch)),
        *(size for i, size in enumerate(inputs[1]) if i not in (*right, *right_batch)),
    )


def _convolution_sizes(equation: Any, inputs: Sequence[Sizes], shape: Sequence[int]) -> Sizes:
    numbers = equation.params["dimension_numbers"]
    sizes = [Size.UNKNOWN] * len(shape)
    for dimension, output in zip(numbers.lhs_spec, numbers.out_spec, strict=True):
        sizes[output] = inputs[0][dimension]
    sizes[numbers.out_spec[1]] = inputs[1][numbers.rhs_spec[0]]
    return tuple(sizes)


def _broadcast(equation: Any, inputs: Sequence[Sizes], shape: Sequence[int]) -> Sizes:
    sizes = [Size.UNKNOWN] * len(shape)
    input_shape = equation.invars[0].aval.shape
    for axis, output in enumerate(equation.params["broadcast_dimensions"]):
        if input_shape[axis] == shape[output]:
            sizes[output] = inputs[0][axis]
    return tuple(sizes)


def _without(name: str) -> "_Rule":
    """The sizes without those of the axes that a parameter lists."""

    def rule(equation: Any, inputs: Sequence[Sizes], shape: Sequence[int]) -> Sizes:
        dropped = equation.params[name]
        return tuple(size for axis, size in enumerate(inputs[0]) if axis not in dropped)

    return rule


def _joined(equation: Any, inputs: Sequence[Sizes], shape: Sequence[int]) -> Sizes:
    joined = equation.params["dimension"]
    return tuple(
        min(sizes) if axis == joined and Size.DATA not in sizes else max(sizes)
        for axis, sizes in enumerate(zip(*inputs, strict=True))
    )


def _gathered(equation: Any, inputs: Sequence[Sizes], shape: Sequence[int]) -> Sizes:
    numbers, lengths = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    operand = equation.invars[0].aval.shape
    dropped = (*numbers.collapsed_slice_dims, *getattr(numbers, "operand_batching_dims", ()))
    whole = [
        inputs[0][axis] if lengths[axis] == operand[axis] else Size.UNKNOWN
        for axis in range(len(operand))
        if axis not in dropped
    ]
    sizes, indices = iter(whole), iter(inputs[1][:-1])
    return tuple(next(sizes if a in numbers.offset_dims else indices) for a in range(len(shape)))


def _reshaped(equation: Any, inputs: Sequence[Sizes], shape: Sequence[int]) -> Sizes:
    """Groups of dimensions with the same number of elements before and after."""
    before, sizes = tuple(equation.invars[0].aval.shape), inputs[0]
    result: list[Size] = []
    i = j = 0
    while j < len(shape):
        i_end, j_end = min(i + 1, len(before)), j + 1
        while (input_size := prod(before[i:i_end])) != (other := prod(shape[j:j_end])):
            if input_size < other and i_end < len(before):
                i_end += 1
            elif j_end < len(shape):
                j_end += 1
            else:
                return ()
        group = sizes[i:i_end]
        if len(group) == 1 and i_end - i == j_end - j:
            result += group
        else:
            # A dimension of length 1 adds nothing to the others.
            large = [s for s, length in zip(group, before[i:i_end], strict=True) if length != 1]
            size = Size.DATA if Size.DATA in large else min(large, default=Size.UNKNOWN)
            result += [size if length != 1 else Size.UNKNOWN for length in shape[j:j_end]]
        i, j = i_end, j_end
    return tuple(result)


_Rule = Callable[[Any, Sequence[Sizes], Sequence[int]], Sizes]
_RULES: Mapping[str, _Rule] = {
    "dot_general": _product_sizes,
    "conv_general_dilated": _convolution_sizes,
    "transpose": lambda equation, inputs, shape: tuple(
        inputs[0][axis] for axis in equation.params["permutation"]
    ),
    "broadcast_in_dim": _broadcast,
    "squeeze": _without("dimensions"),
    "concatenate": _joined,
    "split": lambda equation, inputs, shape: inputs[0],  # a part of a weight's size is one too
    "gather": _gathered,
    "reshape": _reshaped,
}


def distinct_keys(keys: Iterable[PolicyKey]) -> Mapping[PolicyKey, PolicyKey]:
    """For each key the one to use, so that no value matches two of those at any size.

    None in a shape matches every size: `(None, 64)` and `(None, None)` match the same values if
    the second size of the latter is 64, so both become `(None, None)`.
    """
    buckets: dict[object, dict[PolicyKey, None]] = defaultdict(dict)
    for key in keys:
        ranks = tuple(map(len, key.input_shapes))
        buckets[key._replace(input_shapes=()), ranks][key] = None
    return {
        key: key._replace(input_shapes=merged)
        for bucket in buckets.values()
        for key, merged in _merged([key.input_shapes for key in bucket], list(bucket))
    }


def _merged(shapes: list[Shapes], keys: list[PolicyKey]) -> list[tuple[PolicyKey, Shapes]]:
    distinct: list[Shapes] = []
    for sizes in shapes:
        joined = sizes
        # What a joined pattern matches grows, so others are compared with it again.
        while (other := next((o for o in distinct if _match_alike(o, joined)), None)) is not None:
            distinct.remove(other)
            joined = _joined_shapes(other, joined)
        distinct.append(joined)
    return [
        (key, next(pattern for pattern in distinct if _match_alike(pattern, sizes)))
        for key, sizes in zip(keys, shapes, strict=True)
    ]


def _match_alike(left: Shapes, right: Shapes) -> bool:
    return all(
        size is None or other is None or size == other
        for shape, its in zip(left, right, strict=True)
        for size, other in zip(shape, its, strict=True)
    )


def _joined_shapes(left: Shapes, right: Shapes) -> Shapes:
    return tuple(
        tuple(size if size == other else None for size, other in zip(shape, its, strict=True))
        for shape, its in zip(left, right, strict=True)
    )
