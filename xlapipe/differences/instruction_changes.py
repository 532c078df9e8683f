"""Instructions that were added, removed or changed, and the properties in which pairs differ."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

from xlapipe.differences.changes import Action, Aspect, InstructionChange
from xlapipe.differences.identity import Node
from xlapipe.differences.matching import Matching
from xlapipe.differences.side import Side
from xlapipe.plans import Gemm, Instruction, Shape

# Fields of a backend config that follow from the shapes.
_FROM_SHAPES = frozenset(
    {"lhs_batch_dimensions", "lhs_contracting_dimensions", "lhs_stride"}
    | {"rhs_batch_dimensions", "rhs_contracting_dimensions", "rhs_stride"}
)
# Clearer names for fields of a backend config.
_NAMES = {"sizes": "tiles", "selected_algorithm": "algorithm"}


def instruction_changes(matching: Matching) -> Iterator[InstructionChange]:
    """Removed and changed instructions in the order of A's schedule, then added ones in B's."""
    a, b = matching.a, matching.b
    for name, node in a.nodes.items():
        other_name = matching.instructions.get(name)
        if other_name is None:
            yield _alone(a, node, Action.REMOVED)
            continue
        other = b.nodes[other_name]
        if node.identity == other.identity:
            continue
        aspects = aspects_of(matching, node, other)
        if aspects:
            yield InstructionChange(
                what=a.category(node) if node.gemm is not None else b.category(other),
                action=Action.CHANGED,
                subject=b.operation(other_name) if node.gemm is None else a.operation(name),
                shape=other.instruction.shape.text,
                a=name,
                b=other_name,
                a_bytes=a.written_bytes[name],
                b_bytes=b.written_bytes[other_name],
                aspects=aspects,
            )
    for name, node in b.nodes.items():
        if name not in matching.reverse:
            yield _alone(b, node, Action.ADDED)


def _alone(side: Side, node: Node, action: Action) -> InstructionChange:
    """An instruction of one side only."""
    written, is_a = side.written_bytes[node.name], action is Action.REMOVED
    return InstructionChange(
        what=side.category(node),
        action=action,
        subject=side.operation(node.name),
        shape=node.instruction.shape.text,
        a=node.name if is_a else None,
        b=None if is_a else node.name,
        a_bytes=written if is_a else None,
        b_bytes=None if is_a else written,
    )


def aspects_of(matching: Matching, node: Node, other: Node) -> tuple[Aspect, ...]:
    """The differences of a pair; empty if only the computation of its operands differs."""
    one, two = node.instruction, other.instruction
    if node.local == other.local:
        if _reads_the_same(matching, node, other):
            return ()
        return (Aspect("operands", ", ".join(node.operands), ", ".join(other.operands)),)
    aspects: list[Aspect] = []
    if node.gemm is not None and other.gemm is not None:
        aspects += _gemm_aspects(node.gemm, other.gemm)
    if not aspects:
        aspects += _kind_aspects(matching, node, other)
    aspects += _collective_aspects(matching, node, other)
    aspects += _form_aspects(one, two)
    if one.opcode == two.opcode and node.gemm is None and node.body != other.body:
        aspects.append(Aspect("body", *_bodies(matching, one, two)))
    aspects += _config_aspects(one, two)
    if not aspects and (one.shape.text, node.body) != (two.shape.text, other.body):
        aspects.append(Aspect("body", "", ""))
    return tuple(aspects)


def _gemm_aspects(one: Gemm, two: Gemm) -> Iterator[Aspect]:
    if one.backend != two.backend:
        yield Aspect("backend", str(one.backend), str(two.backend))
    split = split_k(one.shapes, two.shapes)
    if split is not None:
        yield Aspect("split-K", *split)


def split_k(one: Sequence[Shape], two: Sequence[Shape]) -> tuple[str, str] | None:
    """The split-K of two products of one dot, or None if it is the same.

    XLA splits the contracted dimension of both operands, so that they keep their number of
    elements, and writes the partial sums into a result with one more leading dimension. A result
    that is larger because an operand is (a padded or larger batch) is not a split.

    Args:
      one, two: shapes of the left operand, the right operand, any further operands, and the result.
    """
    operands = [sorted(prod(shape.dims) for shape in shapes[:2]) for shapes in (one, two)]
    first, second = _dims(one[-1]), _dims(two[-1])
    if min(len(one), len(two)) < 3 or operands[0] != operands[1]:
        return None
    sizes = prod(first), prod(second)
    if sizes[0] == sizes[1] or 0 in sizes:
        return None
    if len(first) == len(second) and first[1:] == second[1:]:
        return (str(first[0]), str(second[0]))
    if second[:1] == (sizes[1] // sizes[0],) and second[0] * sizes[0] == sizes[1]:
        return ("1", str(second[0]))
    if first[:1] == (sizes[0] // sizes[1],) and first[0] * sizes[1] == sizes[0]:
        return (str(first[0]), "1")
    return None


def _kind_aspects(matching: Matching, node: Node, other: Node) -> Iterator[Aspect]:
    if (node.gemm is None) != (other.gemm is None):
        yield Aspect("kind", str(matching.a.category(node)), str(matching.b.category(other)))
    for name in ("opcode", "fusion_kind", "custom_call_target"):
        one, two = getattr(node.instruction, name), getattr(other.instruction, name)
        if one != two:
            yield Aspect(name.replace("_", " "), str(one or "none"), str(two or "none"))


def _collective_aspects(matching: Matching, node: Node, other: Node) -> Iterator[Aspect]:
    """The devices that communicate, and whether the collective is asynchronous."""
    one, two = (
        next(
            (
                collective
                for collective in side.program.plan.collectives or ()
                if collective.instruction == name
            ),
            None,
        )
        for side, name in ((matching.a, node.name), (matching.b, other.name))
    )
    if one is None or two is None:
        return
    if (one.replica_groups, one.source_target_pairs) != (
        two.replica_groups,
        two.source_target_pairs,
    ):
        yield Aspect("devices", one.devices, two.devices)
    if one.asynchronous != two.asynchronous:
        words = ("synchronous", "asynchronous")
        yield Aspect("waiting", words[one.asynchronous], words[two.asynchronous])


def _form_aspects(one: Instruction, two: Instruction) -> Iterator[Aspect]:
    forms = one.shape.text, two.shape.text
    if forms[0] != forms[1]:
        same = one.shape.without_layout == two.shape.without_layout
        yield Aspect("layout" if same else "shape", *forms)


def _config_aspects(one: Instruction, two: Instruction) -> Iterator[Aspect]:
    """The fields of the backend config that differ, if both instructions are of one kind."""
    if one.backend_config == two.backend_config:
        return
    kinds = [(side.opcode, side.fusion_kind, side.custom_call_target) for side in (one, two)]
    if kinds[0] != kinds[1]:
        return
    emitters = [side.fusion_backend_kind or "XLA's own" for side in (one, two)]
    if emitters[0] != emitters[1]:
        yield Aspect("emitter", *emitters)
        return
    fields = [_fields(side.backend_config) for side in (one, two)]
    for name in sorted(fields[0] | fields[1]):
        values = [config.get(name) for config in fields]
        if None in values and _is_default(values[0] or values[1] or ""):
            continue
        if values[0] != values[1] and not (one.shape != two.shape and name in _FROM_SHAPES):
            yield Aspect(_NAMES.get(name, name), values[0] or "none", values[1] or "none")


def _is_default(value: str) -> bool:
    """Whether a proto field has its default value, which some versions write and others omit."""
    return value in ("0", "False", "", "[]") or value.endswith(("_INVALID", "_UNSET", "_UNKNOWN"))


def _fields(config: str) -> dict[str, str]:
    """Fields of a backend config by name, without their parents; equal names are joined."""
    fields: dict[str, list[str]] = {}

    def walk(name: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(key, inner)
        elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
            for inner in value:
                walk(name, inner)
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            fields.setdefault(name, []).append(f"[{text}]" if isinstance(value, list) else text)

    try:
        walk("", json.loads(config) if config else {})
    except (ValueError, RecursionError):
        return {}
    return {name: " ".join(texts) for name, texts in fields.items()}


def _bodies(matching: Matching, one: Instruction, two: Instruction) -> tuple[str, str]:
    """The opcodes that are only in the first body, and those only in the second."""
    opcodes_a, opcodes_b = (
        Counter(
            inner.opcode
            for called in instruction.called_computations
            if (module := side.program.plan.module) is not None and called in module.computations
            for inner in module.computations[called].instructions
            if inner.opcode not in ("parameter", "constant", "bitcast")
        )
        for side, instruction in ((matching.a, one), (matching.b, two))
    )
    return _counted(opcodes_a - opcodes_b), _counted(opcodes_b - opcodes_a)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(
        f"{count} {opcode}" if count > 1 else opcode for opcode, count in sorted(counts.items())
    )


def _reads_the_same(matching: Matching, node: Node, other: Node) -> bool:
    """Whether the operands are paired; also True if one has no pair, which is a change itself."""
    pairs, reverse = matching.instructions, matching.reverse
    if not all(name in pairs for name in node.operands):
        return True
    if not all(name in reverse for name in other.operands):
        return True
    paired = tuple(pairs[name] for name in node.operands)
    return (paired, node.elements) == (other.operands, other.elements)


def _dims(shape: Shape) -> tuple[int, ...]:
    """Dimensions of the first array: of the result, if a workspace is returned with it."""
    return shape.arrays[0].dims if shape.arrays else ()
