"""A workload with a change that can lower its memory, for `xlapipe explain`.

The compiling child calls `changed_workload` like a user's function, so the parent imports no jax.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any
from unittest.mock import patch

from xlapipe.errors import WorkloadError
from xlapipe.lowering.load_workload import load_workload
from xlapipe.registry import WorkloadReference
from xlapipe.workload import Workload


def changed_workload(
    *,
    reference: Mapping[str, str | None],
    donate: Sequence[str] = (),
    checkpoint: str | None = None,
    halve: str | None = None,
    devices: int | None = None,
) -> Workload:
    """The workload of a reference with one change.

    Args:
      reference: as `WorkloadReference.to_json` writes it.
      donate: names of parameters of the step to donate as well.
      checkpoint: name of a policy of `jax.checkpoint_policies`, with which every function that the
        step differentiates is rematerialised; `offload` moves matrix products to the host.
      halve: name of an integer argument of the workload's function, which is halved.
      devices: as for `load_workload`.

    Raises:
      WorkloadError: the function has no integer argument `halve` of 2 or more.
    """
    original = WorkloadReference.from_json(reference)
    if halve is not None:
        original = _halved(original, halve)
    workload = load_workload(original, devices=devices)
    if donate:
        names = tuple(dict.fromkeys((*workload.donated_names, *donate)))
        workload = replace(workload, donate_argnames=names)
    if checkpoint is not None:
        workload = replace(workload, fn=_checkpointed(workload.fn, checkpoint))
    return workload


def _halved(reference: WorkloadReference, name: str) -> WorkloadReference:
    given = dict(reference.arguments or {})
    value = given.get(name, _default(reference, name))
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        raise WorkloadError(f"{reference}: expected an integer {name} of 2 or more")
    return replace(reference, arguments={**given, name: value // 2})


def _default(reference: WorkloadReference, name: str) -> Any:
    """The default of a parameter of the workload's function; None if it has no such parameter."""
    import importlib
    import sys

    if reference.folder is not None:
        sys.path.insert(0, str(reference.folder))
    module, _, attribute = reference.target.partition(":")
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    if isinstance(value, Workload) or not callable(value):
        return None
    parameter = inspect.signature(value).parameters.get(name)
    return parameter.default if parameter is not None else None


def _checkpointed(step: Callable[..., Any], policy_name: str) -> Callable[..., Any]:
    @wraps(step)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        with _checkpointing(policy_name):
            return step(*args, **kwargs)

    return checkpointed


@contextmanager
def _checkpointing(policy_name: str) -> Iterator[None]:
    """Replaces `jax.grad` and `jax.value_and_grad` by forms that rematerialise."""
    import jax

    policies = jax.checkpoint_policies
    if policy_name == "offload":
        policy = policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    else:
        policy = getattr(policies, policy_name)

    def rematerialising(transform: Callable[..., Any]) -> Callable[..., Any]:
        def differentiate(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return transform(jax.checkpoint(fun, policy=policy), *args, **kwargs)

        return differentiate

    with (
        patch.object(jax, "grad", rematerialising(jax.grad)),
        patch.object(jax, "value_and_grad", rematerialising(jax.value_and_grad)),
    ):
        yield
