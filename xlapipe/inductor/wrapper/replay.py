"""Replays the statements of wrapper code, in order: allocations, launches, `del`, reuse.

Names are bound to tensors; nothing is computed. Functions that `call` calls (partitions, subgraphs)
are followed where they are called. An `if` counts with the branch that holds more.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from xlapipe.dump.readers.source_text import shown
from xlapipe.inductor.allocations import Tensor
from xlapipe.inductor.operators import ALLOCATORS, RETURN_OPERAND, VIEWS, allocates_no_tensor
from xlapipe.inductor.wrapper.allocation_calls import allocate, part_of_pool
from xlapipe.inductor.wrapper.arguments import take_arguments
from xlapipe.inductor.wrapper.bound_values import OPAQUE, Box, Frame, Value, items_of
from xlapipe.inductor.wrapper.evaluation import evaluate
from xlapipe.inductor.wrapper.operator_calls import launch, operands_of
from xlapipe.inductor.wrapper.output_code import WrapperCode
from xlapipe.inductor.wrapper.replayed import Known, Replayed
from xlapipe.inductor.wrapper.sizes_and_dtypes import dotted, name_of
from xlapipe.inductor.wrapper.state import WrapperState
from xlapipe.inductor.wrapper.syntax import is_loop_without_pass, plain_names, target_texts
from xlapipe.inductor.wrapper.tensor_methods import call_method

# Functions inside functions; wrapper code has one level.
_MOST_DEPTH = 16
_LIBRARIES = ("extern_kernels.", "torch.ops.", "aten.", "inductor_ops.", "_quantized.", "prims.")


def replay_wrapper(code: WrapperCode, known: Known) -> Replayed:
    """Replays `call`.

    Raises:
      DumpError: a statement uses a name that nothing defined, or sizes that no tensor has.
    """
    return _Interpreter(code, known).run()


class _Interpreter:
    def __init__(self, code: WrapperCode, known: Known) -> None:
        self._state = WrapperState(code, known)

    @property
    def _inlined(self) -> bool:
        """Whether a function that `call` calls is followed."""
        return len(self._state.frames) > 1

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
        for statement, following in zip_longest(statements, statements[1:]):
            if is_loop_without_pass(statement, following):
                continue
            outcome = self._statement(statement)
            if outcome is not None:
                return outcome
        return None

    def _statement(self, statement: ast.stmt) -> "_Outcome | None":
        match statement:
            case ast.Return(value=value):
                return self._returned(value)
            case ast.With() | ast.Try() | ast.For() | ast.While() | ast.If():
                return self._compound(statement)
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign([target], value)
            case ast.AugAssign(target=ast.Name(id=name)) | ast.FunctionDef(name=name):
                self._state.bind(name, OPAQUE, statement)
            case ast.Delete(targets=targets):
                self._delete(targets)
            case ast.Expr(value=ast.Call() as call):
                self._state.release(self._call(call, ()), call)
            case ast.Expr() | ast.Pass() | ast.Assert() | ast.Raise():
                pass
            case ast.Global() | ast.Nonlocal() | ast.AnnAssign(value=None):
                pass
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self._state.bind(name, OPAQUE, statement)
            case _:
                self._leave_out(statement, "a statement of wrapper code")
        return None

    def _leave_out(self, node: ast.stmt | ast.expr, expected: str) -> None:
        """Lists a part that is not understood. What it holds is not known, nor what it frees."""
        kind = type(node).__name__
        where = f"{self._state.code.text.where}:{self._state.number(node)}"
        self._state.note(f"left out: {where}: expected {expected}, found {kind}")
        self._state.unknown(kind, node, f"expected {expected}")
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                self._state.bind(part.id, OPAQUE, node)

    def _compound(
        self, statement: ast.With | ast.Try | ast.For | ast.While | ast.If
    ) -> "_Outcome | None":
        """Follows the blocks of a statement."""
        match statement:
            case ast.If():
                return self._branches(statement)
            case ast.With(items=items, body=body):
                for item in items:
                    if isinstance(item.optional_vars, ast.Name):
                        self._state.bind(item.optional_vars.id, OPAQUE, statement)
                return self._block(body)
            case ast.Try(body=body, finalbody=final):
                outcome = self._block(body)
                return self._block(final) or outcome
            case ast.For(body=body):
                if isinstance(statement.target, ast.Name):
                    self._state.bind(statement.target.id, OPAQUE, statement)
            case ast.While(body=body):
                pass
        return self._loop(body)

    def _loop(self, body: Sequence[ast.stmt]) -> "_Outcome | None":
        """Follows two passes: on the second, what the first left is held."""
        if not all(isinstance(statement, (ast.If, ast.Assert)) for statement in body):
            self._state.note(
                "kernels of a loop count once: the dump does not say how often it runs"
            )
        outcome = self._block(body)
        if outcome is not None or self._state.launches.muted:
            return outcome
        self._state.launches.muted = True
        outcome = self._block(body)
        self._state.launches.muted = False
        return outcome

    def _branches(self, statement: ast.If) -> "_Outcome | None":
        """Replays both branches from this state, and continues with the one that holds more."""
        blocks = (statement.body, statement.orelse)
        if all(isinstance(part, (ast.Raise, ast.Assert)) for block in blocks for part in block):
            return None  # an assertion
        self._state.note("of a condition, only the branch that holds more counts")
        other = self._state.fork()
        outcome = self._block(statement.body)
        body, self._state = self._state, other
        otherwise = self._block(statement.orelse)
        if _held(body) < _held(self._state):
            return otherwise
        self._state = body
        return outcome

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        if not self._inlined and isinstance(value, ast.Name) and value.id == "args":
            names = plain_names(targets[0])
            if names is None or len(targets) > 1:
                self._state.fail(value, "names of arguments", shown(ast.unparse(targets[0])))
            take_arguments(self._state, names, value)
            return
        result = self._held_value(value, target_texts(targets[0]))
        for target in targets[1:]:
            self._state.hold(result)
            self._store(target, result)
        self._store(targets[0], result)

    def _store(self, target: ast.expr, value: Value) -> None:
        """Puts a value, whose reference it takes over, into a name, a list or several of them."""
        match target:
            case ast.Name(id=name):
                self._state.bind(name, value, target)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                items = items_of(value)
                if len(items) != len(elements) and value is not OPAQUE:
                    self._state.fail(target, f"{len(elements)} values to unpack", f"{len(items)}")
                for element, item in zip(elements, items or [OPAQUE] * len(elements), strict=True):
                    self._state.hold(item)
                    self._store(element, item)
                self._state.release(value, target)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(place))):
                box = self._state.frame.names.get(name)
                if not isinstance(box, Box) or not 0 <= place < len(box.items):
                    self._state.fail(target, "an item of a list", shown(ast.unparse(target)))
                before, box.items[place] = box.items[place], value
                self._state.release(before, target)
            case ast.Starred(value=inner):
                self._store(inner, value)
            case _:  # kept to the end, since the end of its use is unknown
                self._leave_out(target, "a name or an item of a list")

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
        if operator in RETURN_OPERAND and node.args:
            return self._held_value(node.args[0], names)
        if operator.endswith(".clear") and not node.args:
            self._clear(operator.removesuffix(".clear"), node)
            return None
        result = call_method(self._state, node)
        if result is not None:
            return result
        if operator.startswith(_LIBRARIES) or self._state.launches.is_kernel(operator):
            return launch(self._state, node, operator, names)
        self._other(node, operator, names)
        return OPAQUE

    def _other(self, node: ast.Call, operator: str, names: Sequence[str]) -> None:
        """A function that is not an operator; one that is not known may allocate."""
        operands, _ = operands_of(self._state, node)
        if allocates_no_tensor(operator):
            return
        if operands or (names and operator.startswith("torch.")):
            name = operator or ast.unparse(node.func)[:80]
            self._state.unknown(name, node, "what this function allocates is not known")

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
        if len(self._state.frames) > _MOST_DEPTH:
            self._state.fail(node, f"functions at most {_MOST_DEPTH} deep", "deeper ones")
        values = [evaluate(self._state, argument) for argument in node.args]
        self._state.frames.append(Frame())
        parameters = [parameter.arg for parameter in function.args.args if parameter.arg != "self"]
        for parameter, value in zip(parameters, values, strict=False):
            if not isinstance(value, Box):  # a list's references are its own
                self._state.hold(value)
            self._state.frame.bind(parameter, value)
        outcome = self._block(function.body)
        for parameter in parameters:
            if isinstance(self._state.frame.names.get(parameter), Box):
                del self._state.frame.names[parameter]
        self._state.leave(self._state.frame, self._state.number(node))
        self._state.frames.pop()
        return outcome.value if outcome is not None else None


def _held(state: WrapperState) -> tuple[int, int]:
    return state.replay.peak_bytes, state.replay.own_bytes


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a function returned, held."""

    value: Value
    names: tuple[str, ...]
