"""Parse the replica groups of a collective, which XLA spells in three ways in text and proto.

    {{0,1},{2,3}}              lists of device ids
    [4,2]<=[2,4]T(1,0)         an iota: 0 to 7 as [2,4], transposed, as 4 groups of 2
    mesh['a'=2,'b'=4] {'b'}    the axes of a mesh along which devices are grouped (from jax 0.11 on)

The result is a tuple of groups, each a tuple of device ids. XLA's own expansion is in
`xla/hlo/ir/replica_group.cc`.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod

Groups = tuple[tuple[int, ...], ...]
Axis = tuple[int, tuple[int, int] | None]
"""Index of a mesh axis, and (pre-size, size) of a part of the axis or None for all of it."""

# More devices than any system has, so that a damaged number cannot exhaust memory.
_MAX_DEVICES = 1 << 20
_LISTS = re.compile(r"\{\s*(?:\{[\d,\s]*\}\s*,?\s*)*\}")
_LIST = re.compile(r"\{([\d,\s]*)\}")
_IOTA = re.compile(r"\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAME = r"'[^']*'|[^'\s\[\]{}=,:]+"
_MESH = re.compile(
    rf"@?mesh\[(?P<axes>(?:(?:{_NAME})=\d+,?)*)\]"
    r"(?:, device_ids=\((?P<ids>[\s\d,\[\]{}]*)\))?"
    rf" \{{(?P<refs>(?:(?:{_NAME})(?::\(\d+\)\d+)?,?)*)\}}"
)
_AXIS = re.compile(rf"({_NAME})=(\d+)")
_REF = re.compile(rf"({_NAME})(?::\((\d+)\)(\d+))?(?:,|$)")


@lru_cache(maxsize=1024)
def groups_of_text(text: str) -> Groups | None:
    """The groups in the text of `replica_groups=`; None for text of another form.

    >>> groups_of_text("[2,2]<=[4]"), groups_of_text("{{0,1}}"), groups_of_text("{}")
    (((0, 1), (2, 3)), ((0, 1),), ())
    """
    text = text.strip()
    if _LISTS.fullmatch(text):
        return tuple(_numbers(ids) for ids in _LIST.findall(text[1:-1]))
    if iota := _IOTA.fullmatch(text):
        count, size = int(iota[1]), int(iota[2])
        return iota_groups(count, size, _numbers(iota[3]), _numbers(iota[4] or ""))
    if mesh := _MESH.fullmatch(text):
        axes = [(name.strip("'"), int(size)) for name, size in _AXIS.findall(mesh["axes"])]
        axis_index = {name: index for index, (name, _) in enumerate(axes)}
        refs: list[Axis] = []
        for name, pre_size, size in _REF.findall(mesh["refs"]):
            if name.strip("'") not in axis_index:
                return None
            part = (int(pre_size), int(size)) if size else None
            refs.append((axis_index[name.strip("'")], part))
        ids = _numbers(re.sub(r"[\[\]{}]", " ", mesh["ids"] or ""))
        return mesh_groups(tuple(size for _, size in axes), tuple(refs), ids)
    return None


def pairs_of_text(text: str) -> tuple[tuple[int, int], ...] | None:
    """The pairs in the text of `source_target_pairs=`; None for text of another form."""
    groups = groups_of_text(text)
    if groups is None or any(len(group) != 2 for group in groups):
        return None
    return tuple((group[0], group[1]) for group in groups)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


@lru_cache(maxsize=1024)
def iota_groups(
    count: int, size: int, dims: tuple[int, ...], permutation: tuple[int, ...] = ()
) -> Groups | None:
    """Device ids 0, 1, … as an array of shape `dims`, with permuted axes, in groups."""
    permutation = permutation or tuple(range(len(dims)))
    devices = count * size
    if not 0 < devices <= _MAX_DEVICES or prod(dims) != devices:
        return None
    if sorted(permutation) != list(range(len(dims))):
        return None
    flat = _transposed(range(devices), dims, permutation)
    return tuple(tuple(flat[start : start + size]) for start in range(0, devices, size))


@lru_cache(maxsize=1024)
def mesh_groups(
    sizes: tuple[int, ...], refs: tuple[Axis, ...], device_ids: tuple[int, ...] = ()
) -> Groups | None:
    """Groups of the devices of a mesh that differ only along the axes `refs`.

    Args:
      sizes: sizes of the mesh's axes; the last axis varies fastest.
      refs: the axes. A part (pre-size p, size s) of an axis of size n is the middle dimension of
        the axis reshaped to [p, s, n / (p s)].
      device_ids: the devices in the mesh's order; empty for 0, 1, ….
    """
    devices = prod(sizes)
    if not 0 < devices <= _MAX_DEVICES or len(device_ids) not in (0, devices):
        return None
    dims: list[int] = []
    grouped: list[int] = []
    for index, size in enumerate(sizes):
        parts = [part for axis, part in refs if axis == index]
        split = _split(size, parts)
        if split is None:
            return None
        for extent, is_grouped in split:
            if is_grouped:
                grouped.append(len(dims))
            dims.append(extent)
    if any(not 0 <= axis < len(sizes) for axis, _ in refs):
        return None
    kept = [axis for axis in range(len(dims)) if axis not in grouped]
    flat = _transposed(device_ids or range(devices), dims, [*kept, *grouped])
    size = prod(dims[axis] for axis in grouped)
    return tuple(tuple(flat[start : start + size]) for start in range(0, devices, size))


def _split(size: int, parts: Sequence[tuple[int, int] | None]) -> list[tuple[int, bool]] | None:
    """An axis as (extent, whether devices are grouped along it), slowest dimension first."""
    if not parts:
        return [(size, False)]
    if None in parts:
        return [(size, True)] if len(parts) == 1 else None
    split: list[tuple[int, bool]] = []
    covered = 1
    for pre_size, extent in sorted(part for part in parts if part is not None):
        if pre_size < covered or pre_size % covered or extent < 1:
            return None
        if pre_size > covered:
            split.append((pre_size // covered, False))
        split.append((extent, True))
        covered = pre_size * extent
    if size % covered:
        return None
    return [*split, (size // covered, False)] if size > covered else split


def _transposed(flat: Sequence[int], dims: Sequence[int], permutation: Sequence[int]) -> list[int]:
    """The elements of a row-major array after a permutation of its axes."""
    strides = [prod(dims[axis + 1 :]) for axis in range(len(dims))]
    positions = [0]
    for axis in permutation:
        positions = [
            position + step * strides[axis] for position in positions for step in range(dims[axis])
        ]
    return [flat[position] for position in positions]
