"""Replays the statements of wrapper code, in order: allocations, launches, `del`, reuse.

Names are bound to tensors; nothing is computed. Functions that `call` calls (partitions, subgraphs)
are followed where they are called. Of an `if`, both branches are followed, one after the other.
"""

import ast
import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from xlapipe.inductor.allocations import Replay, Tensor
from xlapipe.inductor.expressions import Dimension, evaluate_tree
from xlapipe.inductor.inductor_plan import UnknownAllocation
from xlapipe.inductor.ir_values import check_layout
from xlapipe.inductor.layouts import ITEM_BYTES, Layout, contiguous_strides
from xlapipe.inductor.operators import (
    ALLOCATORS,
    VIEWS,
    base_name,
    hides_bytes,
    returns_operand,
)
from xlapipe.inductor.wrapper_code import WrapperCode
from xlapipe.inductor.wrapper_dtypes import allocated_dtype, dotted, gather, name_of
from xlapipe.inductor.wrapper_launches import Launch, Launches
from xlapipe.inductor.wrapper_values import OPAQUE, Box, Frame, Value, tensors_in
from xlapipe.read.source_text import shown

_BUILTINS = frozenset(dir(builtins)) | {"self", "args", "inf", "nan"}
# Functions inside functions; wrapper code has one level.
_MOST_DEPTH = 16
_LONGEST_LIST = 10_000
_KEPT_BY_CALLER = re.compile(r"(primals|tangents|arg)_?\d+")
_LIBRARIES = ("extern_kernels.", "torch.ops.", "aten.", "inductor_ops.", "_quantized.", "prims.")
_VIEW_METHODS = frozenset({"view", "reshape", "t", "permute", "transpose", "detach", "squeeze"})
_DEFINED = (
    "fix: the file is damaged or not whole, dump it again; if torch wrote it so, report the line"
)


@dataclass(frozen=True, slots=True)
class GivenArgument:
    """What the forward graph says about an argument of the backward graph.

    Attributes:
      group: arguments of one group share a storage; None for an argument that the caller keeps.
      size_bytes: of that storage.
    """

    group: int | None
    size_bytes: int | None


@dataclass(frozen=True)
class Known:
    """What other files say about the graph.

    Attributes:
      layouts: of buffers and arguments, from IR or FX graphs.
      given: by argument name; empty if no forward graph was found.
      gives_by_name: whether arguments that are not named as parameters, inputs or tangents are
        given away, as assumed for a backward graph alone.
    """

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    given: Mapping[str, GivenArgument] = field(default_factory=dict)
    gives_by_name: bool = False


@dataclass(frozen=True, slots=True)
class ReplayedArgument:
    """An argument of the call; `tensor` is None for a number."""

    name: str
    layout: Layout | None
    tensor: Tensor | None
    given: bool


