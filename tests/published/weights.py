"""Weights that a program declares by using them, so that no list of their shapes is written."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.published.transformer import adamw_step
from xlapipe import Workload


class Weights:
    """Weights by name: without values, those that are asked for are noted."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = {} if values is None else values
        self.noted = values is None

    def __call__(self, name: str, *shape: int, dtype: Any = jnp.float32) -> Any:
        if not self.noted:
            return self.values[name]
        self.values[name] = jax.ShapeDtypeStruct(shape, dtype)
        return jnp.zeros(shape, dtype)

    def stack(
        self, name: str, count: int, layer: Callable[..., Any], carry: Any, *inputs: Any
    ) -> Any:
        """Layers in a loop, each with its own weights: `layer(weights, carry, *inputs)`."""
        if not self.noted:

            def step(carry: Any, own: Any) -> Any:
                return layer(Weights(own[0]), carry, *own[1:]), None

            return lax.scan(step, carry, (self.values[name], *inputs))[0]
        first = jax.tree.map(lambda leaf: leaf[0], inputs)
        carry = self.inside(name, layer, carry, *first)
        self.values[name] = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), self.values[name]
        )
        return carry

    def inside(self, name: str, part: Callable[..., Any], *inputs: Any) -> Any:
        """`part(weights, *inputs)`, whose weights are its own."""
        if not self.noted:
            return part(Weights(self.values[name]), *inputs)
        own = Weights()
        result = part(own, *inputs)
        self.values[name] = own.values
        return result


def linear(w: Weights, name: str, x: Any, width: int, precision: Any = None) -> Any:
    return jnp.matmul(x, w(name, x.shape[-1], width, dtype=x.dtype), precision=precision)


def gated(w: Weights, name: str, x: Any, width: int, function: Callable[[Any], Any]) -> Any:
    gate, value = jnp.split(linear(w, name, x, 2 * width), 2, -1)
    return function(gate) * value


def norm(x: Any, axis: int = -1) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(axis, keepdims=True)
    scale = lax.rsqrt((wide * wide).mean(axis, keepdims=True) + 1e-5)
    return (wide * scale).astype(x.dtype)


def workload(
    name: str,
    program: Callable[[Weights, Any], Any],
    inputs: Mapping[str, tuple[tuple[int, ...], Any]],
    options: Any,
    *,
    train: bool = False,
) -> Workload:
    """The call of `program` with weights and inputs, or a step of AdamW where it is a loss."""
    arrays = {key: jax.ShapeDtypeStruct(*given) for key, given in inputs.items()}
    noted = Weights()
    jax.eval_shape(partial(program, noted), arrays)

    def call(values: dict[str, Any], given: Any) -> Any:
        return program(Weights(values), given)

    return Workload(
        name=name,
        fn=partial(adamw_step, call, 1) if train else call,
        args=((noted.values,) * 3 if train else noted.values, arrays),
        donate_argnums=0 if train else (),
        options=options or {},
    )
