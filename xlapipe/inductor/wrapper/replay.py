"""Replays the statements of wrapper code, in order: allocations, launches, `del`, reuse.

Names are bound to tensors; nothing is computed. Functions that `call` calls (partitions, subgraphs)
are followed where they are called. An `if` counts with the branch that holds more.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from xlapipe.dump.readers.source_text import shown
from xlapipe.inductor.allocations import Replay
from xlapipe.inductor.layouts import Tensor
from xlapipe.inductor.operators import ALLOCATORS, RETURN_OPERAND, VIEWS
from xlapipe.inductor.wrapper.calls import Calls
from xlapipe.inductor.wrapper.evaluation import OPAQUE, Known, Value, items_of
from xlapipe.inductor.wrapper.output_code import WrapperCode
from xlapipe.inductor.wrapper.sizes_and_dtypes import dotted, name_of

# Functions inside functions; wrapper code has one level.
_MOST_DEPTH = 16
_LIBRARIES = ("extern_kernels.", "torch.ops.", "aten.", "inductor_ops.", "_quantized.", "prims.")


def replay_wrapper(code: WrapperCode, known: Known) -> Replay:
    return _Interpreter(code, known).run()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a function returned, held."""

    value: Value
    names: tuple[str, ...]


class _Interpreter(Calls):
    def run(self) -> Replay:
        call = self.code.functions["call"]
        self.names["args"] = None
        outcome = self._block(call.body) or _Outcome((), ())
        self._leave(call.body[-1])
        for name, value in zip(outcome.names, items_of(outcome.value), strict=False):
            self.replay.return_(name, value if isinstance(value, Tensor) else None)
        return self.replay

    def _leave(self, node: ast.AST) -> None:
        """Drops the names of a function that has returned."""
        for value in self.frames.pop().values():
            self.release(value, node)

    def _block(self, statements: Sequence[ast.stmt]) -> _Outcome | None:
        """Follows statements up to a `return`."""
        for statement, following in zip_longest(statements, statements[1:]):
            if _is_loop_without_pass(statement, following):
                continue
            outcome = self._statement(statement)
            if outcome is not None:
                return outcome
        return None

    def _statement(self, statement: ast.stmt) -> _Outcome | None:
        match statement:
            case ast.Return(value=value):
                return self._returned(value)
            case ast.If():
                return self._branches(statement)
            case ast.With() | ast.Try() | ast.For() | ast.While():
                return self._compound(statement)
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign([target], value)
            case ast.AugAssign(target=ast.Name(id=name)) | ast.FunctionDef(name=name):
                self.bind(name, OPAQUE, statement)
            case ast.Delete(targets=targets):
                self._delete(targets)
            case ast.Expr(value=ast.Call() as call):
                self.release(self._call(call, ()), call)
            case ast.Expr() | ast.Pass() | ast.Assert() | ast.Raise() | ast.Global():
                pass
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    self.bind(alias.asname or alias.name.partition(".")[0], OPAQUE, statement)
            case _:
                self._leave_out(statement, "a statement of wrapper code")
        return None

    def _leave_out(self, node: ast.stmt | ast.expr, expected: str) -> None:
        """Lists a part that is not understood. What it holds is not known, nor what it frees."""
        kind = type(node).__name__
        where = f"{self.code.text.where}:{self.code.number(node)}"
        self.replay.note(f"left out: {where}: expected {expected}, found {kind}")
        self.unknown(kind, node, f"expected {expected}")
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                self.bind(part.id, OPAQUE, node)

    def _compound(self, statement: ast.With | ast.Try | ast.For | ast.While) -> _Outcome | None:
        """Follows the blocks of a statement."""
        match statement:
            case ast.With(items=items, body=body):
                for item in items:
                    if isinstance(item.optional_vars, ast.Name):
                        self.bind(item.optional_vars.id, OPAQUE, statement)
                return self._block(body)
            case ast.Try(body=body, finalbody=final):
                outcome = self._block(body)
                return self._block(final) or outcome
            case ast.For(target=ast.Name(id=name)):
                self.bind(name, OPAQUE, statement)
        return self._loop(statement.body)

    def _loop(self, body: Sequence[ast.stmt]) -> _Outcome | None:
        """Follows two passes: on the second, what the first left is held."""
        if not all(isinstance(statement, (ast.If, ast.Assert)) for statement in body):
            self.replay.note(
                "kernels of a loop count once: the dump does not say how often it runs"
            )
        outcome = self._block(body)
        if outcome is not None or self.muted:
            return outcome
        self.muted = True
        outcome = self._block(body)
        self.muted = False
        return outcome

    def _branches(self, statement: ast.If) -> _Outcome | None:
        """Replays both branches from this state, and continues with the one that holds more."""
        blocks = (statement.body, statement.orelse)
        if all(isinstance(part, (ast.Raise, ast.Assert)) for block in blocks for part in block):
            return None  # an assertion
        self.replay.note("of a condition, only the branch that holds more counts")
        other = self.fork()
        assert isinstance(other, _Interpreter)
        outcome, otherwise = self._block(statement.body), other._block(statement.orelse)
        if self._held < other._held:
            vars(self).update(vars(other))
            return otherwise
        return outcome

    @property
    def _held(self) -> tuple[int, int]:
        return self.replay.peak_bytes, self.replay.own_bytes

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        # Functions that `call` calls take a list.
        if len(self.frames) == 1 and isinstance(value, ast.Name) and value.id == "args":
            elements = _elements(targets[0])
            names = [element.id for element in elements if isinstance(element, ast.Name)]
            if len(names) != len(elements) or elements == [targets[0]] or len(targets) > 1:
                self.fail(value, "names of arguments", shown(ast.unparse(targets[0])))
            self.take_arguments(names, value)
            return
        # What the results are going to be called.
        names = [ast.unparse(element)[:80] for element in _elements(targets[0])]
        result = self._held_value(value, names)
        for target in targets[1:]:
            self.hold(result)
            self._store(target, result)
        self._store(targets[0], result)

    def _store(self, target: ast.expr, value: Value) -> None:
        """Puts a value, whose reference it takes over, into a name, a list or several of them."""
        match target:
            case ast.Name(id=name):
                self.bind(name, value, target)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                items = items_of(value)
                if len(items) != len(elements) and value is not OPAQUE:
                    self.fail(target, f"{len(elements)} values to unpack", f"{len(items)}")
                for element, item in zip(elements, items or [OPAQUE] * len(elements), strict=True):
                    self.hold(item)
                    self._store(element, item)
                self.release(value, target)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(place))):
                box = self.names.get(name)
                if not isinstance(box, list) or not 0 <= place < len(box):
                    self.fail(target, "an item of a list", shown(ast.unparse(target)))
                before, box[place] = box[place], value
                self.release(before, target)
            case ast.Starred(value=inner):
                self._store(inner, value)
            case _:  # kept to the end, since the end of its use is unknown
                self._leave_out(target, "a name or an item of a list")

    def _delete(self, targets: Sequence[ast.expr]) -> None:
        for target in targets:
            if not isinstance(target, ast.Name):
                continue
            if target.id in self.names:
                self.release(self.names.pop(target.id), target)
            elif target.id not in self.code.names:
                self.fail(target, "a name that is bound, to delete", shown(target.id))

    def _returned(self, value: ast.expr | None) -> _Outcome:
        if value is None:
            return _Outcome((), ())
        nodes = _elements(value)
        names = tuple(name_of(node) or ast.unparse(node)[:80] for node in nodes)
        items = tuple(self._held_value(node, ()) for node in nodes)
        return _Outcome(items[0] if nodes == [value] else items, names)

    def _held_value(self, node: ast.expr, names: Sequence[str]) -> Value:
        if isinstance(node, ast.Call):
            return self._call(node, names)
        value = self.evaluate(node)
        self.hold(value)
        return value

    def _call(self, node: ast.Call, names: Sequence[str]) -> Value:
        """Follows a call; its result has a reference that the caller of it owns."""
        function = self._function(node)
        if function is not None:
            return self._inline(function, node)
        if dotted(node.func) in RETURN_OPERAND and node.args:
            return self._held_value(node.args[0], names)
        result = self._result(node, names)
        self.hold(result)
        return result

    def _result(self, node: ast.Call, names: Sequence[str]) -> Value:
        """What a call that leaves the module returns."""
        operator = dotted(node.func)
        if operator in ALLOCATORS:
            return self.allocate(node, operator, names)
        if operator in VIEWS:
            return self.evaluate(node)
        if operator.endswith("alloc_from_pool"):
            return self.part_of_pool(node)
        if operator.endswith(".clear") and not node.args:
            self._clear(operator.removesuffix(".clear"), node)
            return None
        result = self.method(node)
        if result is not None:
            return result
        if operator.startswith(_LIBRARIES) or self.is_kernel(operator):
            return self.launch(node, operator, names)
        return self.other(node, operator, names)

    def _clear(self, name: str, node: ast.AST) -> None:
        items = self.names.get(name)
        if isinstance(items, list):
            self.release(items, node)
            items.clear()

    def _function(self, node: ast.Call) -> ast.FunctionDef | None:
        """The function of this module that is called: a partition or a subgraph."""
        match node.func:
            case ast.Subscript(
                value=ast.Attribute(attr="partitions"), slice=ast.Constant(value=int(number))
            ):
                return self.code.functions.get(f"partition_{number}")
            case ast.Name(id=name):
                return self.code.functions.get(name)
        return None

    def _inline(self, function: ast.FunctionDef, node: ast.Call) -> Value:
        if len(self.frames) > _MOST_DEPTH:
            self.fail(node, f"functions at most {_MOST_DEPTH} deep", "deeper ones")
        values = list(map(self.evaluate, node.args))
        parameters = [parameter.arg for parameter in function.args.args if parameter.arg != "self"]
        self.frames.append(dict(zip(parameters, values, strict=False)))
        for value in self.names.values():
            if not isinstance(value, list):  # a list's references are its own
                self.hold(value)
        outcome = self._block(function.body)
        for parameter in parameters:
            if isinstance(self.names.get(parameter), list):
                del self.names[parameter]
        self._leave(node)
        return outcome.value if outcome is not None else None


def _is_loop_without_pass(statement: ast.stmt, following: ast.stmt | None) -> bool:
    """Whether it is what torch writes before `while X` for a loop that does not run: `if not X`."""
    match statement, following:
        case (
            ast.If(test=ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=name)), orelse=[]),
            ast.While(test=ast.Name(id=loop)),
        ):
            return name == loop
    return False


def _elements(node: ast.expr) -> list[ast.expr]:
    """The elements of a tuple or a list; an expression of another kind itself."""
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
