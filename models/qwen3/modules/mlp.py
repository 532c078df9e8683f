"""The SwiGLU feed-forward layer."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from models.qwen3.config import Qwen3Config
from models.qwen3.modules.projection import Projection


class MLP(nnx.Module):
    """`down(silu(gate(x)) * up(x))`, with gate and up in one projection: gate's rows first."""

    def __init__(self, config: Qwen3Config, *, rngs: nnx.Rngs) -> None:
        self.gate_up_proj = Projection(
            config.hidden_size, 2 * config.intermediate_size, dtype=config.dtype, rngs=rngs
        )
        self.down_proj = Projection(
            config.intermediate_size, config.hidden_size, dtype=config.dtype, rngs=rngs
        )

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """x and the result [..., D]; silu in float32."""
        with jax.named_scope("gate_up_proj"):
            gate_up = self.gate_up_proj(x)
        with jax.named_scope("swiglu"):
            gate, up = jnp.split(gate_up.astype(jnp.float32), 2, axis=-1)
            activated = (jax.nn.silu(gate) * up).astype(x.dtype)
        with jax.named_scope("down_proj"):
            return self.down_proj(activated)
