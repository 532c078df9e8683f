"""Donation that is lost because the function that donates is called by one that does not.

`lambda state, x: train_step(state, x, flag=True)` around a jitted `train_step` that donates its
state: under another `jit` the inner donation has no effect, so the plan would be of a program that
the user never runs.
"""

from collections.abc import Iterator
from typing import Any

import jax

from xlapipe.errors import WorkloadError
from xlapipe.lowering.names import fn_text
from xlapipe.lowering.user_frame import equation_line
from xlapipe.plans.call_chains import is_own_code
from xlapipe.workload import Workload


def refuse_lost_donation(workload: Workload, traced: Any) -> None:
    """Refuses a plain function, without donation of its own, that calls one that donates.

    Args:
      traced: `jax.stages.Traced` of the outermost function.

    Raises:
      WorkloadError: with the name of the inner function.
    """
    outer = traced.jaxpr.jaxpr
    if any(_donates(traced)):
        return
    for name, file, line in _donating_calls(outer):
        # A library's function is not the user's to give.
        own = is_own_code(file)
        give = f"give {name!r} itself as fn (bind arguments with kwargs= or functools.partial), or "
        raise WorkloadError(
            f"{fn_text(workload)} calls the jitted function {name!r}"
            f"{'' if own else ' of a library'}{line}, which donates "
            "arguments; inside another jit its donation has no effect, so this would be the plan "
            f"of another program; fix: {give if own else ''}name the arguments in donate_argnums="
        )


def _donates(traced: Any) -> Iterator[bool]:
    return (info.donated for info in jax.tree.leaves(traced.args_info))


def _donating_calls(jaxpr: Any) -> Iterator[tuple[str, str, str]]:
    """Names of the functions, the files that define them, and the lines that call them."""
    for equation in jaxpr.eqns:
        if any(equation.params.get("donated_invars", ())):
            # "step at /folder/file.py:12"
            defined = str(equation.params["jaxpr"].jaxpr.debug_info.func_src_info or "")
            file = defined.rpartition(" at ")[2].rpartition(":")[0]
            yield str(equation.params.get("name", "?")), file, equation_line(equation)
