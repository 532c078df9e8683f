"""Keys of a policy that match the same value at some size are one key. Plain data, without jax."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from xlapipe.compile.lowering.forward_graph import PolicyKey

Shapes = tuple[tuple[int | None, ...], ...]


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
        for own in buckets.values()
        for key, merged in _merged([key.input_shapes for key in own], list(own))
    }


def _merged(shapes: list[Shapes], keys: list[PolicyKey]) -> list[tuple[PolicyKey, Shapes]]:
    distinct: list[Shapes] = []
    for own in shapes:
        joined = own
        # What a joined pattern matches grows, so others are compared with it again.
        while (other := next((o for o in distinct if _match_alike(o, joined)), None)) is not None:
            distinct.remove(other)
            joined = _joined(other, joined)
        distinct.append(joined)
    return [
        (key, next(pattern for pattern in distinct if _match_alike(pattern, own)))
        for key, own in zip(keys, shapes, strict=True)
    ]


def _match_alike(left: Shapes, right: Shapes) -> bool:
    return all(
        size is None or other is None or size == other
        for shape, its in zip(left, right, strict=True)
        for size, other in zip(shape, its, strict=True)
    )


def _joined(left: Shapes, right: Shapes) -> Shapes:
    return tuple(
        tuple(size if size == other else None for size, other in zip(shape, its, strict=True))
        for shape, its in zip(left, right, strict=True)
    )
