"""The functions of jax that take a policy or another form in the compiling child, and why.

- `jax.grad`, `jax.value_and_grad`: a policy for all that a gradient keeps is a `jax.checkpoint` of
  the function that they differentiate. Both, since neither calls the other by its public name.
- `jax.lax.scan`: a gradient's policy recomputes all iterations before the backward pass uses the
  first one, so the body of the scan takes the policy.
- `jax.lax.map`, `jax.lax.fori_loop`: jax calls scan in them with a body of its own, on lines of its
  own; the user's line and body are known here alone.
- `jax.checkpoint`, `jax.remat`: a step's own checkpoints decide what is kept inside of them, so
  the policy takes the place of theirs. Two names of one function, each of which users import.
- `jax.vmap`: leaves no primitive, so its calls are known here alone.

Each also records the lines that call it, by which `choose` names the places. `flax.nnx`, `equinox`
and others call these functions by the names that modules have imported, which are replaced too.
"""

import inspect
import linecache
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from types import CodeType, FrameType, ModuleType
from typing import Any
from unittest.mock import patch

import jax
from jax.extend.core import valid_jaxtype
from jax.extend.core.primitives import name_p

from xlapipe.compile.lowering.followed_sizes import WEIGHT_NAME
from xlapipe.compile.lowering.forms import (
    Forms,
    Gradient,
    Proof,
    differing_iterations,
    first_line,
    place_of,
    proof_of_loss,
    proof_of_mean,
)
from xlapipe.compile.lowering.forward_graph import PolicyKey, PolicySite
from xlapipe.compile.lowering.forward_values import policy_key, policy_keys
from xlapipe.compile.lowering.names import is_user_code
from xlapipe.compile.lowering.policy_change import (
    BLOCK,
    CAST,
    CHECKPOINT,
    GRADIENT,
    LOOP,
    LOSS,
    MICROBATCHES,
    SCAN,
    VMAP,
)
from xlapipe.compile.lowering.recorded_calls import LoopPosition, RecordedCalls, calling_frame
from xlapipe.compile.lowering.widened import Narrowing
from xlapipe.errors import WorkloadError
from xlapipe.jax_private import is_vmapped, with_other_jaxpr


@contextmanager
def changed_functions(applied: "AppliedPolicy") -> Iterator[None]:
    """Replaces the functions of jax while the context is open."""
    with ExitStack() as stack:
        for owner, attribute, changed in (
            (jax, "grad", applied.gradient(jax.grad)),
            (jax, "value_and_grad", applied.gradient(jax.value_and_grad)),
            (jax.lax, "scan", applied.loop(jax.lax.scan, "f")),
            (jax.lax, "map", applied.loop(jax.lax.map, "f")),
            (jax.lax, "fori_loop", applied.loop(jax.lax.fori_loop, "body_fun")),
            (jax, "checkpoint", applied.checkpoint(jax.checkpoint)),
            (jax, "remat", applied.checkpoint(jax.remat)),
            (jax, "vmap", applied.vmap(jax.vmap)),
        ):
            _replace(stack, owner, attribute, changed)
        yield


def replace_nnx(stack: ExitStack, applied: "AppliedPolicy") -> None:
    """Replaces the gradients of `flax.nnx`, if it is imported."""
    if (nnx := sys.modules.get("flax.nnx")) is not None:
        for name in ("grad", "value_and_grad"):
            _replace(stack, nnx, name, applied.nnx_gradient(getattr(nnx, name)))


def _replace(stack: ExitStack, owner: ModuleType, attribute: str, changed: Any) -> None:
    """In jax, under all its names, and in the modules that have imported it already."""
    original = getattr(owner, attribute)
    for name, module in list(sys.modules.items()):
        if module is not owner and name.startswith(("jax.", "jaxlib")):
            continue
        for own_name, value in list(vars(module).items()) if module is not None else ():
            if value is original:
                stack.enter_context(patch.object(module, own_name, changed))