@dataclass
class Replayed:
    """What a replay found besides the state of memory.

    Attributes:
      returned: each entry of the returned tuple, with its name.
      resized: buffer, new size, line.
    """

    replay: Replay
    arguments: list[ReplayedArgument] = field(default_factory=list)
    returned: list[tuple[str, Tensor | None]] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    unknown: list[UnknownAllocation] = field(default_factory=list)
    resized: list[tuple[str, int | None, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def replay_wrapper(code: WrapperCode, known: Known) -> Replayed:
    """Replays `call`.

    Raises:
      DumpError: a statement uses a name that nothing defined, or sizes that no tensor has.
    """
    return _Interpreter(code, known).run()


class _Interpreter:
    def __init__(self, code: WrapperCode, known: Known) -> None:
        self._code = code
        self._known = known
        self._gathered = gather(code, known.layouts)
        self._replay = Replay(on_host=code.on_host)
        self._replayed = Replayed(self._replay)
        self._launches = Launches(code, self._replay)
        self._replayed.launches = self._launches.made
        self._frame = Frame()
        self._depth = 0
        self._groups: dict[int, int] = {}

    def run(self) -> Replayed:
        call = self._code.functions["call"]
        self._frame.names["args"] = None
        outcome = self._block(call.body)
        end = self._number(call.body[-1])
        self._leave(self._frame, end)
        values = outcome.value if outcome is not None else ()
        for name, value in zip(outcome.names if outcome else (), _items(values), strict=False):
            tensor = value if isinstance(value, Tensor) else None
            self._replayed.returned.append((name, tensor))
            if tensor is not None:
                self._replay.storages[tensor.storage].live_out = True
        return self._replayed

    # Statements.

    def _block(self, statements: Sequence[ast.stmt]) -> "_Outcome | None":
        """Follows statements up to a `return`."""
        for statement in statements:
            outcome = self._statement(statement)
            if outcome is not None:
                return outcome
        return None

    def _statement(self, statement: ast.stmt) -> "_Outcome | None":
        match statement:
            case ast.Return(value=value):
                return self._returned(value)
            case ast.With(body=body) | ast.Try(body=body):
                return self._block(body)
            case ast.For(body=body) | ast.While(body=body):
                self._note("a loop counts once: the dump does not say how often it runs")
                return self._block(body)
            case ast.If(body=body, orelse=orelse):
                self._note("both branches of a condition count, one after the other")
                return self._block(body) or self._block(orelse)
            case ast.Assign(targets=targets, value=value):
                self._assign(targets[-1], value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.AugAssign(target=ast.Name(id=name)):
                self._bind(name, OPAQUE, statement)
            case ast.Delete(targets=targets):
                self._delete(targets)
            case ast.Expr(value=ast.Call() as call):
                self._release(self._call(call, ()), call)
        return None

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            given = self._held_value(value, (target.id,))
            self._bind(target.id, given, target)
        elif isinstance(target, (ast.Tuple, ast.List)):
            names = [name.id for name in target.elts if isinstance(name, ast.Name)]
            if isinstance(value, ast.Name) and value.id == "args" and not self._depth:
                self._take_arguments(names, target)
                return
            given = self._held_value(value, names)
            items = _items(given)
            if len(items) != len(names) and given is not OPAQUE:
                self._fail(target, f"{len(names)} values to unpack", f"{len(items)}")
            for name, item in zip(names, items or [OPAQUE] * len(names), strict=False):
                self._hold(item)
                self._bind(name, item, target)
            self._release(given, target)
        elif not self._put(target, value):
            self._release(self._held_value(value, ()), target)

    def _put(self, target: ast.expr, value: ast.expr) -> bool:
        """Puts a value into a list, as loops of wrapper code do; False for another target."""
        match target:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(place))):
                box = self._frame.names.get(name)
                if isinstance(box, Box) and 0 <= place < len(box.items):
                    before = box.items[place]
                    box.items[place] = self._held_value(value, ())
                    self._release(before, target)
                    return True
        return False

    def _delete(self, targets: Sequence[ast.expr]) -> None:
        for target in targets:
            if not isinstance(target, ast.Name):
                continue
            if target.id not in self._frame.names:
                if target.id in self._code.names:
                    continue
                self._fail(target, "a name that is bound, to delete", shown(target.id))
            value = self._frame.names.pop(target.id)
            self._release(value, target)

    def _returned(self, value: ast.expr | None) -> "_Outcome":
        if value is None:
            return _Outcome((), ())
        nodes = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
        names = tuple(name_of(node) or ast.unparse(node)[:80] for node in nodes)
        items = tuple(self._held_value(node, ()) for node in nodes)
        if isinstance(value, (ast.Tuple, ast.List)):
            return _Outcome(items, names)
        return _Outcome(items[0], names)

    def _leave(self, frame: Frame, line: int) -> None:
        """Drops the names of a function that has returned."""
        for value in frame.names.values():
            for tensor in tensors_in(value):
                self._replay.release(tensor.storage, line)
        frame.names.clear()

    # Values. What `_held_value` returns has a reference that the caller of it owns.

    def _held_value(self, node: ast.expr, names: Sequence[str]) -> Value:
        if isinstance(node, ast.Call):
            return self._call(node, names)
        value = self._value(node)
        self._hold(value)
        return value

    def _value(self, node: ast.expr) -> Value:
        """A value without a reference."""
        match node:
            case ast.Name(id=name):
                return self._name(name, node)
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                return number
            case ast.Constant(value=None):
                return None
            case ast.Tuple(elts=items):
                return tuple(self._value(item) for item in items)
            case ast.List(elts=items):
                return Box([self._value(item) for item in items])
            case ast.Subscript(value=base, slice=ast.Constant(value=int(place))):
                values = _items(self._value(base))
                return values[place] if -len(values) <= place < len(values) else OPAQUE
            case ast.Call(func=function, args=[_, *_]) if dotted(function) in VIEWS:
                return self._view(node)
            case ast.BinOp(
                left=ast.List(elts=[ast.Constant(value=None)]),
                op=ast.Mult(),
                right=ast.Constant(value=int(count)),
            ) if 0 <= count <= _LONGEST_LIST:
                return Box([None] * count)
            case ast.BinOp() | ast.UnaryOp():
                value = evaluate_tree(node, self._frame.symbols)
                return OPAQUE if value is None else value
            case ast.Starred(value=inner) | ast.Attribute(value=inner):
                self._value(inner)
            case ast.Call(args=arguments):
                for argument in arguments:
                    self._value(argument)
        return OPAQUE

    def _name(self, name: str, node: ast.expr) -> Value:
        if name in self._frame.names:
            return self._frame.names[name]
        if name in self._code.constants and name not in self._launches.constants:
            self._launches.constants[name] = self._constant(name, node)
        if name in self._launches.constants:
            return self._launches.constants[name]
        if name not in self._code.names and name not in _BUILTINS:
            self._fail(node, "a name that is defined before", shown(name))
        return OPAQUE

    def _constant(self, name: str, node: ast.expr) -> Tensor:
        layout, line = self._code.constants[name], self._number(node)
        self._check(layout, node)
        storage = self._replay.allocate(
            name, layout.storage_bytes, line, argument=True, held=True, layout=layout
        )
        self._replay.storages[storage].constant = True
        tensor = Tensor(storage, layout)
        self._replay.name_value(name, tensor)
        return tensor

    def _hold(self, value: Value) -> None:
        for tensor in tensors_in(value):
            self._replay.hold(tensor.storage)

    def _release(self, value: Value, node: ast.AST) -> None:
        for tensor in tensors_in(value):
            self._replay.release(tensor.storage, self._number(node))

    def _bind(self, name: str, value: Value, node: ast.AST) -> None:
        """Binds a name to a value whose reference it takes over."""
        before = self._frame.bind(name, value)
        if isinstance(value, Tensor):
            self._replay.name_value(name, value)
        self._release(before, node)

    # Calls.

    def _call(self, node: ast.Call, names: Sequence[str]) -> Value:
        """Follows a call; its result has a reference that the caller of it owns."""
        operator = dotted(node.func)
        if operator in ALLOCATORS:
            return self._allocation(node, operator, names)
        if operator in VIEWS:
            view = self._view(node)
            self._hold(view)
            return view
        if operator.endswith("alloc_from_pool"):
            return self._from_pool(node)
        function = self._function(node)
        if function is not None:
            return self._inline(function, node)
        if operator.endswith(".clear") and not node.args:
            self._clear(operator.removesuffix(".clear"), node)
            return None
        method = self._method(node, operator)
        if method is not None:
            return method
        if operator.startswith(_LIBRARIES) or self._launches.is_kernel(operator):
            return self._launch(node, operator, names)
        for argument in node.args:
            self._value(argument)
        return OPAQUE

    def _method(self, node: ast.Call, operator: str) -> Value:
        """A method of a tensor; None for other calls."""
        base, _, method = operator.rpartition(".")
        tensor = self._frame.names.get(base)
        if not isinstance(tensor, Tensor):
            return None
        if method in _VIEW_METHODS:
            self._hold(tensor)
            return tensor
        if method in ("size", "stride") and not node.args and tensor.layout is not None:
            sizes = tensor.layout.shape if method == "size" else tensor.layout.strides
            return tuple(size if isinstance(size, int) else OPAQUE for size in sizes)
        if method.endswith("_"):
            operands, _ = self._operands(node)
            self._launches.add(
                f"aten.{method}", node, [(None, base, tensor), *operands], [(base, tensor)], {}
            )
        return OPAQUE

    def _clear(self, name: str, node: ast.AST) -> None:
        box = self._frame.names.get(name)
        if isinstance(box, Box):
            self._release(box, node)
            box.items.clear()

    def _function(self, node: ast.Call) -> ast.FunctionDef | None:
        """The function of this module that is called: a partition or a subgraph."""
        match node.func:
            case ast.Subscript(
                value=ast.Attribute(attr="partitions"), slice=ast.Constant(value=int(number))
            ):
                return self._code.functions.get(f"partition_{number}")
            case ast.Name(id=name):
                return self._code.functions.get(name)
        return None

    def _inline(self, function: ast.FunctionDef, node: ast.Call) -> Value:
        if self._depth >= _MOST_DEPTH:
            self._fail(node, f"functions at most {_MOST_DEPTH} deep", "deeper ones")
        values = [self._value(argument) for argument in node.args]
        outer, self._frame = self._frame, Frame()
        parameters = [parameter.arg for parameter in function.args.args if parameter.arg != "self"]
        for parameter, value in zip(parameters, values, strict=False):
            if not isinstance(value, Box):  # a list's references are its own
                self._hold(value)
            self._frame.bind(parameter, value)
        self._depth += 1
        outcome = self._block(function.body)
        for parameter in parameters:
            if isinstance(self._frame.names.get(parameter), Box):
                del self._frame.names[parameter]
        self._leave(self._frame, self._number(node))
        self._depth -= 1
        self._frame = outer
        return outcome.value if outcome is not None else None

    def _launch(self, node: ast.Call, operator: str, names: Sequence[str]) -> Value:
        operands, keywords = self._operands(node)
        out = keywords.get("out")
        outputs = (
            [(name_of(out) or "out", item) for item in tensors_in(self._value(out))] if out else []
        )
        results: Value = None
        if not outputs and not self._launches.is_kernel(operator):
            tensors = [tensor for _, _, tensor in operands]
            results = self._results(node, operator, names, tensors)
            self._hold(results)
            outputs = _named(results, names, self._gathered.elements)
        texts = {name: ast.unparse(value)[:200] for name, value in keywords.items()}
        self._launches.add(operator, node, operands, outputs, texts)
        if base_name(operator) == "resize_storage_bytes_" and operands:
            self._resize(node, operands[0][1])
        if outputs and results is None:
            return OPAQUE
        return results

    def _operands(
        self, node: ast.Call
    ) -> tuple[list[tuple[int | None, str, Tensor]], dict[str, ast.expr]]:
        """Tensors that are passed: place among the positional arguments, name, tensor."""
        operands: list[tuple[int | None, str, Tensor]] = []
        keywords = {word.arg: word.value for word in node.keywords if word.arg is not None}
        passed: list[tuple[int | None, ast.expr]] = [*enumerate(node.args)]
        passed += [(None, value) for name, value in keywords.items() if name != "out"]
        for place, argument in passed:
            name = name_of(argument) or "?"
            found = tensors_in(self._value(argument))
            operands.extend((place, name, tensor) for tensor in found)
        return operands, keywords

    def _results(
        self,
        node: ast.Call,
        operator: str,
        names: Sequence[str],
        operands: Sequence[Tensor],
    ) -> Value:
        """New tensors that a call returns, without references."""
        if returns_operand(operator) and operands:
            return operands[0]
        line = self._number(node)
        name = names[0] if names else base_name(operator)
        places = self._gathered.elements.get(name)
        if len(names) > 1:
            made: Value = tuple(self._result(each, node, line) for each in names)
        elif places:
            count = min(max(places) + 1, 64)
            made = tuple(
                self._result(places[place], node, line) if place in places else OPAQUE
                for place in range(count)
            )
        else:
            made = self._result(name, node, line, operator, operands) if names else OPAQUE
        self._note_unknown(operator, line, made)
        return made

    def _result(
        self,
        name: str,
        node: ast.Call,
        line: int,
        operator: str = "",
        operands: Sequence[Tensor] = (),
    ) -> Tensor:
        layout = self._layout_of(name, node)
        if layout is None and operands:
            layout = self._launches.result_layout(operator, operands, node)
        size = layout.storage_bytes if layout is not None else None
        storage = self._replay.allocate(name, size, line, layout=layout)
        return Tensor(storage, layout)

    def _note_unknown(self, operator: str, line: int, made: Value) -> None:
        storages = [self._replay.storages[tensor.storage] for tensor in tensors_in(made)]
        sizes = [storage.size_bytes for storage in storages]
        known = sum(size for size in sizes if size is not None)
        hidden = hides_bytes(operator)
        if hidden or None in sizes:
            reason = (
                "what the operator allocates inside is not in the dump"
                if hidden
                else "the size of its result is not in the dump"
            )
            self._replayed.unknown.append(
                UnknownAllocation(
                    self._replay.position,
                    operator,
                    line,
                    known if None not in sizes else None,
                    reason,
                )
            )

    def _resize(self, node: ast.Call, name: str) -> None:
        size = self._value(node.args[1]) if len(node.args) > 1 else None
        number = size if isinstance(size, int) else None
        self._replayed.resized.append((name, number, self._number(node)))
        tensor = self._value(node.args[0])
        if isinstance(tensor, Tensor) and number is not None:
            self._replay.resize(tensor.storage, number, self._number(node))

    # Allocations.

    def _allocation(self, node: ast.Call, operator: str, names: Sequence[str]) -> Value:
        shape, strides = (self._sizes(argument) for argument in (*node.args[:2], None, None)[:2])
        device = ALLOCATORS[operator] or self._device(node)
        if shape is None or (strides is None and len(node.args) > 1):
            self._fail(node, "sizes and strides of an allocation", shown(ast.unparse(node)[:120]))
        steps = strides if strides is not None else contiguous_strides(shape)
        layout = Layout(allocated_dtype(node), shape, steps, device)
        self._check(layout, node)
        if layout.dtype is not None and layout.dtype not in ITEM_BYTES:
            self._fail(node, "a dtype of torch", shown(layout.dtype))
        line = self._number(node)
        name = names[0] if names else "?"
        storage = self._replay.allocate(name, layout.storage_bytes, line, layout=layout)
        if layout.storage_bytes is None:
            reason = f"the size {layout} has symbols without a value"
            self._replayed.unknown.append(
                UnknownAllocation(self._replay.position, name, line, None, reason)
            )
        tensor = Tensor(storage, layout)
        self._hold(tensor)
        return tensor

    def _device(self, node: ast.Call) -> str:
        for word in node.keywords:
            if word.arg == "device":
                text = ast.unparse(word.value)
                return "cpu" if "cpu" in text else "cuda"
        return "cpu"

    def _view(self, node: ast.Call) -> Value:
        base = self._value(node.args[0])
        if not isinstance(base, Tensor):
            return OPAQUE
        arguments = [*node.args[1:3]]
        shape, strides = (self._sizes(argument) for argument in (*arguments, None, None)[:2])
        if shape is None or strides is None:
            self._fail(node, "sizes and strides of a view", shown(ast.unparse(node)[:120]))
        dtype = base.layout.dtype if base.layout is not None else None
        device = base.layout.device if base.layout is not None else "cuda"
        layout = Layout(dtype, shape, strides, device)
        self._check(layout, node)
        start = self._value(node.args[3]) if len(node.args) > 3 else 0
        item = layout.item_bytes
        offset = None
        if isinstance(start, int) and item is not None and base.offset_bytes is not None:
            offset = base.offset_bytes + start * item
        return self._checked(Tensor(base.storage, layout, offset), node)

    def _from_pool(self, node: ast.Call) -> Value:
        """`alloc_from_pool(pool, offset in bytes, dtype, sizes, strides)`."""
        if len(node.args) < 5:
            self._fail(node, "a pool, an offset, a dtype, sizes and strides", "fewer arguments")
        pool, offset = self._value(node.args[0]), self._value(node.args[1])
        shape, strides = self._sizes(node.args[3]), self._sizes(node.args[4])
        if not isinstance(pool, Tensor) or shape is None or strides is None:
            self._fail(node, "a part of a pool", shown(ast.unparse(node)[:120]))
        layout = Layout(allocated_dtype(node), shape, strides, "cuda")
        self._check(layout, node)
        place = offset if isinstance(offset, int) else None
        tensor = self._checked(Tensor(pool.storage, layout, place), node)
        self._hold(tensor)
        return tensor

    def _checked(self, tensor: Tensor, node: ast.AST) -> Tensor:
        """Refuses a view beyond its storage."""
        storage = self._replay.storages[tensor.storage]
        size = tensor.layout.storage_bytes if tensor.layout is not None else None
        offset = tensor.offset_bytes
        if offset is not None and offset < 0:
            self._fail(node, "a view at an offset not below 0", f"offset {offset}")
        if None in (size, offset, storage.size_bytes) or storage.argument or not storage.counted:
            return tensor
        if (offset or 0) + (size or 0) > (storage.size_bytes or 0):
            self._fail(
                node,
                f"a view within the {storage.size_bytes} bytes of {storage.name}",
                f"{size} bytes at offset {offset}",
            )
        return tensor

    def _sizes(self, node: ast.expr | None) -> tuple[Dimension, ...] | None:
        if isinstance(node, ast.Call):
            found = self._call(node, ())
            sizes = found if isinstance(found, tuple) else ()
            known = tuple(size for size in sizes if isinstance(size, int))
            return known if known and len(known) == len(sizes) else None
        if not isinstance(node, (ast.Tuple, ast.List)):
            return None
        values = []
        for item in node.elts:
            value = evaluate_tree(item, self._frame.symbols)
            values.append(ast.unparse(item) if value is None else value)
        return tuple(values)

    def _layout_of(self, name: str, node: ast.AST) -> Layout | None:
        """What the code or other files say about the layout of a name."""
        asserted, known = self._gathered.asserted.get(name), self._known.layouts.get(name)
        dtype = self._gathered.dtypes.get(name)
        layout: Layout | None = None
        if asserted is not None:
            shape, strides = self._sizes(asserted.shape), self._sizes(asserted.strides)
            if shape is None or strides is None or len(shape) != len(strides):
                self._fail(asserted.shape, "sizes and strides", shown(ast.unparse(asserted.shape)))
            device = known.device if known is not None else "cuda"
            layout = Layout(dtype, shape, strides, device)
        elif known is not None:
            layout = known.resolved(self._frame.symbols)
        example = self._code.examples.get(name)
        if isinstance(example, Layout):
            base = layout if layout is not None and layout.storage_bytes is not None else example
            layout = Layout(base.dtype, base.shape, base.strides, example.device)
        if layout is not None:
            self._check(layout, node)
        return layout

    # Arguments.

    def _take_arguments(self, names: Sequence[str], node: ast.AST) -> None:
        asserted = any(name in self._gathered.asserted for name in names)
        for name in names:
            example = self._code.examples.get(name)
            layout = self._layout_of(name, node)
            if isinstance(example, int) or (layout is None and asserted):
                value: Value = example if isinstance(example, int) else OPAQUE
                self._frame.bind(name, value)
                self._replayed.arguments.append(ReplayedArgument(name, None, None, False))
                continue
            tensor, given = self._argument(name, layout, node)
            self._hold(tensor)
            self._bind(name, tensor, node)
            self._replayed.arguments.append(ReplayedArgument(name, layout, tensor, given))

    def _argument(self, name: str, layout: Layout | None, node: ast.AST) -> tuple[Tensor, bool]:
        said = self._known.given.get(name)
        if said is not None:
            given = said.group is not None
        else:
            given = self._known.gives_by_name and _KEPT_BY_CALLER.fullmatch(name) is None
        size = layout.element_bytes if layout is not None else None
        if said is not None and said.group is not None:
            size = said.size_bytes if said.size_bytes is not None else size
            if said.group in self._groups:
                return Tensor(self._groups[said.group], layout), True
        storage = self._replay.allocate(
            name,
            size,
            self._number(node),
            argument=True,
            held=not given,
            layout=layout,
        )
        if said is not None and said.group is not None:
            self._groups[said.group] = storage
        self._replay.argument_numbers[storage] = len(self._replayed.arguments)
        return Tensor(storage, layout), given

    # Messages.

    def _number(self, node: ast.AST) -> int:
        return self._code.number(node)

    def _check(self, layout: Layout, node: ast.AST) -> None:
        check_layout(self._code.text, getattr(node, "lineno", 1) - 1, layout)

    def _note(self, text: str) -> None:
        if text not in self._replayed.notes:
            self._replayed.notes.append(text)

    def _fail(self, node: ast.AST, expected: str, found: str) -> NoReturn:
        self._code.text.fail(getattr(node, "lineno", 1) - 1, expected, found, _DEFINED)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a function returned, held."""

    value: Value
    names: tuple[str, ...]


def _items(value: Value) -> list[Value]:
    if isinstance(value, Box):
        return value.items
    return list(value) if isinstance(value, tuple) else []


def _named(
    results: Value, names: Sequence[str], elements: Mapping[str, Mapping[int, str]]
) -> list[tuple[str, Tensor]]:
    """Results with the names that they are going to have."""
    if isinstance(results, Tensor):
        return [(names[0] if names else "?", results)]
    places = elements.get(names[0], {}) if len(names) == 1 else dict(enumerate(names))
    return [
        (places.get(place, "?"), item)
        for place, item in enumerate(_items(results))
        if isinstance(item, Tensor)
    ]
