"""Compiles a lowered program with XLA, in the compiling child."""

import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.interpreters import mlir, pxla

from xlapipe import jax_private
from xlapipe.compile.lowering.module_kernels import may_hold_kernels
from xlapipe.compile.lowering.xla_input import apply_settings, refuse_other_options
from xlapipe.compile.messages import CompileRequest, LoweredProgram
from xlapipe.compile.unassembled_kernels import without_assembler
from xlapipe.compile.wire_format import field, number
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.compile.xla_patches.client_order import (
    can_compile_modules,
    compiling,
    in_client_order,
    layout_options,
)
from xlapipe.devices.platforms import Platform, platform_named
from xlapipe.dump.readers.hlo_proto import HloProto
from xlapipe.plans.workspaces import call_key
from xlapipe.time.predicted_locks.attention import attention_workspace_bytes
from xlapipe.time.predicted_locks.instructions import tuned_instructions
from xlapipe.time.predicted_locks.known_results import KnownResults
from xlapipe.time.predicted_locks.predict import decides_tuning, predict_lock

# A program that XLA started, with its status as `wait` returns it, whose low bits are a signal.
_ENDED_PROGRAM = re.compile(r"\w+ exited with non-zero error code (\d+)")
_MISSING_RESULT = re.compile(r"No cached config found for HLO instr: %(\S+) =")
# Operations that XLA may compute with a tuned product, convolution or library call.
_TUNED = re.compile(rb"dot|convolution|einsum|custom_call|composite|triangular_solve|cholesky")


@dataclass(frozen=True)
class CompiledProgram:
    """A program that XLA compiled.

    Attributes:
      fusion_without_result: the first fusion that the autotune lock has no result for.
      renumbered: whether XLA got the module in the order that it has on the device.
      predicted_lock: number of tuned instructions by the basis of their result; None if no result
        was predicted.
      other_choice: as of `PredictedLock`.
      refused: XLA's message if it made a plan, and then refused it because the device has too
        little memory; there is no executable then.
    """

    executable: Any | None
    fusion_without_result: str | None = None
    renumbered: bool = False
    predicted_lock: Mapping[str, int] | None = None
    other_choice: float | None = None
    refused: str | None = None


class PredictedLockError(Exception):
    """XLA did not compile a program with predicted tuning."""


class KernelsRefusedError(Exception):
    """XLA does not compile some of a program's Pallas kernels, which the message names."""


def compile_program(
    request: CompileRequest, program: LoweredProgram, devices: list[Any]
) -> CompiledProgram:
    """Compiles a program, with complete autotune results if the request is locked and they are."""
    return _Compile(request, program, devices).run()


