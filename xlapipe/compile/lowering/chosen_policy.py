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
import inspect
import json
import linecache
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import wraps
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any
from unittest.mock import patch

import jax
from jax.extend.core import valid_jaxtype
from jax.extend.core.primitives import name_p

from xlapipe.compile.lowering.followed_sizes import WEIGHT_NAME
from xlapipe.compile.lowering.forward_graph import PolicyKey, PolicySite
from xlapipe.compile.lowering.forward_values import forward_graph, policy_key, policy_keys
from xlapipe.compile.lowering.names import is_user_code
from xlapipe.compile.lowering.recorded_calls import (
    LoopPosition,
    RecordedCalls,
    calling_frame,
    recorded_calls,
)
from xlapipe.errors import DifferentTracesError, WorkloadError
from xlapipe.files.writing import write_files
from xlapipe.jax_private import is_vmapped, lower_traced, replaced

Decorator = Callable[[Callable[..., Any]], Any]
_NAME = "__xlapipe_decorators__"
GRADIENT, SCAN, CHECKPOINT, BLOCK = "gradient", "scan", "checkpoint", "block"
_ACTIVE = ExitStack()
_COMPARED: list[tuple["_Change", str]] = []


def rematerialise_as_chosen(
    place: str | None = None,
    source: str = "",
    lines: Collection[str] = (),
    record: str | None = None,
    unchanged: str | None = None,
    decorators: Mapping[str, str] | None = None,
    which: str = "True",
    statements: Mapping[str, str] | None = None,
) -> None:
    """Applies a policy for the rest of the process."""
    names: dict[str, Any] = {}
    exec(compile(source, "<policy>", "exec"), names)
    change = _Change(place, names.get("policy"), lines, records=record is not None)
    blocks = {
        line: change.block(line, names[name], which) for line, name in (decorators or {}).items()
    }
    _ACTIVE.enter_context(decorated_functions(blocks, statements or {}))
    if record is not None:
        change.recorded = _ACTIVE.enter_context(recorded_calls(change.counts_calls))
    if unchanged is not None:
        _COMPARED.append((change, unchanged))
        _ACTIVE.callback(_COMPARED.clear)
    for owner, attribute, changed in (
        (jax, "grad", change.gradient(jax.grad)),
        (jax, "value_and_grad", change.gradient(jax.value_and_grad)),
        (jax.lax, "scan", change.loop(jax.lax.scan, "f")),
        (jax.lax, "map", change.loop(jax.lax.map, "f")),
        (jax.lax, "fori_loop", change.loop(jax.lax.fori_loop, "body_fun")),
        (jax, "checkpoint", change.checkpoint(jax.checkpoint)),
        (jax, "remat", change.checkpoint(jax.remat)),
    ):
        _replace(owner, attribute, changed)
    _at_lowering(change, Path(record) if record is not None else None)


def refuse_other_traces(lower_again: Callable[[], object]) -> None:
    """Lowers the step once more, without the policy, if forms of it are compared.

    Raises:
      DifferentTracesError: that is another program than the step as written.
    """
    for change, unchanged in tuple(_COMPARED):
        first = change.program
        jax.clear_caches()  # jax keeps jaxprs, which the policy has changed
        with change.switched_off():
            lower_again()
        if _digest(change.program) != (unchanged or _digest(first)):
            raise DifferentTracesError(_differing(first, "" if unchanged else change.program))


def _digest(program: str) -> str:
    return hashlib.sha256(program.encode()).hexdigest()


def _differing(first: str, second: str) -> str:
    """The message, with the first line that differs between two programs, if both are known."""
    lines = zip(first.splitlines(), second.splitlines(), strict=False)
    pair = next(((a.strip(), b.strip()) for a, b in lines if a != b), None)
    found = f": once `{pair[0]:.120}`, then `{pair[1]:.120}`" if pair is not None else ""
    return (
        f"the step is another program each time that it is traced{found}. Its forms cannot be "
        "compared; fix: let its shapes, loops and constants depend on the workload's arguments "
        "alone, not on random numbers, counters, files or the time"
    )


def stop() -> None:
    """Undoes all of it, in tests."""
    _ACTIVE.close()


