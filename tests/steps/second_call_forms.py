"""Steps whose outputs go in again: what jax compiles on four CPUs, and what xlapipe predicts.

Run as a script, it prints both as JSON. A form is a function, its state, and options of `jax.jit`;
what it returns is the state of the next call.
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import xlapipe
from tests.shared.programs import with_facts
from xlapipe import Workload
from xlapipe.compile.lowering.lower import lower
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.plans.second_call import second_call

CALLS = 2
W = np.ones((8, 8), np.float32)


@dataclass(frozen=True)
class Form:
    fn: Callable[..., Any]
    state: Any
    options: dict[str, Any] = field(default_factory=dict)


class Pair(NamedTuple):
    a: Any
    b: Any


def on_one_device() -> dict[str, Form]:
    ones = jnp.ones((8, 8))
    device = jax.devices()[0]
    placed = jax.device_put(W, device)
    transposed = Format(Layout((1, 0)), SingleDeviceSharding(device))
    layout = jax.device_put(W, transposed)
    return {
        "python int": Form(lambda s: s + 1, 0),
        "python int becomes an array": Form(lambda s: s + jnp.int32(1), 0),
        "python float becomes an array": Form(lambda s: s * jnp.float32(2), 1.0),
        "python int becomes a float": Form(lambda s: s * 0.5, 4),
        "python bool": Form(lambda s: s, True),
        "numpy": Form(lambda s: s + 1, W),
        "numpy float64": Form(lambda s: s + 1, W.astype(np.float64)),
        "numpy scalar": Form(lambda s: s + 1, np.float32(0)),
        "array": Form(lambda s: s + 1, ones),
        "bfloat16 becomes float32": Form(lambda s: s + W, ones.astype(jnp.bfloat16)),
        "float32 kept by a cast": Form(lambda s: (s * 2).astype(s.dtype), ones),
        "weak array": Form(lambda s: s * 2, jnp.asarray(1.0)),
        "weak array becomes strong": Form(lambda s: s * np.float32(2), jnp.asarray(1.0)),
        "strong becomes weak": Form(lambda s: jnp.where(s > 0, 1.0, 2.0), jnp.float32(1)),
        "weak step beside arrays": Form(
            lambda s: {"w": s["w"] + 1, "n": s["n"] + 1}, {"w": W, "n": 0}
        ),
        "weak learning rate": Form(
            lambda s: {"w": s["w"] * s["lr"], "lr": s["lr"] * np.float32(0.9)}, {"w": W, "lr": 0.1}
        ),
        "unused leaf of another dtype": Form(
            lambda s: {"w": s["w"] + 1, "n": jnp.ones(8, jnp.bfloat16)},
            {"w": ones, "n": np.ones(8, np.float32)},
        ),
        "passed through": Form(lambda s: {"w": s["w"] + 1, "n": s["n"]}, {"w": ones, "n": 3}),
        "None becomes an array": Form(
            lambda s: {"w": s["w"] + 1, "m": s["w"] if s["m"] is None else s["m"]},
            {"w": ones, "m": None},
        ),
        "None is kept": Form(lambda s: {"w": s["w"] + 1, "m": None}, {"w": ones, "m": None}),
        "list becomes a tuple": Form(lambda s: tuple(x + 1 for x in s), [ones, ones]),
        "named tuple becomes a tuple": Form(lambda s: (s[0] + 1, s[1]), Pair(ones, ones)),
        "grows": Form(lambda s: jnp.concatenate([s, s]), jnp.ones(3)),
        "a leaf is added": Form(lambda s: {**s, "m": s["w"]}, {"w": ones}),
        "key": Form(lambda s: jax.random.split(s)[0], jax.random.key(0)),
        "raw key": Form(lambda s: jax.random.split(s)[0], jax.random.PRNGKey(0)),
        "committed": Form(lambda s: s + 1, placed),
        "committed beside uncommitted": Form(
            lambda s: {"a": s["a"] + s["b"].sum(), "b": s["b"]}, {"a": ones, "b": placed}
        ),
        "placed inside": Form(lambda s: jax.device_put(s + 1, device), ones),
        "committed beside an unused leaf": Form(
            lambda s: {"a": s["a"] + 1, "b": jnp.zeros(8)},
            {"a": placed, "b": np.zeros(8, np.float32)},
        ),
        "layout": Form(lambda s: s + 1, layout),
        "layout kept": Form(lambda s: s + 1, layout, {"out_shardings": transposed}),
        "donated": Form(lambda s: s + 1, jnp.ones((8, 8)), {"donate_argnums": 0}),
        "donated of another dtype": Form(
            lambda s: (s + W).astype(jnp.float16), jnp.ones((8, 8)), {"donate_argnums": 0}
        ),
    }


def over_a_mesh() -> dict[str, Form]:
    devices = np.array(jax.devices())
    mesh, flat = Mesh(devices, ("x",)), Mesh(devices.reshape(4, 1), ("x", "y"))
    explicit = Mesh(devices, ("x",), axis_types=(AxisType.Explicit,))

    def at(*spec: Any, mesh: Mesh = mesh) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*spec))

    split = jax.device_put(W, at("x"))
    vector = np.ones(8, np.float32)

    def both(s: Any) -> Any:
        return {"w": s["w"] + 1, "n": s["n"] + 1}

    return {
        "sharded": Form(lambda s: s + 1, split),
        "None at the end of a spec": Form(lambda s: s + 1, jax.device_put(W, at("x", None))),
        "replicated": Form(lambda s: s + 1, jax.device_put(W, at(None, None))),
        "transposed": Form(lambda s: s.T + 1, split),
        "gathered": Form(lambda s: jax.lax.with_sharding_constraint(s, at()), split),
        "axis of one device": Form(
            both,
            {
                "w": jax.device_put(W, at("x", mesh=flat)),
                "n": jax.device_put(W, at("y", mesh=flat)),
            },
        ),
        "python int beside sharded": Form(both, {"w": split, "n": 0}),
        "numpy beside sharded": Form(both, {"w": split, "n": vector}),
        "uncommitted beside sharded": Form(both, {"w": split, "n": jnp.int32(0)}),
        "replicated scalar beside sharded": Form(both, {"w": split, "n": jax.device_put(0, at())}),
        "out_shardings": Form(lambda s: s + 1, split, {"out_shardings": at()}),
        "in_shardings of an uncommitted array": Form(lambda s: s + 1, W, {"in_shardings": at("x")}),
        "in_shardings that the output has not": Form(
            lambda s: s.T + 1, split, {"in_shardings": at("x")}
        ),
        "explicit": Form(lambda s: s * 2, jax.device_put(W, at("x", mesh=explicit))),
        "explicit transposed": Form(lambda s: s.T * 2, jax.device_put(W, at("x", mesh=explicit))),
    }


class Compiles(logging.Handler):
    """Counts the programs of functions named `step`."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("Compiling jit(step)")


