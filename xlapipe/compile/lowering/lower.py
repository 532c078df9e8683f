"""From a Workload to a lowered program.

Lowering needs neither a GPU nor the CUDA plugin: StableHLO for CUDA is made anywhere. It runs in
the compiling child, or, for functions that only a test knows, in the test's own process.

1. `arguments` makes the arguments abstract and keeps what they carry.
2. `wrapped_steps` lowers a step through its own wrapper, if it has one; others go under `jax.jit`.
3. Meanwhile `target_devices` gives the target's devices to code that asks jax where it runs.
"""

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import jax
from jax.extend import source_info_util
from jax.sharding import AbstractMesh, NamedSharding

from xlapipe.compile.lowering.arguments import (
    AbstractArray,
    call_arguments,
    refuse_changed_leaves,
)
from xlapipe.compile.lowering.call_facts import TracedCall
from xlapipe.compile.lowering.forward_values import named_values
from xlapipe.compile.lowering.inner_jits import (
    refuse_lost_in_inner_jits,
    refusing_options_of_inner_jits,
)
from xlapipe.compile.lowering.jaxprs import dependent_outputs, requested_collectives
from xlapipe.compile.lowering.jit_parameters import (
    dropped_donations,
    jit_device,
    refuse_other_device,
)
from xlapipe.compile.lowering.kernel_codes import kernel_codes, stated_costs
from xlapipe.compile.lowering.leaves import argument_leaves, output_leaves, same_buffers
from xlapipe.compile.lowering.lost_updates import (
    listing_lost_updates,
    lost_updates_error,
    refuse_empty_program,
)
from xlapipe.compile.lowering.meshes import axes_of, context_mesh, is_spec, mesh_inside
from xlapipe.compile.lowering.module_kernels import stripped_bytecode
from xlapipe.compile.lowering.names import fn_text, refuse_other_signature
from xlapipe.compile.lowering.target_devices import (
    TargetClient,
    target_in_place_of_cpu,
    with_devices,
)
from xlapipe.compile.lowering.wrapped_steps import (
    EQUINOX_MARKER,
    EquinoxFilterJit,
    TracedStep,
    WrappedStep,
    record_lowering,
    wrapped_step,
)
from xlapipe.compile.lowering.xla_input import current_settings, refuse_changed_settings, xla_input
from xlapipe.compile.messages import LoweredProgram
from xlapipe.devices.platforms import NVIDIA, PLATFORMS, Platform
from xlapipe.devices.targets.topology import DeviceTopology
from xlapipe.errors import WorkloadError
from xlapipe.expect import Expectation, expectation_to_json
from xlapipe.workload import Workload

_NOT_AN_ARRAY = re.compile(
    r"value is of type (?P<type>.+?) and was passed .* at path (?P<path>\S+)\."
)
# Part of jax's message about arguments on other devices than what the step names itself.
_OTHER_DEVICES = "Received incompatible devices for jitted computation"
_OTHER_SIZE = "does not match the device assignment size"
_OTHER_MESH = re.compile(r"context mesh .* should match the mesh passed to shard_map (?P<mesh>.+)")
# Fields of a Workload that state how to jit; a function that is jitted already has them itself.
_JIT_FIELDS = (
    "donate_argnums",
    "donate_argnames",
    "static_argnums",
    "static_argnames",
    "out_specs",
)
# Frames of xlapipe in HLO would change every dump with each line that is added here.
source_info_util.register_exclusion(os.path.dirname(__file__))


def lower(
    workload: Workload,
    config_text: str,
    *,
    platform: Platform = NVIDIA,
    topology: DeviceTopology | None = None,
) -> LoweredProgram:
    """Traces and lowers `workload` for the device that the target config describes."""
    try:
        return _lower(workload, config_text, platform, topology)
    except ValueError as error:
        if _OTHER_DEVICES not in str(error):
            raise
    # The step has arrays or a mesh elsewhere than the arguments.
    with _clear_errors(workload, _OTHER_DEVICES):
        return _lower(workload, config_text, platform, topology, committed=False)