def _replace(owner: ModuleType, attribute: str, changed: Any) -> None:
    """In jax, under all its names, and in the modules that have imported it already."""
    original = getattr(owner, attribute)
    for name, module in list(sys.modules.items()):
        if module is not owner and name.startswith(("jax.", "jaxlib")):
            continue
        for own_name, value in list(vars(module).items()) if module is not None else ():
            if value is original:
                _ACTIVE.enter_context(patch.object(module, own_name, changed))


def _at_lowering(change: "_Change", record: Path | None) -> None:
    original = getattr(*lower_traced)

    @wraps(original)
    def lower(self: Any, **options: Any) -> Any:
        _refuse_policies_by_name()
        change.refuse_not_applied()
        lowered = original(self, **options)
        if _COMPARED:
            # Large constants change no plan.
            operation: Any = lowered.compiler_ir()
            change.program = operation.operation.get_asm(large_elements_limit=16)
        if record is not None and not record.exists():
            graph = forward_graph(
                self.jaxpr,
                change.all_sites(),
                tuple(change.before_vmap),
                tuple(change.decided),
                change.recorded,
                change.gradients,
            )
            graph = replace(graph, program_sha256=_digest(change.program))
            write_files({record: json.dumps(asdict(graph)).encode()})
        return lowered

    _ACTIVE.enter_context(replaced(lower_traced, lower))


def _refuse_policies_by_name() -> None:
    """Refuses jax's next implementation, which asks a policy about names and products alone.

    Raises:
      WorkloadError: it is switched on.
    """
    if getattr(jax.config, "jax_remat3", False):
        raise WorkloadError(
            "jax_remat3 is on, with which jax keeps values by other policies than those that are "
            "read and written here; fix: jax.config.update('jax_remat3', False) for this command, "
            "or compile the step as it is (`xlapipe check`, `dump`, `choose` without --remat)"
        )