def compiles_of_jax(form: Form) -> list[int | str]:
    """Programs that jax compiles at each call; an error's name for a call that fails."""
    handler = Compiles()
    logger = logging.getLogger("jax._src.interpreters.pxla")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    counts: list[int | str] = []
    fn, state = _step(form), form.state
    try:
        for _ in range(CALLS):
            before = handler.count
            state = fn(state)
            counts.append(handler.count - before)
    except ValueError as error:
        counts.append(type(error).__name__)
    finally:
        logger.removeHandler(handler)
    return counts


def _step(form: Form) -> Any:
    def step(s: Any) -> Any:
        return form.fn(s)

    return jax.jit(step, **form.options)


def _workload(form: Form) -> Workload:
    # A single array has no path, and a named tuple other paths than a tuple.
    is_stated = isinstance(form.state, Pair) or jax.tree.structure(
        form.state
    ) == jax.tree.structure(0)
    carry: Any = {"s": "out"} if is_stated else {}
    return Workload(name="form", fn=_step(form), args=(form.state,), carry=carry)


def predictions() -> dict[str, str]:
    """What xlapipe predicts of each form's second call; empty if nothing is compiled."""
    texts = {}
    plan = xlapipe.plan(_workload(Form(lambda s: s + 1, W))).program
    for name, form in on_one_device().items():
        # XLA decides nothing of the places of arrays of one device.
        made = lower(_workload(form), target_named("h200").config_text)
        texts[name] = second_call(
            with_facts(plan, arguments=made.arguments, outputs=made.outputs, call=made.call)
        )
    for name, form in over_a_mesh().items():
        texts[name] = second_call(xlapipe.plan(_workload(form)).program)
    return texts


if __name__ == "__main__":
    predicted = predictions()
    every = {**on_one_device(), **over_a_mesh()}
    counts = {
        name: compiles_of_jax(form) for name, form in every.items()
    }  # deletes what is donated
    json.dump({"jax": counts, "xlapipe": predicted}, sys.stdout)