def _lower(
    workload: Workload,
    config_text: str,
    platform: Platform,
    topology: DeviceTopology | None,
    *,
    committed: bool = True,
    axes_inside: Mapping[str, int] | None = None,
) -> LoweredProgram:
    """As `lower`.

    Arguments of one device that are committed, as jax calls it, are on the target's; otherwise they
    are where the step's own arrays are.
    """
    refuse_other_device(workload)
    settings = current_settings()
    figures = platform.device_figures(config_text)
    axes = axes_inside or axes_of(workload)
    device_count = prod((axes or {}).values())
    fits = topology is not None and topology.device_count == device_count
    hosts, per_host = (topology.hosts, topology.gpus) if topology and fits else (1, device_count)
    client = TargetClient(figures, hosts, per_host)
    mesh = context_mesh(workload, figures)
    step = _step(workload, mesh)
    is_jitted = wrapped_step(workload) is not None
    device = None if axes is not None else jit_device(workload.fn) or client.devices()[0]

    arguments = call_arguments(
        workload,
        mesh,
        device,
        array_type=AbstractArray if isinstance(step, EquinoxFilterJit) else jax.ShapeDtypeStruct,
        wrapped=is_jitted,
        committed=committed,
    )
    refuse_changed_leaves(workload, arguments)
    refuse_other_signature(workload)

    with (
        target_in_place_of_cpu(client),
        jax.sharding.use_abstract_mesh(mesh),
        with_devices(client.devices(), mesh),
        _without_donation_warnings(),
        _clear_errors(workload, _OTHER_SIZE),
        refusing_options_of_inner_jits(workload),
        record_lowering(step, arguments, platform.name) as recorded,
        listing_lost_updates(step.fn, (workload.args, workload.kwargs)) as lost,
    ):
        refuse_changed_settings(workload.name, settings)
        step.lower(arguments)
    if lost and not is_jitted:
        raise lost_updates_error(workload, lost)
    traced = replace(_only(workload, recorded), dropped_updates=tuple(lost))
    named_inside = mesh_inside(workload, traced.lowering, device_count)
    if named_inside is not None:
        # The number of devices is known after the first time.
        return _lower(workload, config_text, platform, topology, axes_inside=named_inside)
    _refuse_leaked_tracers(workload, traced.traced)
    refuse_lost_in_inner_jits(workload, traced.traced, is_jitted=is_jitted)
    refuse_empty_program(workload, traced.traced, traced.lowering)
    program = _lowered_program(workload, traced, axes, tuple(client.devices()), platform)
    several = len(client.devices()) > 1
    return replace(program, call=TracedCall(workload, traced, several).facts())


def _step(workload: Workload, mesh: AbstractMesh) -> WrappedStep:
    """The step with its own wrapper, or under `jax.jit` with the workload's options."""
    wrapped = wrapped_step(workload)
    if wrapped is not None:
        stated = [name for name in _JIT_FIELDS if getattr(workload, name) not in ((), None)]
        if stated:
            raise WorkloadError(
                f"{fn_text(workload)} is jitted already, and its own donation, static "
                f"arguments and output shardings apply; fix: leave {', '.join(stated)} out, or "
                "give the function before it was jitted"
            )
        return wrapped
    shardings = {}
    if workload.out_specs is not None:
        shardings["out_shardings"] = jax.tree.map(
            lambda spec: NamedSharding(mesh, spec), workload.out_specs, is_leaf=is_spec
        )
    jitted = jax.jit(
        workload.fn,
        # jax infers numbers from names, and names from numbers, only where the others are None.
        donate_argnums=workload.donated or None,
        donate_argnames=workload.donated_names or None,
        static_argnums=workload.static_positions or None,
        static_argnames=workload.static_names or None,
        **shardings,
    )
    return WrappedStep(jitted)


def _only(workload: Workload, recorded: Sequence[TracedStep]) -> TracedStep:
    if len(recorded) != 1:
        raise WorkloadError(
            f"{fn_text(workload)} lowers {len(recorded)} programs, expected one; fix: call "
            "lower() of other functions outside of the step, and give the function that is jitted"
        )
    return recorded[0]


def _refuse_leaked_tracers(workload: Workload, traced: Any) -> None:
    """Refuses values of another trace, which jax would lower as parameters without arguments."""
    for value in traced._consts:
        if isinstance(value, jax.core.Tracer):
            raise WorkloadError(
                f"{fn_text(workload)} uses a {value.aval.str_short()} that another trace "
                "computed, such as jax.eval_shape of a model whose functions close over arrays; "
                "expected arrays and abstract arguments; fix: create what fn closes over, and "
                "models that hold functions, without eval_shape"
            )