class _Change:
    """Forms of jax's functions that apply a policy, and record where they are called."""

    def __init__(
        self, place: str | None, policy: Any, lines: Collection[str], *, records: bool = False
    ) -> None:
        self._place, self._policy, self._lines = place, policy, frozenset(lines)
        self._records = records
        self.sites: dict[PolicySite, None] = {}
        # A policy for a gradient inside of a differentiated function would add its parts in another
        # order, so only the outermost gradients take one.
        self._differentiates = False
        self._columns: dict[PolicySite, set[int]] = defaultdict(set)
        self._other_outputs: dict[PolicySite, str] = {}
        self.before_vmap: dict[PolicyKey, None] = {}
        self.decided: dict[PolicyKey, None] = {}
        self.recorded: Mapping[CodeType, RecordedCalls] = {}
        self._counts = True
        self.gradients = 0
        self._applied: set[str] = set()
        self._checkpoint = jax.checkpoint
        self.program = ""

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """The step as written: calls that were changed when a module was imported included."""
        with patch.object(self, "_place", None), patch.object(self, "_records", False):
            yield

    def refuse_not_applied(self) -> None:
        """Refuses a plan that would be another one than that of the policy.

        Raises:
          WorkloadError: the policy was applied nowhere, or not at all lines.
        """
        by_line = self._place in (SCAN, BLOCK)
        missing = sorted(self._lines - self._applied) if by_line else []
        if missing or (self._place is not None and not self._applied):
            where = ", ".join(missing) or "any line"
            raise WorkloadError(
                f"a policy for the step's {self._place} was not applied: no such call at {where} "
                "here; fix: let all machines that compile have the step's files in the same folder"
            )

    def counts_calls(self) -> bool:
        """Whether calls are those of the forward pass."""
        return self._counts and self._differentiates

    def block(self, line: str, decorator: Callable[..., Any], which: str) -> Callable[..., Any]:
        """The decorator of the function that is defined at a line."""
        position, is_chosen = LoopPosition(), compile(which, "<which>", "eval")

        def decorate(function: Callable[..., Any]) -> Any:
            changed = decorator(function)

            @wraps(function)
            def of_arguments(*args: Any, **kwargs: Any) -> Any:
                number = position.next(calling_frame(sys._getframe(1)))
                if self._place != BLOCK or not eval(is_chosen, {"number": number}):
                    return function(*args, **kwargs)
                self._applied.add(line)
                return changed(*args, **kwargs)

            return of_arguments

        return decorate

    def gradient(self, transform: Callable[..., Any]) -> Any:
        @wraps(transform)
        def differentiate(
            fun: Callable[..., Any],
            argnums: int | tuple[int, ...] = 0,
            has_aux: bool = False,
            **options: Any,
        ) -> Any:
            given = (argnums,) if isinstance(argnums, int) else tuple(argnums)
            called = self._site(GRADIENT, f"jax.{transform.__name__}")

            @wraps(fun)
            def of_arguments(*args: Any, **kwargs: Any) -> Any:
                self.gradients += 1
                if self._differentiates:
                    return fun(*args, **kwargs)
                positions = tuple(position % len(args) for position in given)
                site = replace(called, positions=positions)
                self.sites[site] = None

                def of_differentiated(*values: Any) -> Any:
                    whole = list(args)
                    for position, value in zip(positions, values, strict=True):
                        whole[position] = value
                    return fun(*whole, **kwargs)

                chosen = [args[position] for position in positions]
                with patch.object(self, "_differentiates", True):
                    if is_vmapped():
                        self._keep_keys(of_differentiated, chosen, has_aux)
                    if self._place != GRADIENT:
                        outputs = fun(*args, **kwargs)
                        self._keep_other_output(site, outputs)
                        return outputs
                    self._applied.add(site.source)
                    return self._checkpoint(of_differentiated, policy=self._policy)(*chosen)

            @wraps(fun)
            def of_weights(*args: Any, **kwargs: Any) -> Any:
                whole = list(args)
                if self._records and not self._differentiates:
                    for position in given:
                        whole[position] = jax.tree.map(_as_weight, args[position])
                return differentiated(*whole, **kwargs)

            differentiated = transform(of_arguments, argnums, has_aux, **options)
            return of_weights

        return differentiate

    def _keep_keys(self, function: Callable[..., Any], arguments: Any, has_aux: bool) -> None:
        """Keeps what a policy sees: the shapes of one example."""
        vjp: Any = jax.vjp  # its overloads take a literal has_aux
        residuals = jax.make_jaxpr(lambda *values: vjp(function, *values, has_aux=has_aux)[1])
        with patch.object(self, "_counts", False):
            self.before_vmap.update(dict.fromkeys(policy_keys(residuals(*arguments).jaxpr)))

    def _keep_other_output(self, site: PolicySite, outputs: Any) -> None:
        for leaf in jax.tree.leaves(outputs):
            if not valid_jaxtype(leaf):
                self._other_outputs.setdefault(site, f"{leaf!r:.60} ({type(leaf).__name__})")

    def all_sites(self) -> tuple[PolicySite, ...]:
        """The calls that were traced, in that order."""
        return tuple(
            replace(
                site,
                calls=len(self._columns[replace(site, positions=())]),
                other_output=self._other_outputs.get(site),
            )
            for site in self.sites
        )

    def _keeping_keys(self, primitive: Any, *inputs: Any, **parameters: Any) -> Any:
        """The policy, which also keeps what it is asked about."""
        self.decided[policy_key(primitive, inputs, parameters)] = None
        return self._policy(primitive, *inputs, **parameters)

    def loop(self, original: Callable[..., Any], parameter: str) -> Any:
        """A loop of `jax.lax`, whose body is the argument of a name."""
        signature = inspect.signature(original)

        @wraps(original)
        def loop(*args: Any, **kwargs: Any) -> Any:
            site = self._site(SCAN, f"jax.lax.{original.__name__}")
            self.sites[site] = None
            if self._place == SCAN and site.source in self._lines:
                self._applied.add(site.source)
                bound = signature.bind(*args, **kwargs)
                body = bound.arguments[parameter]
                bound.arguments[parameter] = self._checkpoint(
                    body, policy=self._policy, prevent_cse=False
                )
                args, kwargs = bound.args, bound.kwargs
            return original(*args, **kwargs)

        return loop

    def checkpoint(self, original: Callable[..., Any]) -> Any:
        @wraps(original)
        def checkpoint(fun: Any = None, **options: Any) -> Any:
            if fun is None:
                return lambda function: checkpoint(function, **options)
            site = self._site(CHECKPOINT, f"jax.{original.__name__}")
            as_written = original(fun, **options)
            changed = original(fun, **{**options, "policy": self._keeping_keys})

            @wraps(fun)
            def of_arguments(*args: Any, **kwargs: Any) -> Any:
                self.sites[site] = None
                if self._place != CHECKPOINT:
                    return as_written(*args, **kwargs)
                self._applied.add(site.source)
                return changed(*args, **kwargs)

            return of_arguments

        return checkpoint

    def _site(self, kind: str, function: str) -> PolicySite:
        """The site of the call that is running; libraries' functions have their own names."""
        frame: Any = sys._getframe(2)
        while frame is not None and not is_user_code(frame.f_code.co_filename):
            module = str(frame.f_globals.get("__name__", ""))
            if module.startswith("flax.nnx.") and not function.startswith("nnx."):
                function = f"nnx.{function.rpartition('.')[2]}"
            elif module.startswith("equinox."):
                function = f"eqx.filter_{function.rpartition('.')[2]}"
            elif module.startswith("flax.") and "." in function and not function.startswith("nnx."):
                function = f"nn.{function.rpartition('.')[2]}"
            frame = frame.f_back
        if frame is None:
            site = PolicySite(kind, "unknown", function)
            self._columns[site].add(0)
            return site
        name = function.rpartition(".")[2]
        names = ("checkpoint", "remat") if kind == CHECKPOINT else (name,)
        site = PolicySite(
            kind=kind,
            source=f"{frame.f_code.co_filename}:{frame.f_lineno}",
            function=function,
            made_before=not function.startswith("jax.") and not _is_in_call(names, frame),
        )
        positions = inspect.getframeinfo(frame, context=0).positions
        self._columns[site].add(positions.col_offset or 0 if positions is not None else 0)
        return site


