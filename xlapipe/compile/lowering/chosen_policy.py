"""A step with a policy of `jax.checkpoint` that `xlapipe choose` wants to compile.

The policy is the source text that is printed for the user, and its place is where the text tells
the user to put it:

- `gradient`: around the functions that `jax.grad` and `jax.value_and_grad` differentiate;
- `scan`: around the bodies of the calls of `jax.lax.scan`, `map` and `fori_loop` at given lines;
- `checkpoint`: in place of the policies of the step's own `jax.checkpoint` calls;
- `block`: above the definitions of functions at given lines, as a decorator. It is there when the
  module is imported, so that it holds for methods, for functions that are made anew in each call,
  and for names that other modules have imported.

The compiling child enters this before it imports the user's module, and compiles one program.
"""

import ast
import builtins
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from functools import partial, wraps
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import patch

import jax

from xlapipe.compile.lowering.changed_functions import (
    AppliedPolicy,
    changed_functions,
    replace_nnx,
)
from xlapipe.compile.lowering.forward_values import forward_graph
from xlapipe.compile.lowering.policy_change import LOOP, PolicyChange
from xlapipe.compile.lowering.recorded_calls import (
    recorded_calls,
)
from xlapipe.compile.lowering.widened import Narrowing
from xlapipe.errors import DifferentTracesError, WorkloadError
from xlapipe.files.writing import write_files
from xlapipe.jax_private import lower_traced, replaced

Decorator = Callable[[Callable[..., Any]], Any]
_NAME = "__xlapipe_decorators__"
_ACTIVE = ExitStack()
_APPLIED: list[AppliedPolicy] = []
_COMPARED: list[tuple[AppliedPolicy, str]] = []


def apply_policy(change: PolicyChange) -> None:
    """Applies a policy for the rest of the process."""
    if change.also is not None:
        apply_policy(change.also)
    names: dict[str, Any] = {}
    exec(compile(change.source, "<policy>", "exec"), names)
    applied = AppliedPolicy(change.kind, names, change.lines, change.record)
    blocks = {
        line: applied.block(line, names[name], change.which)
        for line, name in change.decorators.items()
    }
    if change.kind == LOOP:
        scanned = applied.scanned(names["scanned"])
        _ACTIVE.enter_context(patch.object(builtins, "scanned", scanned, create=True))
        _ACTIVE.enter_context(changed_code(change.lines, partial(_with_scans, change.statements)))
    if blocks:
        _ACTIVE.enter_context(decorated_functions(blocks))
    if change.record is not None:
        applied.recorded = _ACTIVE.enter_context(recorded_calls(applied.counts_calls))
    if change.unchanged is not None:
        _COMPARED.append((applied, change.unchanged))
        _ACTIVE.callback(_COMPARED.clear)
    _ACTIVE.enter_context(changed_functions(applied))
    _APPLIED.append(applied)
    _ACTIVE.callback(_APPLIED.clear)
    _at_lowering(applied, Path(change.record) if change.record is not None else None)


def apply_to_libraries() -> None:
    """Applies it to what the user's module has imported."""
    for applied in _APPLIED:
        replace_nnx(_ACTIVE, applied)


def refuse_other_traces(lower_again: Callable[[], object]) -> None:
    """Lowers the step once more, without the policy, if forms of it are compared."""
    for applied, unchanged in tuple(_COMPARED):
        first = applied.program
        jax.clear_caches()  # jax keeps jaxprs, which the policy has changed
        with ExitStack() as stack:
            for own in _APPLIED:
                stack.enter_context(own.switched_off())
            lower_again()
        if _digest(applied.program) != (unchanged or _digest(first)):
            raise DifferentTracesError(_differing(first, "" if unchanged else applied.program))


def _digest(program: str) -> str:
    return hashlib.sha256(program.encode()).hexdigest()