def _lowered_program(
    workload: Workload,
    step: TracedStep,
    axes: Mapping[str, int] | None,
    devices: tuple[Any, ...],
    platform: Platform,
) -> LoweredProgram:
    given = xla_input(fn_text(workload), step.lowering, devices)
    jaxpr = step.traced.jaxpr
    arguments = argument_leaves(
        step.lowered,
        step.argument_names,
        given=[getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(step.arguments.dynamic)],
        dropped=dropped_donations(step.step.fn),
        several=len(devices) > 1,
    )
    same = same_buffers(workload)
    arguments = tuple(replace(leaf, same_as=same.get(leaf.path)) for leaf in arguments)
    # The marker of eqx.filter_jit is an added constant, which users cannot change.
    constant = [
        not depends and name != EQUINOX_MARKER
        for name, depends in zip(step.output_names, dependent_outputs(jaxpr), strict=True)
    ]
    return LoweredProgram(
        workload=workload.name,
        stablehlo=stripped_bytecode(given.module),
        arguments=arguments,
        outputs=output_leaves(step.lowered, step.output_names, arguments, constant),
        requested_collectives=requested_collectives(jaxpr),
        named_values=named_values(jaxpr),
        stated_costs=stated_costs(jaxpr, workload.kernel_bytes),
        stated_trips=workload.loop_trips,
        # Only times need them.
        kernel_codes=kernel_codes(jaxpr) if platform.runs_gpu_kernels else (),
        device_count=len(devices),
        settings=given.settings,
        compile_options=given.compile_options,
        options={**given.compiler_options, **workload.options},
        mesh=dict(axes) if axes is not None else None,
        dropped_updates=step.dropped_updates,
        expectations=tuple(
            expectation_to_json(item) for item in _for_platform(workload.expectations, platform)
        ),
    )


@contextmanager
def _clear_errors(workload: Workload, other_devices: str) -> Iterator[None]:
    """Says in the user's terms what jax refuses; `other_devices` is in its message of devices."""
    try:
        yield
    except (TypeError, ValueError) as error:
        text = _clear_text(workload, str(error), other_devices)
        if text is None:
            raise
        raise WorkloadError(text).with_traceback(error.__traceback__) from None


def _clear_text(workload: Workload, reason: str, other_devices: str) -> str | None:
    """What an error of jax means; None for another one, such as the user's own."""
    if other_devices in reason:
        return (
            f"{fn_text(workload)}: its arguments and what it names inside are over different "
            f"devices: {reason}; fix: shard the arguments with jax.sharding.NamedSharding over the "
            "mesh that the step uses"
        )
    if match := _OTHER_MESH.search(reason):  # one of the two meshes the user has not written
        return (
            f"workload {workload.name}: the step passes {match['mesh']} to shard_map, expected "
            f"the workload's own mesh {dict(workload.mesh_axes or {})}, which jax compares with "
            "its axis types and device; fix: give the workload the same object (mesh=that mesh), "
            "or leave mesh= out of shard_map, which then uses the workload's"
        )
    if match := _NOT_AN_ARRAY.search(reason):
        if "ShapeDtypeStruct" in match["type"]:
            return (
                f"workload {workload.name}: argument {match['path']} is a jax.ShapeDtypeStruct "
                "with a shape that no array has; fix: give integers as its dimensions"
            )
        return (
            f"workload {workload.name}: argument {match['path']} is of type {match['type']}, "
            "expected an array, a jax.ShapeDtypeStruct or a Python scalar; fix: name the parameter "
            "in the jitted function's static_argnames=, or bind it with functools.partial"
        )
    return None


@contextmanager
def _without_donation_warnings() -> Iterator[None]:
    """jax warns of some donations that fail; the plan reports every one, with the reason."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield


def _for_platform(expectations: Sequence[Expectation], platform: Platform) -> Iterator[Expectation]:
    """The expectations without those for other platforms; `under` of the others is not needed."""
    names = [known.name for known in PLATFORMS]
    for expectation in expectations:
        if expectation.under not in names:
            yield expectation
        elif expectation.under == platform.name:
            yield replace(expectation, under=None)