def _as_weight(leaf: Any) -> Any:
    """A leaf with a name by which its sizes are followed. The name is not in the lowered program.

    It is bound without `checkpoint_name`, which makes arrays of Python's numbers.
    """
    return name_p.bind(leaf, name=WEIGHT_NAME) if getattr(leaf, "shape", ()) else leaf


def _is_in_call(names: Sequence[str], frame: FrameType) -> bool:
    """Whether the source text of the call that a frame runs has one of the names."""
    positions = inspect.getframeinfo(frame, context=0).positions
    if positions is None or positions.lineno is None:
        return True
    last = positions.end_lineno or positions.lineno
    lines = range(positions.lineno, last + 1)
    text = "".join(linecache.getline(frame.f_code.co_filename, line) for line in lines)
    return any(name in text for name in names)


def decorated_functions(
    decorators: Mapping[str, Decorator], statements: Mapping[str, str]
) -> AbstractContextManager[object]:
    """Changes functions in modules that are imported while the context is open."""
    files = {place.rpartition(":")[0] for place in decorators}
    original = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if path not in files:
            return original(self, fullname)
        tree = ast.parse(self.get_data(path), path)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                _decorate(node, path, decorators, statements)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    stack = ExitStack()
    stack.enter_context(patch.object(SourceFileLoader, "get_code", get_code))
    stack.enter_context(patch.object(builtins, _NAME, decorators, create=True))
    return stack


def _decorate(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    path: str,
    decorators: Mapping[str, Decorator],
    statements: Mapping[str, str],
) -> None:
    lines = (*node.decorator_list, node)
    number = next((n for n, own in enumerate(lines) if f"{path}:{own.lineno}" in decorators), None)
    if number is None:
        return
    place = f"{path}:{lines[number].lineno}"
    added = ast.parse(f"{_NAME}[{place!r}]", mode="eval").body
    first = ast.parse(statements.get(place, "")).body
    for part in (own for tree in (added, *first) for own in ast.walk(tree)):
        ast.copy_location(part, lines[number])
    after = ast.get_docstring(node, clean=False) is not None
    node.body[after:after] = first
    node.decorator_list.insert(number, added)
