"""jax's private parts that xlapipe needs: the only module that imports `jax._src` or `jaxlib._hlo`.

Each states what it gives, and what happens in a jax without it. `loud` is an error where it is
used, `silent` another plan or a poorer message without an error.
`tests/compile/test_jax_private.py` states what each must do, and runs on every supported jax.
What is public is imported elsewhere. All exist since jax 0.10 unless stated.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
from jax._src import (
    compiler,
    config,
    core,
    custom_partitioning,
    dispatch,
    distributed,
    hardware_utils,
    mesh,
    sharding_impls,
    source_info_util,
    tree_util,
    xla_bridge,
)
from jax._src.checkify import ErrorEffect
from jax._src.cudnn import fused_attention_stablehlo
from jax._src.interpreters import batching, pxla
from jax._src.lax import linalg
from jax._src.lib import xla_client
from jax._src.state.types import ReadEffect, RefEffect
from jax.interpreters import mlir


class ReplacedAttribute(NamedTuple):
    """An attribute that `replaced` replaces."""

    owner: Any
    name: str


# --- Traces -------------------------------------------------------------------------------------

user_frames = source_info_util.user_frames
"""The frames of a traceback that are neither jax's nor excluded. Loud if it is missing; silent if
it returns none: collectives, kernels and policies lose their source lines."""

TracedHere = source_info_util.JaxStackTraceBeforeTransformation
"""The cause of an error while an operation is lowered, with the frames that traced it. Loud if it
is missing; silent if jax gives no such cause: the error states no line of the user's."""

equality_errors = tree_util.equality_errors
"""Where two trees differ in structure: path, both nodes in words, and why. Loud."""

reference_effects = RefEffect
"""What an equation that reads or writes a reference has among its effects. Loud."""

harmless_effects = (
    core.NamedAxisEffect,
    core.InternalMutableArrayEffect,
    ReadEffect,
    ErrorEffect,
)
"""Effects of equations that a checkpoint may compute again. Loud."""

lower_traced = ReplacedAttribute(jax.stages.Traced, "lower")
"""jax's own lowering, public and replaced: what a user's wrapper lowers goes through it. Silent if
jax lowers by another way: nothing is recorded, and `lower_workload` refuses that."""


