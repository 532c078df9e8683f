"""Steps of MaxText, over four devices: its own train step, as its ahead-of-time compile jits it.

In a module, and so in a process, of their own: MaxText makes its mesh of jax's devices.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import maxtext
from flax.linen.partitioning import axis_rules
from jax.sharding import Mesh
from maxtext.configs import pyconfig
from maxtext.trainers.pre_train import train, train_compile
from maxtext.utils import maxtext_utils, sharding

from tests.public.step import Step

DEVICE_COUNT = 4
jax.config.update("jax_num_cpu_devices", DEVICE_COUNT)

_CONFIG = Path(maxtext.__file__).parent / "configs" / "base.yml"
_TINY = {
    "run_name": "tiny",
    "base_output_directory": tempfile.gettempdir(),
    "hardware": "cpu",
    "attention": "dot_product",
    "dataset_type": "synthetic",
    "vocab_size": 256,
    "base_emb_dim": 64,
    "base_mlp_dim": 128,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 2,
    "base_num_decoder_layers": 2,
    "head_dim": 16,
    "max_target_length": 32,
    "per_device_batch_size": 1,
    "enable_checkpointing": False,
    "enable_goodput_recording": False,
    "monitor_goodput": False,
    "skip_jax_distributed_system": True,
    "log_config": False,
}


def _train(devices: Sequence[Any], **config_fields: Any) -> Step:
    config = pyconfig.initialize(["train", str(_CONFIG)], **{**_TINY, **config_fields})
    mesh = Mesh(maxtext_utils.create_device_mesh(config, devices), config.mesh_axes)
    args, kwargs, state, _, model = train_compile.get_shaped_inputs(mesh, config)
    assert not kwargs
    params, state = sharding.maybe_update_params_sharding_with_opt(config, state)
    fn, in_shardings, out_shardings, static, donated = (
        maxtext_utils.get_functional_train_with_signature(
            train.train_step,
            sharding.get_input_data_sharding(config, mesh),
            sharding.build_zero1_input_state_mesh_shardings(config, state, params),
            model,
            config,
            params,
        )
    )

    def step(state: Any, batch: Any) -> Any:
        with axis_rules(config.logical_axis_rules):
            return fn(state, batch)

    jitted = jax.jit(
        step,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        static_argnums=static,
        donate_argnums=donated,
    )
    return Step(jitted, tuple(args), mesh=mesh)


def maxtext_train(devices: Sequence[Any]) -> Step:
    return _train(devices, ici_fsdp_parallelism=4)


def maxtext_tensor_parallel(devices: Sequence[Any]) -> Step:
    return _train(devices, ici_tensor_parallelism=2, ici_fsdp_parallelism=2)
