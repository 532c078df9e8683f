"""From a Workload to a lowered program: the only code here that knows jax's stages.

Lowering asks for no GPU and no CUDA plugin: StableHLO for CUDA is made anywhere. It runs in the
compiling child, and, for functions that only a test knows, in the test's own process.
"""

import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import source_info_util
from jax._src.interpreters import mlir, pxla
from jax.sharding import AbstractMesh, NamedSharding

from xlapipe.errors import ParameterError, WorkloadError
from xlapipe.expect import expectation_to_json
from xlapipe.lowering.argument_sharding import (
    argument_names,
    is_spec,
    mesh_of,
    shard_bytes,
    with_shardings,
)
from xlapipe.lowering.jaxpr_collectives import requested_collectives
from xlapipe.lowering.lowered_program import LoweredProgram
from xlapipe.lowering.specs import spec_of
from xlapipe.lowering.strip_kernel_locations import strip_locations
from xlapipe.plan.program import ArgumentLeaf, OutputLeaf
from xlapipe.platforms import NVIDIA, Platform
from xlapipe.registry import WorkloadReference
from xlapipe.workload import Workload

# Frames of xlapipe's own in HLO would change every dump with each line that is added here.
source_info_util.register_exclusion(__file__)


def load_workload(reference: WorkloadReference, *, devices: int | None = None) -> Workload:
    """Imports the module of a reference, and calls the function if the attribute is one.

    Args:
      reference: its folder goes first on `sys.path`, and stays there.
      devices: of the topology that is asked for; passed on to a function that takes `devices` and
        that the reference does not give any.

    Raises:
      WorkloadError: the attribute is missing or is no Workload, or takes no arguments. What the
        user's code raises passes through.
      ParameterError: the function has no such parameter.
    """
    module_name, _, attribute = reference.target.partition(":")
    if reference.folder is not None:
        sys.path.insert(0, str(reference.folder))
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [n for n in dir(found) if not n.startswith("_")]
            raise WorkloadError(
                f"{reference}: {module_name} has no attribute {part!r}; it has {', '.join(names)}"
            )
        found = getattr(found, part)
    if callable(found) and not isinstance(found, Workload):
        given = dict(reference.arguments or {})
        if devices is not None and "devices" in inspect.signature(found).parameters:
            given.setdefault("devices", devices)
        _check_parameters(reference, found, given)
        found = found(**given)
    elif reference.arguments is not None:
        raise WorkloadError(f"{reference}: {attribute} is no function, and takes no arguments")
    if not isinstance(found, Workload):
        raise WorkloadError(
            f"{reference}: expected a xlapipe.Workload or a function that returns one, "
            f"found {type(found).__name__}"
        )
    return found


def _check_parameters(
    reference: WorkloadReference, function: Any, given: Mapping[str, Any]
) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    names = [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ParameterError(
            f"{reference}: no parameter {' or '.join(map(repr, unknown))}; "
            f"it has {', '.join(names) or 'none'}"
        )


def lower(workload: Workload, config_text: str, *, platform: Platform = NVIDIA) -> LoweredProgram:
    """Traces and lowers `workload` for the device that the target config describes.

    Raises:
      WorkloadError: arguments that are no arrays, or specs that do not fit. What the user's
        function raises passes through.
    """
    mesh = mesh_of(workload, platform.abstract_device(config_text))
    args = with_shardings(workload, mesh)
    jitted = _jitted(workload, mesh)
    with jax.sharding.use_abstract_mesh(mesh), _without_donation_warnings():
        traced = jitted.trace(*args)
        lowered = traced.lower(lowering_platforms=(platform.name,))
    module = lowered._lowering.stablehlo()
    strip_locations(module)
    # jit drops leaves that the program does not use; only these private fields tell which.
    details = lowered._lowering.compile_args
    to_parameters, to_outputs = pxla.get_prop_to_input_output(
        details["in_shardings"], details["out_shardings"], len(details["ordered_effects"])
    )
    return LoweredProgram(
        workload=workload.name,
        stablehlo=mlir.module_to_bytecode(module),
        arguments=_arguments(workload, args, lowered),
        outputs=_outputs(lowered),
        requested_collectives=requested_collectives(traced.jaxpr),
        device_count=workload.device_count,
        propagate_to_parameters=tuple(to_parameters),
        propagate_to_outputs=tuple(to_outputs),
        options=dict(workload.options),
        mesh=dict(workload.mesh) if workload.mesh is not None else None,
        expectations=tuple(expectation_to_json(item) for item in workload.expectations),
    )


def _jitted(workload: Workload, mesh: AbstractMesh) -> Any:
    """The step under jit; one that is jitted already keeps its own donation."""
    if isinstance(workload.fn, type(jax.jit(len))):
        if workload.donated or workload.mesh is not None:
            raise WorkloadError(
                f"workload {workload.name}: fn is jitted already, and keeps its own donation and "
                "sharding: leave donate_argnums and mesh out, or give the function before jit"
            )
        return workload.fn
    shardings = {}
    if workload.out_specs is not None:
        shardings["out_shardings"] = jax.tree.map(
            lambda spec: NamedSharding(mesh, spec), workload.out_specs, is_leaf=is_spec
        )
    return jax.jit(workload.fn, donate_argnums=workload.donated, **shardings)


@contextmanager
def _without_donation_warnings() -> Iterator[None]:
    """jax warns of some donations that fail; the plan tells of every one, and why."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield


def _arguments(workload: Workload, args: tuple[Any, ...], lowered: Any) -> tuple[ArgumentLeaf, ...]:
    kept = sorted(lowered._lowering.compile_args["kept_var_idx"])
    number_of = {leaf: number for number, leaf in enumerate(kept)}
    donated = [info.donated for info in jax.tree.leaves(lowered.args_info)]
    named = [
        (f"{name}{jax.tree_util.keystr(path)}", leaf)
        for name, arg in zip(argument_names(workload), args, strict=True)
        for path, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]
    ]
    leaves = [(*each, flag) for each, flag in zip(named, donated, strict=True)]
    several = workload.device_count > 1
    return tuple(
        ArgumentLeaf(
            path=path,
            shape=tuple(leaf.shape),
            dtype=str(leaf.dtype),
            size_bytes=shard_bytes(leaf),
            donated=donated,
            parameter_number=number_of.get(position),
            spec=spec_of(getattr(leaf, "sharding", None)) if several else None,
        )
        for position, (path, leaf, donated) in enumerate(leaves)
    )


def _outputs(lowered: Any) -> tuple[OutputLeaf, ...]:
    flat = jax.tree_util.tree_flatten_with_path(lowered.out_info)[0]
    return tuple(
        OutputLeaf(
            path=f"out{jax.tree_util.keystr(path)}",
            shape=tuple(leaf.shape),
            dtype=str(leaf.dtype),
            size_bytes=shard_bytes(leaf),
            index=index,
        )
        for index, (path, leaf) in enumerate(flat)
    )


def user_frame(error: BaseException) -> str | None:
    """`file:line in function: code` of the innermost frame of the user's own code."""
    import traceback

    here = os.path.dirname(os.path.dirname(__file__))
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        library = any(part in frame.filename for part in ("site-packages", "dist-packages"))
        if library or frame.filename.startswith((here, "<", sys.base_prefix)):
            continue
        found = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return found
