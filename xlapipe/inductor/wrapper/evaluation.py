"""The memory and the names at a statement of wrapper code, and the values of expressions there."""

import ast
import builtins
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NoReturn

from xlapipe.dump.readers.source_text import shown
from xlapipe.inductor.allocations import Replay
from xlapipe.inductor.expressions import Dimension, evaluate_tree
from xlapipe.inductor.fx_graphs import FxGraph
from xlapipe.inductor.inductor_plan import UnknownAllocation
from xlapipe.inductor.ir.values import problem_of
from xlapipe.inductor.layouts import Layout, Tensor
from xlapipe.inductor.operators import VIEWS
from xlapipe.inductor.wrapper.output_code import WrapperCode
from xlapipe.inductor.wrapper.sizes_and_dtypes import Gathered, dotted

_BUILTINS = frozenset(dir(builtins)) | {"self", "args", "inf", "nan"}
_LONGEST_LIST = 10_000
_DEFINED = (
    "fix: the file is damaged or not whole, dump it again; if torch wrote it so, report the line"
)


@dataclass(frozen=True, slots=True)
class GivenArgument:
    """An argument of the backward graph; one group shares a storage, None is the caller's."""

    group: int | None
    size_bytes: int | None


@dataclass(frozen=True)
class Known:
    """What other files state about the graph.

    Attributes:
      layouts: layouts of buffers and arguments, from IR or FX graphs.
      given: by argument name; empty if no forward graph was found.
    """

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    given: Mapping[str, GivenArgument] = field(default_factory=dict)
    fx: FxGraph | None = None


class Opaque(Enum):
    """A value that holds no memory: a stream, a string, a number that is not known."""

    OPAQUE = auto()


OPAQUE = Opaque.OPAQUE
Value = Tensor | int | Opaque | list["Value"] | tuple["Value", ...] | None
"""What a name may be bound to; `clear()` empties a list for every name that is bound to it."""


def tensors_in(value: Value) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    for item in items_of(value):
        yield from tensors_in(item)


def items_of(value: Value) -> list[Value]:
    """The items of a tuple or a list; none of another value."""
    return list(value) if isinstance(value, (tuple, list)) else []


