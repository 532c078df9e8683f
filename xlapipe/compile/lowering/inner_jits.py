"""Options of an inner `jax.jit` that an outer one drops.

`lambda state, x: train_step(state, x, flag=True)` around a jitted `train_step` that donates its
state: under another `jit` the inner donation has no effect, so the plan would be of a program that
the user never runs. The same holds for its layouts, keep_unused=, device and compiler options.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from xlapipe.compile.lowering.jaxprs import equation_line
from xlapipe.compile.lowering.names import fn_text
from xlapipe.errors import WorkloadError
from xlapipe.plans.call_chains import is_own_code
from xlapipe.workload import Workload

# Without a jit around them, jax runs what these call as it is, a jitted function with its donation.
_NO_PROGRAM = ("checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")
# What the inner function says, and the fix.
_LOST = {
    "donation has": ("which donates arguments", "name the arguments in donate_argnums="),
    "layouts have": ("which has layouts", "give the layouts to a jax.jit of fn"),
    "keep_unused=True has": (
        "which keeps arguments that it does not use",
        "give jax.jit(fn, keep_unused=True)",
    ),
    "device has": (
        "which is jitted for one device of this machine",
        "leave device=, backend= and SingleDeviceSharding out of its jax.jit",
    ),
}
_OPTIONS_OF_INNER = "`compiler_options` can only be passed to top-level"


def refuse_lost_in_inner_jits(workload: Workload, traced: Any, *, is_jitted: bool) -> None:
    """Refuses a step that calls a jitted function of which the `jit` around it drops something.

    If that `jit` is the user's own (`is_jitted`), the user's program drops it, too.
    """
    donated = [info.donated for info in jax.tree.leaves(traced.args_info)]
    jaxpr = traced.jaxpr.jaxpr
    undonated = {
        id(argument)
        for argument, is_donated in zip(jaxpr.invars, donated, strict=True)
        if not is_donated
    }
    for equation, undonated_here in _calls(jaxpr, undonated, inside=not is_jitted):
        parameters = equation.params
        shardings = (*parameters["in_shardings"], *parameters["out_shardings"])
        donates = not (is_jitted and any(donated)) and _donates(
            equation, undonated_here, everything=not any(donated)
        )
        layouts = (*parameters["in_layouts"], *parameters["out_layouts"])
        lost = {
            "donation has": donates,
            "layouts have": not is_jitted and any(layouts),
            "keep_unused=True has": not is_jitted and parameters["keep_unused"],
            "device has": any(isinstance(item, SingleDeviceSharding) for item in shardings),
        }
        for what, is_lost in lost.items():
            if is_lost:
                raise _error(workload, equation, what)


def _calls(
    jaxpr: Any, undonated: Collection[int], *, inside: bool
) -> Iterator[tuple[Any, Collection[int]]]:
    """The calls of jitted functions in a step, each with the ids of its arguments not donated."""
    for equation in jaxpr.eqns:
        if "donated_invars" in equation.params:
            yield equation, undonated
        elif inside and equation.primitive.name in _NO_PROGRAM:
            closed = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            inner = getattr(closed, "jaxpr", closed)
            names = zip(equation.invars, inner.invars, strict=True)
            same = {id(name) for operand, name in names if id(operand) in undonated}
            yield from _calls(inner, same, inside=True)


def _donates(equation: Any, undonated: Collection[int], *, everything: bool) -> bool:
    """Whether a call donates an argument of the step that the step does not."""
    return any(
        is_donated and (everything or id(operand) in undonated)
        for operand, is_donated in zip(
            equation.invars, equation.params["donated_invars"], strict=True
        )
    )


def _error(workload: Workload, equation: Any, what: str) -> WorkloadError:
    says, fix = _LOST[what]
    # "step at /folder/train.py:12"
    defined = str(equation.params["jaxpr"].jaxpr.debug_info.func_src_info or "")
    # Passing the inner function itself is not a fix for a library's function.
    is_users = is_own_code(defined.rpartition(" at ")[2].rpartition(":")[0])
    name = equation.params.get("name", "?")
    give = f"give {name!r} itself as fn (bind arguments with kwargs= or functools.partial), or "
    return WorkloadError(
        f"{fn_text(workload)} calls the jitted function {name!r}"
        f"{'' if is_users else ' of a library'}{equation_line(equation)}, {says}; inside another "
        f"jit its {what} no effect, so this would be the plan of another program; fix: "
        f"{give if is_users and what != 'device has' else ''}{fix}"
    )


@contextmanager
def refusing_options_of_inner_jits(workload: Workload) -> Iterator[None]:
    """Adds the fix to jax's own refusal of an inner function's `compiler_options`."""
    try:
        yield
    except ValueError as error:
        if _OPTIONS_OF_INNER not in str(error):
            raise
        raise WorkloadError(
            f"{fn_text(workload)}: {error}; fix: give that function itself as fn, or name its "
            "compiler_options in options="
        ).with_traceback(error.__traceback__) from None