class AppliedPolicy:
    """Forms of jax's functions that apply a policy, and record where they are called."""

    def __init__(
        self, kind: str | None, code: Mapping[str, Any], lines: Collection[str], record: str | None
    ) -> None:
        self._kind, self._code, self._lines = kind, code, frozenset(lines)
        self._policy: Any = code.get("policy")
        self._records = record is not None
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
        self.forms = Forms()
        self._checkpoint = jax.checkpoint
        self.program = ""

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """The step as written: calls that were changed when a module was imported included."""
        with patch.object(self, "_kind", None), patch.object(self, "_records", False):
            yield

    def cast(self, traced: Any) -> None:
        """Updates in a narrow dtype, of a step that was traced."""
        if self._kind == CAST:
            narrowing = Narrowing(self._lines)
            with_other_jaxpr(traced, narrowing(traced.jaxpr))
            self._applied.update(narrowing.sites)

    def refuse_not_applied(self) -> None:
        """Refuses a plan of another policy: it was applied nowhere, or not at all lines."""
        by_line = self._kind in (SCAN, BLOCK, VMAP, MICROBATCHES, LOSS, LOOP, CAST)
        missing = sorted(self._lines - self._applied) if by_line else []
        if missing or (self._kind is not None and not self._applied):
            where = ", ".join(missing) or "any line"
            raise WorkloadError(
                f"the change of the step's {self._kind} was not applied: no such call at {where} "
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
            def with_arguments(*args: Any, **kwargs: Any) -> Any:
                number = position.next(calling_frame(sys._getframe(1)))
                if self._kind != BLOCK or not eval(is_chosen, {"number": number}):
                    return function(*args, **kwargs)
                self._applied.add(line)
                return changed(*args, **kwargs)

            return with_arguments

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
            is_nnx = called.function.startswith("nnx.")  # which calls the function only once

            @wraps(fun)
            def with_arguments(*args: Any, **kwargs: Any) -> Any:
                self.gradients += 1
                if self._differentiates:
                    return fun(*args, **kwargs)
                positions = tuple(position % len(args) for position in given)
                site = replace(called, positions=positions)
                self.sites[site] = None

                def with_values(*values: Any) -> Any:
                    whole = list(args)
                    for position, value in zip(positions, values, strict=True):
                        whole[position] = value
                    return fun(*whole, **kwargs)

                chosen = [args[position] for position in positions]
                with patch.object(self, "_differentiates", True):
                    if is_vmapped():
                        self._keep_keys(with_values, chosen, has_aux)
                    if self._kind != GRADIENT:
                        own = fun if is_nnx else self._loss(called, given, fun)
                        outputs = own(*args, **kwargs)
                        self._keep_other_output(site, outputs)
                        return outputs
                    self._applied.add(site.source)
                    return self._checkpoint(with_values, policy=self._policy)(*chosen)

            @wraps(fun)
            def with_named_weights(*args: Any, **kwargs: Any) -> Any:
                whole = list(args)
                outermost = not self._differentiates and not is_vmapped()
                if self._records and not self._differentiates:
                    for position in given:
                        whole[position] = jax.tree.map(_as_weight, args[position])
                if not outermost or is_nnx:
                    return differentiated(*whole, **kwargs)
                gradient = Gradient(gradient_of, fun, args, kwargs, given)
                return self._of_batch(called, gradient, lambda: differentiated(*whole, **kwargs))

            def gradient_of(loss: Callable[..., Any]) -> Any:
                return transform(loss, argnums, has_aux, **options)

            differentiated = transform(with_arguments, argnums, has_aux, **options)
            return with_named_weights

        return differentiate

    def nnx_gradient(self, transform: Callable[..., Any]) -> Any:
        @wraps(transform)
        def differentiate(*f: Any, argnums: Any = 0, **options: Any) -> Any:
            frame: Any = sys._getframe(1)
            while frame.f_code.co_filename == __file__:  # of a policy that is joined with this one
                frame = frame.f_back
            place = place_of(frame)
            if not f or place is None:
                return transform(*f, argnums=argnums, **options)
            called = PolicySite(GRADIENT, place[0], f"nnx.{transform.__name__}")
            given = argnums if isinstance(argnums, tuple) else (argnums,)
            positions: Any = [getattr(position, "argnum", position) for position in given]

            def gradient_of(loss: Callable[..., Any]) -> Any:
                return transform(loss, argnums=argnums, **options)

            as_written = gradient_of(self._loss(called, positions, f[0]))

            @wraps(as_written)
            def with_arguments(*args: Any, **kwargs: Any) -> Any:
                if self._differentiates or is_vmapped():
                    return as_written(*args, **kwargs)
                gradient = Gradient(gradient_of, f[0], args, kwargs, positions)
                return self._of_batch(called, gradient, lambda: as_written(*args, **kwargs))

            return with_arguments

        return differentiate

    def _of_batch(
        self, called: PolicySite, gradient: Gradient, as_written: Callable[[], Any]
    ) -> Any:
        """The outermost gradient, perhaps in microbatches, for whose number it is proved."""
        if self._kind != MICROBATCHES or called.source not in self._lines:
            results = as_written()
            if self._records:
                with self._without_record():
                    self.forms.add_gradient(called, gradient)
            return results
        self._applied.add(called.source)
        accumulated = self._code["accumulated"]
        opened, batch = self._proved(proof_of_mean, gradient, accumulated)
        return accumulated(opened.of(opened.loss), batch=batch)(*opened.args, **opened.kwargs)

    def _loss(
        self, called: PolicySite, given: Sequence[int], loss: Callable[..., Any]
    ) -> Callable[..., Any]:
        """What is differentiated: perhaps in blocks, for whose number it is proved."""
        is_chosen = self._kind == LOSS and called.source in self._lines
        if not is_chosen:
            return loss

        @wraps(loss)
        def blocked(*args: Any, **kwargs: Any) -> Any:
            self._applied.add(called.source)
            in_blocks = self._code["loss_in_blocks"]
            gradient = Gradient(jax.grad, loss, args, kwargs, given)
            opened, batch = self._proved(proof_of_loss, gradient, in_blocks)
            return in_blocks(opened.loss, batch=batch)(*opened.args, **kwargs)

        return blocked

    def _proved(
        self,
        proof_of: Callable[[Gradient, int], Proof],
        gradient: Gradient,
        form: Callable[..., Any],
    ) -> tuple[Gradient, tuple[int, ...]]:
        """With its batch as arguments, and their positions.

        The second parameter of the form is the number of parts.
        """
        parts = [*inspect.signature(form).parameters.values()][1].default
        opened, _ = gradient.opened()
        with self._without_record():
            proof = proof_of(opened, parts)
        if proof.refused:
            raise WorkloadError(
                f"{self._kind} in {parts} parts is not proved: {proof.refused}; fix: leave out "
                "this form"
            )
        return opened, proof.batch

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
            if self._kind == SCAN and site.source in self._lines:
                self._applied.add(site.source)
                bound = signature.bind(*args, **kwargs)
                body = bound.arguments[parameter]
                bound.arguments[parameter] = self._checkpoint(
                    body, policy=self._policy, prevent_cse=False
                )
                args, kwargs = bound.args, bound.kwargs
            return original(*args, **kwargs)

        return loop

    @contextmanager
    def _without_record(self) -> Iterator[None]:
        """Further traces, of which nothing is kept."""
        with (
            self.switched_off(),
            patch.multiple(
                self,
                sites={},
                before_vmap={},
                decided={},
                gradients=0,
                _columns=defaultdict(set),
                _other_outputs={},
                _counts=False,
            ),
        ):
            yield

    def scanned(self, form: Callable[..., Any]) -> Callable[..., Any]:
        """A loop as a scan; as a loop in the step as written."""

        def scanned(body: Callable[..., Any], carry: Any, items: Iterable[Any]) -> Any:
            own = list(items)
            if self._kind == LOOP:
                self._applied.update(self._lines)
                try:
                    reason = differing_iterations(body, carry, own)
                    if not reason:
                        return form(body, carry, own)
                except (TypeError, ValueError) as error:
                    reason = f"the items of the loop are not equal: {first_line(error)}"
                raise WorkloadError(f"{reason}; fix: leave out this form")
            for item in own:
                carry = body(carry, item)
            return carry

        return scanned

    def vmap(self, original: Callable[..., Any]) -> Any:
        @wraps(original)
        def vmap(fun: Callable[..., Any], *options: Any, **named: Any) -> Any:
            as_written = original(fun, *options, **named)
            place = place_of(sys._getframe(1))
            if place is None:
                return as_written

            @wraps(fun)
            def mapped(*args: Any, **kwargs: Any) -> Any:
                if self._kind == VMAP and f"{place[0]}:{place[1]}" in self._lines:
                    self._applied.add(f"{place[0]}:{place[1]}")
                    in_blocks = self._code["vmap_in_blocks"](fun, *options, **named)
                    return in_blocks(*args, **kwargs)
                outputs = as_written(*args, **kwargs)
                if self._records:
                    with self._without_record():
                        self.forms.add_vmap(place, fun, as_written, options, named, args, kwargs)
                return outputs

            return mapped

        return vmap

    def checkpoint(self, original: Callable[..., Any]) -> Any:
        @wraps(original)
        def checkpoint(fun: Any = None, **options: Any) -> Any:
            if fun is None:
                return lambda function: checkpoint(function, **options)
            site = self._site(CHECKPOINT, f"jax.{original.__name__}")
            as_written = original(fun, **options)
            changed = original(fun, **{**options, "policy": self._keeping_keys})

            @wraps(fun)
            def with_arguments(*args: Any, **kwargs: Any) -> Any:
                self.sites[site] = None
                if self._kind != CHECKPOINT:
                    return as_written(*args, **kwargs)
                self._applied.add(site.source)
                return changed(*args, **kwargs)

            return with_arguments

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