def is_vmapped() -> bool:
    """Whether what is traced now is under `jax.vmap`.

    Loud without `trace_ctx` or `BatchTrace`; silent if traces are chained otherwise: `choose`
    offers no policy for gradients under `vmap`.
    """
    trace: Any = core.trace_ctx.trace
    while trace is not None and not isinstance(trace, batching.BatchTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def jitted_function(fn: Any) -> ReplacedAttribute | None:
    """The function in a `jax.jit`, as a place; None for other callables.

    Silent without it: updates of modules that `jax.jit` drops are neither listed nor refused.
    """
    is_jit = isinstance(fn, type(jax.jit(len)))
    return (
        ReplacedAttribute(fn, "_fun") if is_jit and getattr(fn, "_fun", None) is not None else None
    )


def is_reference(leaf: Any) -> bool:
    """Whether a leaf of the arguments, or what jax knows of one, is a reference.

    Loud without `jax.Ref`; silent without `_aval`: a reference in a `Lowered` counts as an array,
    and `in_process` refuses it by `compile_args`.
    """
    return isinstance(leaf, jax.Ref) or type(getattr(leaf, "_aval", None)).__name__ == "AbstractRef"


# --- jax's configuration ------------------------------------------------------------------------


def setting_holders() -> dict[str, Any]:
    """jax's settings by name; each has the `value` of this thread. Loud."""
    return dict(config.config._value_holders)


def trace_context() -> tuple[Any, ...]:
    """The values that a trace depends on, those without a name included. Loud."""
    return tuple(config.trace_context())


# --- Lowered steps ------------------------------------------------------------------------------


def lowering_of(lowered: jax.stages.Lowered) -> Any:
    """jax's own object: `compile_args`, `const_args`, `compile`, `stablehlo`. Loud."""
    return lowered._lowering


def stated_in_shardings(traced: jax.stages.Traced) -> list[bool]:
    """For each leaf of the arguments, whether `jax.jit` was given its sharding. Loud."""
    return [isinstance(item, jax.sharding.Sharding) for item in traced._params["in_shardings"]]


def with_other_jaxpr(traced: jax.stages.Traced, jaxpr: Any) -> None:
    """Lets a step be lowered with another jaxpr of the same inputs and outputs. Loud."""
    traced._params = {**traced._params, "jaxpr": jaxpr}


def moves_to_memory(jaxpr: Any) -> bool:
    """Whether a step names memories, which commits its outputs to their device. Loud."""
    return bool(pxla.jaxpr_transfer_mem_kinds(jaxpr))


def compiler_options(lowering: Any) -> dict[str, Any]:
    """The `compiler_options` of the function's `jax.jit`. Loud."""
    return dict(lowering._compiler_options_kvs)


def devices_of(lowering: Any) -> tuple[Any, ...] | None:
    """The devices that shardings of the step name; None if they name none. Loud."""
    devices = lowering._device_list
    return None if devices is None else tuple(devices)


requires_devices = ReplacedAttribute(dispatch, "jaxpr_has_prim_requiring_devices")
"""Whether jax refuses to lower a step under an abstract mesh. Loud: it refuses."""

partition_callbacks = ReplacedAttribute(custom_partitioning, "_sharding_callbacks")
"""Python code that XLA calls while it partitions, by key. Loud: XLA does not find the code."""

partition_key = (custom_partitioning, "id")
"""What makes such a key; Python's own unless it is replaced. Silent: keys are addresses, and two
compiles of a program differ."""

sharding_context_made = ReplacedAttribute(sharding_impls.ShardingContext, "__post_init__")
"""Completes the devices and the mesh of a step that is lowered. Loud: the code is called without a
mesh."""

compile_or_get_cached = ReplacedAttribute(compiler, "compile_or_get_cached")
"""What jax's compile calls with the module and the compile options. Loud: `xla_input` expects one
call with its arguments."""

# --- XLA ----------------------------------------------------------------------------------------

backend_compile_and_load = compiler.backend_compile_and_load
"""jax's call of XLA without the cache of compilations. Loud."""

DeviceList = xla_client.DeviceList
"""Devices as XLA's client takes them. Loud."""

CompileOptions = xla_client.CompileOptions
"""XLA's compile options, from and to a serialised message. Loud."""

get_topology_for_devices = xla_client.get_topology_for_devices
"""The topology of attached devices, with their `target_config`. Loud."""

parse_flatten_op_sharding = sharding_impls.parse_flatten_op_sharding
"""A sharding of XLA's as specs over a mesh. Loud; may go with GSPMD."""


def tiled_sharding(sharding: Any) -> Any:
    """A sharding of XLA's by tiles, which `parse_flatten_op_sharding` takes.

    libtpu's names mesh axes, which ends the process there. Loud; jax 0.10 has neither that form nor
    the conversion.
    """
    if isinstance(sharding, xla_client.OpSharding):
        sharding = xla_client.HloSharding.from_proto(sharding)
    convert = getattr(xla_client.HloSharding, "v3_to_v2_sharding", None)
    return sharding if convert is None else convert(sharding)


def module_text(module: bytes) -> str:
    """A serialised HloModuleProto in the text that XLA makes the keys of autotune results from.

    Loud if it is missing; silent if the text changes: no instruction is found by fingerprint.
    """
    from jaxlib import _hlo  # type: ignore[attr-defined]

    options = _hlo.HloPrintOptions.fingerprint()
    options.print_backend_config = True
    options.print_operand_shape = True
    return str(_hlo.HloModule.from_serialized_hlo_module_proto(module).to_string(options))


def register_triton_dialect(context: Any) -> None:
    """Lets an MLIR context parse Triton's kernels. Loud."""
    from jax._src.lib import triton

    triton.dialect.register_dialect(context)


# --- Devices ------------------------------------------------------------------------------------

amd_gpu_count = ReplacedAttribute(hardware_utils, "num_available_amd_gpus")
"""How many AMD GPUs jax's plugin for ROCm counts before it registers. Loud: without a count the
plugin refuses, and jax knows no platform `rocm`."""

distributed_state = distributed.global_state
"""The client of this process in a group of processes. Loud."""

get_backend = ReplacedAttribute(xla_bridge, "get_backend")
"""What jax asks for the client of a platform. Loud if it is missing; silent if jax asks elsewhere:
a step that asks where it runs is traced for this machine's CPU."""

backend_of_module = ReplacedAttribute(mlir.ModuleContext, "get_backend")
"""What the lowering of a host callback asks. As `get_backend`."""

cuda_versions = (
    ReplacedAttribute(fused_attention_stablehlo, "cuda_versions"),
    ReplacedAttribute(linalg, "cuda_versions"),
)
"""CUDA's libraries, whose versions decide what attention and linear algebra lower to. Silent: a
step lowers as without cuDNN or cuSOLVER, or for the versions that are installed here."""

abstract_device_from = ReplacedAttribute(mesh, "abstract_device_from")
"""The kind of device of a mesh's devices; since jax 0.11. Silent: meshes that a module makes are of
this machine's CPUs to Pallas."""


def pallas_device_kind() -> ReplacedAttribute | None:
    """What Pallas's lowering to Triton asks for the kind of device, an architecture for AMD GPUs.

    Loud: without it, or without a known kind, Pallas refuses to lower. None in a jax without it.
    """
    try:
        from jax._src.pallas.triton import gpu_info
    except ImportError:
        return None
    return ReplacedAttribute(gpu_info, "get_device_kind")


cached_device_answers: tuple[Any, ...] = tuple(
    function
    for name in ("local_devices", "process_count", "process_indices", "host_ids")
    if hasattr(function := getattr(xla_bridge, name, None), "cache_clear")
)
"""jax's cached answers about devices. Silent: answers about this machine stay in a trace for the
target."""


@contextmanager
def replaced(place: ReplacedAttribute, value: Any) -> Iterator[Any]:
    """Replaces an attribute of jax's, which must have it, for a block, and gives the original."""
    original = getattr(place.owner, place.name)
    setattr(place.owner, place.name, value)
    try:
        yield original
    finally:
        setattr(place.owner, place.name, original)