def _differing(first: str, second: str) -> str:
    """The message, with the first line that differs between two programs, if both are known."""
    lines = zip(first.splitlines(), second.splitlines(), strict=False)
    pair = next(((a.strip(), b.strip()) for a, b in lines if a != b), None)
    difference = f": once `{pair[0]:.120}`, then `{pair[1]:.120}`" if pair is not None else ""
    return (
        f"the step is another program each time that it is traced{difference}. Its forms cannot be "
        "compared; fix: let its shapes, loops and constants depend on the workload's arguments "
        "alone, not on random numbers, counters, files or the time"
    )


def stop() -> None:
    """Undoes all of it, in tests."""
    _ACTIVE.close()


def _at_lowering(applied: AppliedPolicy, record: Path | None) -> None:
    original = getattr(*lower_traced)

    @wraps(original)
    def lower(self: Any, **options: Any) -> Any:
        _refuse_policies_by_name()
        applied.cast(self)
        applied.refuse_not_applied()
        lowered = original(self, **options)
        if _COMPARED:
            # Large constants change no plan.
            operation: Any = lowered.compiler_ir()
            applied.program = operation.operation.get_asm(large_elements_limit=16)
        if record is not None and not record.exists():
            graph = forward_graph(
                self.jaxpr,
                applied.all_sites(),
                tuple(applied.before_vmap),
                tuple(applied.decided),
                applied.recorded,
                applied.gradients,
            )
            widened = Narrowing()
            widened(self.jaxpr)
            forms = (*applied.forms.sites(), *widened.sites.values())
            graph = replace(graph, program_sha256=_digest(applied.program), forms=forms)
            write_files({record: json.dumps(asdict(graph)).encode()})
        return lowered

    _ACTIVE.enter_context(replaced(lower_traced, lower))


def _refuse_policies_by_name() -> None:
    """Refuses jax's next implementation, which asks a policy about names and products alone."""
    if getattr(jax.config, "jax_remat3", False):
        raise WorkloadError(
            "jax_remat3 is on, with which jax keeps values by other policies than those that are "
            "read and written here; fix: jax.config.update('jax_remat3', False) for this command, "
            "or compile the step as it is (`xlapipe check`, `dump`, `choose` without --remat)"
        )


def decorated_functions(decorators: Mapping[str, Decorator]) -> AbstractContextManager[object]:
    """Changes functions in modules that are imported while the context is open."""

    def change(tree: ast.Module, path: str) -> ast.Module:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                _decorate(node, path, decorators)
        return tree

    stack = ExitStack()
    stack.enter_context(changed_code(decorators, change))
    stack.enter_context(patch.object(builtins, _NAME, decorators, create=True))
    return stack


def changed_code(
    places: Iterable[str], change: Callable[[ast.Module, str], ast.Module]
) -> AbstractContextManager[object]:
    """Changes the code of the files of places when their modules are imported."""
    files = {place.rpartition(":")[0] for place in places}
    original = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if path not in files:
            return original(self, fullname)
        tree = change(ast.parse(self.get_data(path), path), path)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    return patch.object(SourceFileLoader, "get_code", get_code)


def _with_scans(statements: Mapping[str, str], tree: ast.Module, path: str) -> ast.Module:
    """The code with a statement in place of each loop that begins on a line."""

    class Scans(ast.NodeTransformer):
        def visit_For(self, loop: ast.For) -> ast.AST:
            if (text := statements.get(f"{path}:{loop.lineno}")) is None:
                return self.generic_visit(loop)
            (statement,) = ast.parse(text).body
            for part in ast.walk(statement):
                ast.copy_location(part, loop.body[0])
            return statement

    changed: ast.Module = Scans().visit(tree)
    return changed


def _decorate(
    node: ast.FunctionDef | ast.AsyncFunctionDef, path: str, decorators: Mapping[str, Decorator]
) -> None:
    lines = (*node.decorator_list, node)
    number = next(
        (n for n, element in enumerate(lines) if f"{path}:{element.lineno}" in decorators), None
    )
    if number is None:
        return
    place = f"{path}:{lines[number].lineno}"
    added = ast.parse(f"{_NAME}[{place!r}]", mode="eval").body
    for part in ast.walk(added):
        ast.copy_location(part, lines[number])
    node.decorator_list.insert(number, added)
