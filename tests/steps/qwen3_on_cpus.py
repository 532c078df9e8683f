"""Runs sharded Qwen3 on 1 and 8 CPU devices and writes its results: `qwen3_on_cpus.py OUT.npz`.

Runs in a separate process, since jax reads the number of CPU devices once per process.
"""

import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import install_import_hook

with install_import_hook("models.qwen3", "beartype.beartype"):
    from models.qwen3.config import Qwen3Config
    from models.qwen3.modules.cache import init_cache
    from models.qwen3.sharded import forward, loss
    from models.qwen3.sharded.train import TARGETS, TOKENS, optimizer, state_specs, train_step
    from models.qwen3.steps import abstract_model, nnx

TIED = Qwen3Config(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=8,
    rope_theta=100.0,
    dtype="float32",
)
CONFIGS = {"tied": TIED, "untied": replace(TIED, tie_word_embeddings=False)}
BATCH, SEQ = 8, 16

# Small values, so that there are several parts of each, as for large models.
forward.QUERIES_AT_ONCE, loss.TOKENS_AT_ONCE = 32, 16


def main(out: str) -> None:
    results: dict[str, Any] = {}
    for name, config in CONFIGS.items():
        graphdef, abstract = abstract_model(config)
        params = random_like(abstract)
        results |= flat(f"{name}/model", whole_model(graphdef, params, config))
        stacked = stacked_weights(params, config)
        results |= flat(f"{name}/start", {"weights": stacked})
        results |= flat(f"{name}/2x4", trained(stacked, config, 2, 4))
        if config is TIED:
            results |= flat("1x1", trained(stacked, config, 1, 1))
            results |= flat("unrolled", trained(stacked, config, 4, 2, unrolled=True))
    np.savez(out, **results)


def stacked_weights(params: Any, config: Qwen3Config) -> dict[str, Any]:
    """The parameters of `steps.abstract_model`, in the layout of `weight_layout`."""
    layers = [_layer(params["layers"][i], config) for i in range(config.num_hidden_layers)]
    stacked: dict[str, Any] = {
        "embed": params["embed"]["weight"].T,
        "final_norm": params["final_norm"]["scale"],
        "layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers),
    }
    if not config.tie_word_embeddings:
        stacked["lm_head"] = params["lm_head"]["weight"].T
    return stacked


def _layer(block: Any, config: Qwen3Config) -> dict[str, jax.Array]:
    attention, mlp = block["attention"], block["mlp"]
    group = (config.num_key_value_heads, config.queries_per_kv_head, config.head_dim)
    gate_up = mlp["gate_up_proj"]["weight"].reshape(2, config.intermediate_size, -1)
    return {
        "input_norm": block["input_norm"]["scale"],
        "qkv": _by_kv_head(attention["qkv_proj"]["weight"], config),
        "q_norm": attention["q_norm"]["scale"],
        "k_norm": attention["k_norm"]["scale"],
        "o": attention["o_proj"]["weight"].reshape(-1, *group),
        "post_attention_norm": block["post_attention_norm"]["scale"],
        "gate_up": jnp.moveaxis(gate_up, -1, 0),
        "down": mlp["down_proj"]["weight"],
    }


def _by_kv_head(weight: jax.Array, config: Qwen3Config) -> jax.Array:
    """Regroups rows from all queries, all keys, all values to those of each key/value head."""
    kv_heads, width = config.num_key_value_heads, config.head_dim
    parts = jnp.split(weight, [config.q_size, config.q_size + config.kv_size])
    per_head = [part.reshape(kv_heads, -1, width, weight.shape[1]) for part in parts]
    return jnp.moveaxis(jnp.concatenate(per_head, axis=1), -1, 0)


def flat(prefix: str, tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {f"{prefix}/{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}


def random_like(abstract: Any) -> Any:
    leaves, tree = jax.tree.flatten(abstract)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    arrays = [jax.random.normal(k, leaf.shape) / 5 for k, leaf in zip(keys, leaves, strict=True)]
    return tree.unflatten(arrays)


def tokens_and_targets() -> tuple[Any, Any]:
    tokens = jax.random.randint(jax.random.key(1), (BATCH, SEQ), 0, TIED.vocab_size)
    # The last token of each sequence, and the last half of one sequence, have no targets.
    targets = jnp.roll(tokens, -1, 1).at[:, -1].set(-1).at[2, SEQ // 2 :].set(-1)
    return tokens, targets


def whole_model(graphdef: Any, params: Any, config: Qwen3Config) -> dict[str, Any]:
    """Loss and gradients through the unsharded model, from all logits."""
    tokens, targets = tokens_and_targets()
    positions = jnp.broadcast_to(jnp.arange(SEQ), tokens.shape)

    def mean_loss(params: Any) -> Any:
        model = nnx.merge(graphdef, params)
        x, _ = model(tokens, positions, init_cache(config, batch=BATCH, cache_length=SEQ))
        logits = model.logits(x.reshape(-1, config.hidden_size)).reshape(BATCH, SEQ, -1)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None] % 64, -1)
        return -jnp.where(targets >= 0, chosen[..., 0], 0).sum() / (targets >= 0).sum()

    value, gradients = jax.jit(jax.value_and_grad(mean_loss))(params)
    return {"loss": value, "gradients": stacked_weights(gradients, config)}


def trained(
    weights: Any, config: Qwen3Config, fsdp: int, tensor: int, *, unrolled: bool = False
) -> dict[str, Any]:
    """Loss, gradients (from the first moment) and weights after one step."""
    mesh = mesh_of(fsdp, tensor)
    state = {"params": weights, "optimizer": optimizer().init(weights)}
    tokens, targets = tokens_and_targets()
    arguments = (
        placed(state, state_specs(config), mesh),
        placed(tokens, TOKENS, mesh),
        placed(targets, TARGETS, mesh),
    )
    with jax.set_mesh(mesh):
        after, value = jax.jit(train_step(config, unrolled=unrolled))(*arguments)
    moment = after["optimizer"][0].mu
    gradients = jax.tree.map(lambda leaf: leaf / 0.1, moment)
    return {"loss": value, "gradients": gradients, "weights": after["params"]}


def mesh_of(others: int, tensor: int) -> Mesh:
    devices = np.array(jax.devices()[: others * tensor]).reshape(others, tensor)
    return Mesh(devices, ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)


def placed(tree: Any, specs: Any, mesh: Mesh) -> Any:
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )
    return jax.device_put(tree, shardings)


if __name__ == "__main__":
    main(sys.argv[1])
