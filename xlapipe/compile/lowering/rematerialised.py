"""A step whose gradients are rematerialised, without a change of its source.

Every function that the step differentiates with `jax.grad` or `jax.value_and_grad` goes through
`jax.checkpoint`, also where its module has imported these names, or used them when it was imported.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax

from xlapipe.compile.lowering.saved_values import checkpointed_but_largest

LARGEST = "largest"
OFFLOAD = "offload"
_NAMES = ("grad", "value_and_grad")


_ACTIVE = ExitStack()


def rematerialise_from_now_on(policy_name: str, note: Path | None) -> None:
    """Enters `rematerialising` for the rest of a process that compiles one program.

    A context around a call of the step would not do: a step that is jitted keeps its own wrapper,
    which a library calls later.
    """
    _ACTIVE.enter_context(rematerialising(policy_name, note))


def stop_rematerialising() -> None:
    """Undoes `rematerialise_from_now_on`, in tests."""
    _ACTIVE.close()


@contextmanager
def rematerialising(policy_name: str, note: Path | None = None) -> Iterator[None]:
    """Replaces `jax.grad` and `jax.value_and_grad` by forms that rematerialise.

    Args:
      policy_name: one of `jax.checkpoint_policies`; `offload` for matrix products in host memory,
        or `largest` to save all but the largest saved values.
      note: a file for the description of these values.
    """
    with ExitStack() as stack:
        for name in _NAMES:
            original = getattr(jax, name)
            changed = _changed(original, policy_name, note)
            for module in _modules_with(name, original):
                stack.enter_context(patch.object(module, name, changed))
        yield


def _modules_with(name: str, function: Any) -> list[Any]:
    """jax, and the modules of others that have imported the name from it."""
    others = (
        module
        for module_name, module in list(sys.modules.items())
        if module_name.partition(".")[0] not in ("jax", "jaxlib")
    )
    return [jax, *(module for module in others if vars(module).get(name) is function)]


def _changed(transform: Callable[..., Any], policy_name: str, note: Path | None) -> Any:
    """`jax.grad` or `jax.value_and_grad` of the rematerialised function."""

    @wraps(transform)
    def differentiate(
        fun: Callable[..., Any],
        argnums: int | tuple[int, ...] = 0,
        has_aux: bool = False,
        **options: Any,
    ) -> Any:
        @wraps(fun)
        def of_arguments(*args: Any, **kwargs: Any) -> Any:
            positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

            def of_differentiated(*values: Any) -> Any:
                whole = list(args)
                for position, value in zip(positions, values, strict=True):
                    whole[position] = value
                return fun(*whole, **kwargs)

            chosen = [args[position] for position in positions]
            if policy_name != LARGEST:
                return jax.checkpoint(of_differentiated, policy=_policy(policy_name))(*chosen)
            traced = _traced(of_differentiated, chosen)
            policy, group = checkpointed_but_largest(traced, *chosen, has_aux=has_aux)
            if note is not None:
                note.write_text(str(group), encoding="utf-8")
            return jax.checkpoint(traced, policy=policy)(*chosen)

        return transform(of_arguments, argnums, has_aux, **options)

    return differentiate


def _policy(name: str) -> Any:
    policies = jax.checkpoint_policies
    if name == OFFLOAD:
        return policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    return getattr(policies, name)


def _traced(function: Callable[..., Any], arguments: list[Any]) -> Callable[..., Any]:
    """The function as its jaxpr, which can be called often: Python code may change its state."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    tree = jax.tree.structure(shapes)

    def replay(*values: Any) -> Any:
        leaves = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *jax.tree.leaves(values))
        return jax.tree.unflatten(tree, leaves)

    return replay