@dataclass(frozen=True)
class _Compile:
    """A program, and what it is compiled for."""

    request: CompileRequest
    program: LoweredProgram
    devices: list[Any]

    @property
    def platform(self) -> Platform:
        return platform_named(self.request.platform)

    @property
    def options(self) -> dict[str, Any]:
        """XLA's options."""
        dump = {"xla_dump_to": str(self.request.dump_folder)}
        return {**self.program.options, **self.request.options, **dump}

    def run(self) -> CompiledProgram:
        complete_option = self.platform.complete_autotune_option
        is_predicted = self.request.known_sha256 is not None and not decides_tuning(
            self.program.options
        )
        if is_predicted and names_tuned_operations(self.program.stablehlo):
            return self.with_predicted_lock()
        if self.request.lock_sha256 is None or complete_option is None:
            return self.compiled(self.options)
        module = self.module_of_a_client()
        missing = []
        for tried in dict.fromkeys((module, None)):
            try:
                return self.compiled({**self.options, complete_option: True}, tried)
            except RuntimeError as error:
                match = _MISSING_RESULT.search(str(error))
                if match is None:
                    raise
                missing.append(match[1])
                # The failed attempt has left the first stages of a dump.
                shutil.rmtree(self.request.dump_folder, ignore_errors=True)
        return replace(self.compiled(self.options, module), fusion_without_result=missing[0])

    def with_predicted_lock(self) -> CompiledProgram:
        """The program with the autotune results that the device's tuner is likely to give.

        XLA is asked for complete results first. It stops where it would assign them, before it
        generates code, and its dump holds the instructions. It reads a file of results once in a
        process, at the first compile that names one.
        """
        complete = self.platform.complete_autotune_option or ""
        load = self.platform.load_autotune_flag or ""
        module = self.module_of_a_client()
        with tempfile.TemporaryDirectory() as folder:
            first = {"xla_dump_to": folder, "xla_dump_hlo_as_text": False, complete: True}
            with suppress(RuntimeError):  # another error is raised again when it is compiled
                self.executable({**self.options, **first}, module)
            files = sorted(Path(folder).glob("*.before_config_assignment.hlo.pb"))
            texts = [fingerprint_text(path.read_bytes()) for path in files]
        known = KnownResults.read(self.request.known_path)
        instructions = tuned_instructions("\n".join(texts))
        lock = predict_lock(instructions, known)
        if not lock.results:
            return self.compiled(self.options)
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "autotune_results.pbtxt"
            results.write_text(lock.results, encoding="utf-8")
            try:
                compiled = self.compiled({**self.options, load: str(results)}, module)
            except RuntimeError as error:
                if _was_ended_by_signal(error):
                    raise
                raise PredictedLockError(str(error)) from error
        basis, other_choice = dict(lock.basis), lock.other_choice
        return replace(compiled, predicted_lock=basis, other_choice=other_choice)

    def compiled(self, options: dict[str, Any], module: bytes | None = None) -> CompiledProgram:
        """The program as XLA compiled it, or planned and then refused it."""
        refused = executable = None
        try:
            executable = self._planned(options, module)
        except RuntimeError as error:
            if not self._is_planned(error):
                raise
            refused = str(error)
        return CompiledProgram(executable, renumbered=module is not None, refused=refused)

    def _planned(self, options: dict[str, Any], module: bytes | None) -> Any:
        """Compiles, without kernels' machine code if the plan alone is wanted."""
        request, option = self.request, self.platform.cuda_folder_option
        is_of_xla = not may_hold_kernels(self.program.stablehlo)  # all kernels are XLA's own
        if request.plan_only and request.target_config is not None and option and is_of_xla:
            folder = without_assembler(request.cuda_folder)
            try:
                return self.executable({**options, option: str(folder)}, module)
            except RuntimeError as error:
                if self._is_planned(error) or _MISSING_RESULT.search(str(error)):
                    raise
            shutil.rmtree(request.dump_folder, ignore_errors=True)
        return self.executable(options, module)

    def _is_planned(self, error: RuntimeError) -> bool:
        """Whether XLA made a plan, and then refused it because the device has too little memory."""
        if not self.platform.refuses_after_planning or "RESOURCE_EXHAUSTED" not in str(error):
            return False
        return any(self.request.dump_folder.glob("*.after_optimizations-live-range.txt"))

    def module_of_a_client(self) -> bytes | None:
        """XLA's module of the program before optimisation, in the order that it has on the device.

        XLA writes the module to its dump before its first pass, and stops after a few passes.
        """
        if self.request.target_config is None or not can_compile_modules(self.platform.plugin):
            return None
        if XlaPatch.INSTRUCTION_ORDER in self.request.without_xla_patches:
            return None
        with tempfile.TemporaryDirectory() as folder:
            options = {
                **self.options,
                "xla_dump_to": folder,
                "xla_dump_hlo_as_proto": True,
                "xla_dump_hlo_as_text": False,
                "xla_early_exit_with_layouts": True,
            }
            # A program that XLA refuses is refused again, and reported, when it is compiled.
            with suppress(RuntimeError):
                self.executable(options)
            files = sorted(Path(folder).glob("*.before_optimizations.hlo.pb"))
            return in_client_order(files[0].read_bytes()) if len(files) == 1 else None

    def executable(self, options: dict[str, Any], module: bytes | None = None) -> Any:
        """Compiles as `jax.stages.Lowered.compile` does, but from a module alone.

        Args:
          module: a serialised HloModuleProto that is compiled instead of the program's.
        """
        plugin = self.platform.plugin or ""
        replaced = nullcontext() if module is None else compiling(module, plugin)
        with mlir.make_ir_context(), replaced:
            stablehlo = ir.Module.parse(self.program.stablehlo)
            predicted = self.request.known_sha256 is not None
            _set_workspaces(stablehlo, self.request.workspaces, predicted=predicted)
            client = self.devices[0].client
            apply_settings(self.program.settings)
            fields = self.program.compile_options
            compile_options = pxla.create_compile_options(
                stablehlo,
                fields["parameter_is_tupled_arguments"],
                fields["build.allow_spmd_sharding_propagation_to_parameters"],
                fields["build.allow_spmd_sharding_propagation_to_output"],
                client,
                np.array(self.devices),
                dict(options),
            )
            refuse_other_options(self.program.workload, fields, compile_options)
            additions = layout_options(module) if module is not None else b""
            limit_bytes = self.request.memory_limit_bytes
            if limit_bytes is not None:
                # The memory that XLA keeps the plan within, for which jax has no attribute.
                additions += field(3, number(15, limit_bytes))
            if additions:
                # A message that is appended to one of its kind is merged into it.
                serialized = compile_options.SerializeAsString() + additions
                compile_options = jax_private.CompileOptions.ParseFromString(serialized)
            return jax_private.backend_compile_and_load(
                client, stablehlo, jax_private.DeviceList(tuple(self.devices)), compile_options, []
            )


def names_tuned_operations(bytecode: bytes) -> bool:
    """Whether a module in MLIR's bytecode names a product, a convolution or a library call.

    Other fusions are tuned too, but no choice of theirs needs memory.
    """
    return _TUNED.search(bytecode) is not None


def _was_ended_by_signal(error: RuntimeError) -> bool:
    """Whether a program that XLA started, such as ptxas, was ended by a signal."""
    match = _ENDED_PROGRAM.search(str(error))
    return match is not None and int(match[1]) & 0x7F != 0


def _set_workspaces(module: Any, workspaces: Mapping[str, int], *, predicted: bool) -> None:
    """Gives each library call the workspace that the library stated on the device.

    jax's calls have one of no bytes, which XLA replaces where it has the device.
    """

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call" and len(operation.results) > 1:
            *results, workspace = operation.results
            target = ir.StringAttr(operation.attributes["call_target_name"]).value
            arrays = [_array(result) for result in results]
            size_bytes = workspaces.get(call_key(target, arrays))
            if size_bytes is None and predicted:
                size_bytes = attention_workspace_bytes(target, arrays)
            if size_bytes is not None and str(workspace.type) == "tensor<0xui8>":
                workspace.set_type(ir.Type.parse(f"tensor<{size_bytes}xui8>"))
        return ir.WalkResult.ADVANCE

    if workspaces or predicted:
        module.operation.walk(visit)


def _array(value: Any) -> tuple[str, list[int]]:
    """dtype as XLA writes it, and dimensions."""
    kind = ir.RankedTensorType(value.type)
    return str(kind.element_type), kind.shape


def fingerprint_text(content: bytes) -> str:
    """The text of a module as `tuned_instructions` reads it."""
    return jax_private.module_text(HloProto.FromString(content).hlo_module.SerializeToString())