class Evaluator:
    """One replay of one module.

    Attributes:
      gathered: sizes and dtypes that the module states about its names.
      frames: names of the functions that are followed, the innermost last.
      muted: whether launches are not recorded, as on the second pass through a loop.
    """

    def __init__(self, code: WrapperCode, known: Known) -> None:
        self.code = code
        self.known = known
        self.gathered = Gathered(code, known.layouts)
        self.replay = Replay(on_host=code.on_host)
        self.frames: list[dict[str, Value]] = [{}]
        self.constants: dict[str, Tensor] = {}
        self.muted = False

    @property
    def names(self) -> dict[str, Value]:
        """Names of the innermost function."""
        return self.frames[-1]

    def fork(self) -> "Evaluator":
        """A copy, to follow another branch with."""
        shared = (self.code, self.known, self.gathered)
        return copy.deepcopy(self, {id(part): part for part in shared})

    def hold(self, value: Value) -> None:
        """Adds a reference to each tensor of a value."""
        for tensor in tensors_in(value):
            self.replay.hold(tensor.storage)

    def release(self, value: Value, node: ast.AST) -> None:
        """Drops a reference to each tensor of a value."""
        for tensor in tensors_in(value):
            self.replay.release(tensor.storage, self.code.number(node))

    def bind(self, name: str, value: Value, node: ast.AST) -> None:
        """Binds a name to a value whose reference it takes over."""
        before = self.names.get(name)
        self.names[name] = value
        if isinstance(value, Tensor):
            self.replay.name_value(name, value)
        self.release(before, node)

    def new_tensor(self, name: str, layout: Layout | None, node: ast.AST) -> Tensor:
        """A tensor in memory that a statement allocates, without references."""
        size = layout.storage_bytes if layout is not None else None
        return self.replay.allocate(name, size, self.code.number(node), layout=layout)

    def unknown(
        self, name: str, node: ast.AST, reason: str, result_bytes: int | None = None
    ) -> None:
        """Records a call that allocates bytes which nothing counts."""
        if not self.muted:
            line = self.code.number(node)
            self.replay.unknown.append(
                UnknownAllocation(self.replay.position, name, line, result_bytes, reason)
            )

    def fail(self, node: ast.AST, expected: str, found: str) -> NoReturn:
        """Raises a DumpError with the line of a statement."""
        self.code.text.fail(getattr(node, "lineno", 1) - 1, expected, found, _DEFINED)

    def refuse(self, node: ast.AST, expected: str) -> NoReturn:
        """As `fail`, showing the expression."""
        self.fail(node, expected, shown(ast.unparse(node)[:120]))

    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression, without a reference."""
        match node:
            case ast.Name(id=name):
                return self._name(name, node)
            case ast.Constant(value=int() | None as value) if not isinstance(value, bool):
                return value
            case ast.Tuple(elts=items):
                return tuple(map(self.evaluate, items))
            case ast.List(elts=items):
                return list(map(self.evaluate, items))
            case ast.Subscript(value=base, slice=ast.Constant(value=int(place))):
                return _item(items_of(self.evaluate(base)), place)
            case ast.Call(func=function, args=[_, *_]) if dotted(function) in VIEWS:
                return self._view(node)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="size" | "stride" as method),
                args=places,
            ):
                sizes = _sizes(self.names.get(name), method)
                return _item(sizes, self.evaluate(places[0])) if places else sizes
            case ast.BinOp(
                left=ast.List(elts=[ast.Constant(value=None)]),
                op=ast.Mult(),
                right=ast.Constant(value=int(count)),
            ) if 0 <= count <= _LONGEST_LIST:
                return [None] * count
            case ast.BinOp() | ast.UnaryOp():
                number = evaluate_tree(node, self.names)
                return OPAQUE if number is None else number
            case ast.Starred(value=inner) | ast.Attribute(value=inner):
                self.evaluate(inner)
            case ast.Call(args=arguments):
                for argument in arguments:
                    self.evaluate(argument)
        return OPAQUE

    def _name(self, name: str, node: ast.expr) -> Value:
        if name in self.names:
            return self.names[name]
        if name in self.code.constants and name not in self.constants:
            self.constants[name] = self._constant(name, node)
        if name in self.constants:
            return self.constants[name]
        if name not in self.code.names and name not in _BUILTINS:
            self.fail(node, "a name that is defined before", shown(name))
        return OPAQUE

    def _constant(self, name: str, node: ast.expr) -> Tensor:
        layout = self.code.constants[name]
        self._check(layout, node)
        size, line = layout.storage_bytes, self.code.number(node)
        tensor = self.replay.allocate(name, size, line, argument=True, held=True, layout=layout)
        self.replay.storages[tensor.storage].constant = True
        self.replay.name_value(name, tensor)
        return tensor

    def _view(self, node: ast.Call) -> Value:
        base = self.evaluate(node.args[0])
        if not isinstance(base, Tensor):
            return OPAQUE
        dtype = base.layout.dtype if base.layout is not None else None
        device = base.layout.device if base.layout is not None else "cuda"
        layout = self.layout_in(node, 1, dtype, device)
        start = self.evaluate(node.args[3]) if len(node.args) > 3 else 0
        item, offset = layout.item_bytes, base.offset_bytes
        known = isinstance(start, int) and item is not None and offset is not None
        place = offset + start * item if known else None  # type: ignore[operator]
        return self.checked_view(Tensor(base.storage, layout, place), node)

    def layout_in(self, node: ast.Call, at: int, dtype: str | None, device: str) -> Layout:
        """The layout whose sizes and strides are arguments `at` and `at + 1` of a call."""
        shape, strides = map(self._sizes_of, (*node.args[at : at + 2], None, None)[:2])
        if shape is None or strides is None:
            self.refuse(node, "sizes and strides of a tensor")
        layout = Layout(dtype, shape, strides, device)
        self._check(layout, node)
        return layout

    def _check(self, layout: Layout, node: ast.AST) -> None:
        """Refuses sizes that no tensor has."""
        problem = problem_of(layout)
        if problem is not None:
            self.code.text.fail(getattr(node, "lineno", 1) - 1, *problem)

    def checked_view(self, tensor: Tensor, node: ast.AST) -> Tensor:
        """Refuses a view beyond its storage."""
        storage = self.replay.storages[tensor.storage]
        size = tensor.layout.storage_bytes if tensor.layout is not None else None
        offset = tensor.offset_bytes
        if offset is not None and offset < 0:
            self.fail(node, "a view at an offset not below 0", f"offset {offset}")
        if None in (size, offset, storage.size_bytes) or storage.argument or not storage.counted:
            return tensor
        if (offset or 0) + (size or 0) > (storage.size_bytes or 0):
            expected = f"a view within the {storage.size_bytes} bytes of {storage.name}"
            self.fail(node, expected, f"{size} bytes at offset {offset}")
        return tensor

    def _sizes_of(self, node: ast.expr | None) -> tuple[Dimension, ...] | None:
        """Sizes or strides in a tuple, a list or `tensor.size()`; None for another expression."""
        if isinstance(node, ast.Call):
            sizes = items_of(self.evaluate(node))
            known = tuple(size for size in sizes if isinstance(size, int))
            return known if known and len(known) == len(sizes) else None
        if not isinstance(node, (ast.Tuple, ast.List)):
            return None
        values = ((item, evaluate_tree(item, self.names)) for item in node.elts)
        return tuple(ast.unparse(item) if value is None else value for item, value in values)

    def layout_of(self, name: str, node: ast.AST) -> Layout | None:
        """What the code or other files state about the layout of a name.

        Of a call's result, torch may assert the size under the name that it is bound to next.
        """
        gathered = self.gathered
        stated = (gathered.asserted, self.known.layouts, self.code.examples)
        if name in gathered.renamed and not any(name in source for source in stated):
            name = gathered.renamed[name]
        asserted, known = gathered.asserted.get(name), self.known.layouts.get(name)
        layout: Layout | None = None
        if asserted is not None:
            device = known.device if known is not None else "cuda"
            layout = self.layout_in(asserted, 1, gathered.dtypes.get(name), device)
        elif known is not None:
            layout = known.resolved(self.names)
        example = self.code.examples.get(name)
        if isinstance(example, Layout):
            base = layout if layout is not None and layout.storage_bytes is not None else example
            layout = Layout(base.dtype, base.shape, base.strides, example.device)
        if layout is not None:
            self._check(layout, node)
        return layout


def _item(items: Sequence[Value] | Opaque, place: Value) -> Value:
    """An item of a sequence; opaque if it has none at that place."""
    if isinstance(items, Opaque) or not isinstance(place, int):
        return OPAQUE
    return items[place] if -len(items) <= place < len(items) else OPAQUE


def _sizes(value: Value, method: str) -> tuple[Value, ...] | Opaque:
    """What `tensor.size()` or `tensor.stride()` gives."""
    if not isinstance(value, Tensor) or value.layout is None:
        return OPAQUE
    sizes = value.layout.shape if method == "size" else value.layout.strides
    return tuple(size if isinstance(size, int) else OPAQUE for size in sizes)
