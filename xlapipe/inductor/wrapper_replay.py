"""Replays the statements of wrapper code, in order: allocations, launches, `del`, reuse.

Names are bound to tensors; nothing is computed. Functions that `call` calls (partitions, subgraphs)
are followed where they are called. Of an `if`, both branches are followed, one after the other.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from xlapipe.inductor.allocations import Tensor
from xlapipe.inductor.operators import ALLOCATORS, VIEWS
from xlapipe.inductor.wrapper_allocations import allocate, part_of_pool
from xlapipe.inductor.wrapper_arguments import take_arguments
from xlapipe.inductor.wrapper_code import WrapperCode
from xlapipe.inductor.wrapper_dtypes import dotted, name_of
from xlapipe.inductor.wrapper_evaluation import evaluate
from xlapipe.inductor.wrapper_known import Known, Replayed
from xlapipe.inductor.wrapper_operators import launch, operands_of
from xlapipe.inductor.wrapper_state import WrapperState
from xlapipe.inductor.wrapper_values import OPAQUE, Box, Frame, Value, items_of
from xlapipe.read.source_text import shown

# Functions inside functions; wrapper code has one level.
_MOST_DEPTH = 16
_LIBRARIES = ("extern_kernels.", "torch.ops.", "aten.", "inductor_ops.", "_quantized.", "prims.")
_VIEW_METHODS = frozenset({"view", "reshape", "t", "permute", "transpose", "detach", "squeeze"})


def replay_wrapper(code: WrapperCode, known: Known) -> Replayed:
    """Replays `call`.

    Raises:
      DumpError: a statement uses a name that nothing defined, or sizes that no tensor has.
    """
    return _Interpreter(code, known).run()


class _Interpreter:
    def __init__(self, code: WrapperCode, known: Known) -> None:
        self._state = WrapperState(code, known)
        self._depth = 0

    def run(self) -> Replayed:
        call = self._state.code.functions["call"]
        self._state.frame.names["args"] = None
        outcome = self._block(call.body)
        end = self._state.number(call.body[-1])
        self._state.leave(self._state.frame, end)
        values = outcome.value if outcome is not None else ()
        for name, value in zip(outcome.names if outcome else (), items_of(values), strict=False):
            tensor = value if isinstance(value, Tensor) else None
            self._state.replayed.returned.append((name, tensor))
            if tensor is not None:
                self._state.replay.storages[tensor.storage].live_out = True
        return self._state.replayed

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
                self._state.note("a loop counts once: the dump does not say how often it runs")
                return self._block(body)
            case ast.If(body=body, orelse=orelse):
                self._state.note("both branches of a condition count, one after the other")
                return self._block(body) or self._block(orelse)
            case ast.Assign(targets=targets, value=value):
                self._assign(targets[-1], value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.AugAssign(target=ast.Name(id=name)):
                self._state.bind(name, OPAQUE, statement)
            case ast.Delete(targets=targets):
                self._delete(targets)
            case ast.Expr(value=ast.Call() as call):
                self._state.release(self._call(call, ()), call)
        return None

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            given = self._held_value(value, (target.id,))
            self._state.bind(target.id, given, target)
        elif isinstance(target, (ast.Tuple, ast.List)):
            names = [name.id for name in target.elts if isinstance(name, ast.Name)]
            if isinstance(value, ast.Name) and value.id == "args" and not self._depth:
                take_arguments(self._state, names, target)
                return
            given = self._held_value(value, names)
            items = items_of(given)
            if len(items) != len(names) and given is not OPAQUE:
                self._state.fail(target, f"{len(names)} values to unpack", f"{len(items)}")
            for name, item in zip(names, items or [OPAQUE] * len(names), strict=False):
                self._state.hold(item)
                self._state.bind(name, item, target)
            self._state.release(given, target)
        elif not self._put(target, value):
            self._state.release(self._held_value(value, ()), target)

    def _put(self, target: ast.expr, value: ast.expr) -> bool:
        """Puts a value into a list, as loops of wrapper code do; False for another target."""
        match target:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(place))):
                box = self._state.frame.names.get(name)
                if isinstance(box, Box) and 0 <= place < len(box.items):
                    before = box.items[place]
                    box.items[place] = self._held_value(value, ())
                    self._state.release(before, target)
                    return True
        return False

    def _delete(self, targets: Sequence[ast.expr]) -> None:
        for target in targets:
            if not isinstance(target, ast.Name):
                continue
            if target.id not in self._state.frame.names:
                if target.id in self._state.code.names:
                    continue
                self._state.fail(target, "a name that is bound, to delete", shown(target.id))
            value = self._state.frame.names.pop(target.id)
            self._state.release(value, target)

    def _returned(self, value: ast.expr | None) -> "_Outcome":
        if value is None:
            return _Outcome((), ())
        nodes = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
        names = tuple(name_of(node) or ast.unparse(node)[:80] for node in nodes)
        items = tuple(self._held_value(node, ()) for node in nodes)
        if isinstance(value, (ast.Tuple, ast.List)):
            return _Outcome(items, names)
        return _Outcome(items[0], names)

    def _held_value(self, node: ast.expr, names: Sequence[str]) -> Value:
        if isinstance(node, ast.Call):
            return self._call(node, names)
        value = evaluate(self._state, node)
        self._state.hold(value)
        return value

    def _call(self, node: ast.Call, names: Sequence[str]) -> Value:
        """Follows a call; its result has a reference that the caller of it owns."""
        operator = dotted(node.func)
        if operator in ALLOCATORS:
            return allocate(self._state, node, operator, names)
        if operator in VIEWS:
            view = evaluate(self._state, node)
            self._state.hold(view)
            return view
        if operator.endswith("alloc_from_pool"):
            return part_of_pool(self._state, node)
        function = self._function(node)
        if function is not None:
            return self._inline(function, node)
        if operator.endswith(".clear") and not node.args:
            self._clear(operator.removesuffix(".clear"), node)
            return None
        method = self._method(node, operator)
        if method is not None:
            return method
        if operator.startswith(_LIBRARIES) or self._state.launches.is_kernel(operator):
            return launch(self._state, node, operator, names)
        for argument in node.args:
            evaluate(self._state, argument)
        return OPAQUE

    def _method(self, node: ast.Call, operator: str) -> Value:
        """A method of a tensor; None for other calls."""
        base, _, method = operator.rpartition(".")
        tensor = self._state.frame.names.get(base)
        if not isinstance(tensor, Tensor):
            return None
        if method in _VIEW_METHODS:
            self._state.hold(tensor)
            return tensor
        if method in ("size", "stride"):
            return evaluate(self._state, node)
        if method.endswith("_"):
            operands, _ = operands_of(self._state, node)
            self._state.launches.add(
                f"aten.{method}", node, [(None, base, tensor), *operands], [(base, tensor)], {}
            )
        return OPAQUE

    def _clear(self, name: str, node: ast.AST) -> None:
        box = self._state.frame.names.get(name)
        if isinstance(box, Box):
            self._state.release(box, node)
            box.items.clear()

    def _function(self, node: ast.Call) -> ast.FunctionDef | None:
        """The function of this module that is called: a partition or a subgraph."""
        match node.func:
            case ast.Subscript(
                value=ast.Attribute(attr="partitions"), slice=ast.Constant(value=int(number))
            ):
                return self._state.code.functions.get(f"partition_{number}")
            case ast.Name(id=name):
                return self._state.code.functions.get(name)
        return None

    def _inline(self, function: ast.FunctionDef, node: ast.Call) -> Value:
        if self._depth >= _MOST_DEPTH:
            self._state.fail(node, f"functions at most {_MOST_DEPTH} deep", "deeper ones")
        values = [evaluate(self._state, argument) for argument in node.args]
        outer, self._state.frame = self._state.frame, Frame()
        parameters = [parameter.arg for parameter in function.args.args if parameter.arg != "self"]
        for parameter, value in zip(parameters, values, strict=False):
            if not isinstance(value, Box):  # a list's references are its own
                self._state.hold(value)
            self._state.frame.bind(parameter, value)
        self._depth += 1
        outcome = self._block(function.body)
        for parameter in parameters:
            if isinstance(self._state.frame.names.get(parameter), Box):
                del self._state.frame.names[parameter]
        self._state.leave(self._state.frame, self._state.number(node))
        self._depth -= 1
        self._state.frame = outer
        return outcome.value if outcome is not None else None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a function returned, held."""

    value: Value
    names: tuple[str, ...]
