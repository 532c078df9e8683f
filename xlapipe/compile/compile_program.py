"""Compiles a lowered program with XLA, in the compiling child."""

import re
import shlex
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
from xlapipe.compile.answered_tuning import (
    ANSWERED_OPTIONS,
    PredictedLockError,
    answering,
    write_results,
)
from xlapipe.compile.job import Job
from xlapipe.compile.lowering.module_kernels import may_hold_kernels
from xlapipe.compile.lowering.xla_input import apply_settings, refuse_other_options
from xlapipe.compile.messages import LoweredProgram
from xlapipe.compile.wire_format import field, number
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.compile.xla_patches.client_order import (
    can_compile_modules,
    compiling,
    in_client_order,
    layout_options,
)
from xlapipe.devices.environment.machine import Machine
from xlapipe.devices.platforms import Platform
from xlapipe.dump.readers.hlo_proto import HloProto
from xlapipe.plans.workspaces import call_key
from xlapipe.time.predicted_locks.attention import attention_workspace_bytes
from xlapipe.time.predicted_locks.instructions import tuned_instructions
from xlapipe.time.predicted_locks.predict import PredictedLock, decides_tuning, predict_lock

# A program that XLA started, with its status as `wait` returns it, whose low bits are a signal.
_ENDED_PROGRAM = re.compile(r"\w+ exited with non-zero error code (\d+)")
_MISSING_RESULT = re.compile(r"No cached config found for HLO instr: %(\S+) =")
# Operations that XLA may compute with a tuned product, convolution or library call.
_TUNED = re.compile(rb"dot|convolution|einsum|custom_call|composite|triangular_solve|cholesky")
# XLA also asks for its version, and for the newest version of PTX that it reads.
_SCRIPT = """#!/bin/sh
case "$*" in *--version* | *--input-as-string*) exec {ptxas} "$@" ;; esac
while [ $# -gt 1 ]; do
  if [ "$1" = -o ]; then : > "$2"; fi
  shift
done
"""

_PTX_OPTION = "xla_gpu_ptx_file"


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


def compile_program(job: Job, program: LoweredProgram, devices: list[Any]) -> CompiledProgram:
    """Compiles a program, with complete autotune results if the job has a lock and they are."""
    return _Compile(job, program, devices).run()


@dataclass(frozen=True)
class _Compile:
    job: Job
    program: LoweredProgram
    devices: list[Any]

    @property
    def platform(self) -> Platform:
        return self.job.platform

    @property
    def options(self) -> dict[str, Any]:
        dump = {"xla_dump_to": str(self.job.dump_folder)}
        return {**self.program.options, **self.job.xla_options, **dump}

    def run(self) -> CompiledProgram:
        complete_option = self.platform.complete_autotune_option
        is_predicted = self.job.known_results is not None and not decides_tuning(
            self.program.options
        )
        if is_predicted and names_tuned_operations(self.program.stablehlo):
            return self.with_predicted_lock()
        if self.job.lock is None or complete_option is None:
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
                shutil.rmtree(self.job.dump_folder, ignore_errors=True)
        return replace(self.compiled(self.options, module), fusion_without_result=missing[0])

    def with_predicted_lock(self) -> CompiledProgram:
        """The program with the autotune results that the device's tuner is likely to give.

        They are predicted while XLA compiles, once its passes have made the tuned instructions.
        """
        file, content = self.module_before_passes()
        name = _next_name(file)
        module = in_client_order(content) if content and self.is_renumbered else None
        known = self.job.known_results
        assert known is not None
        predicted: list[PredictedLock | Exception] = []
        folder = self.job.scratch / "results"

        def answer(content: bytes) -> None:
            try:
                lock = predict_lock(tuned_instructions(fingerprint_text(content)), known)
                write_results(folder, {**lock.defaults, **lock.chosen}, known)
                predicted.append(lock)
            except Exception as error:  # noqa: BLE001 - it is raised where XLA was called
                predicted.append(error)

        results = {self.platform.results_folder_option or "": str(folder)}
        options = {**self.options, **ANSWERED_OPTIONS, **results}
        compiled = refusal = None
        with answering(self.job.dump_folder, name, answer) as has_waited:
            try:
                compiled = self.compiled(options, module, name)
            except RuntimeError as error:
                refusal = error
        lock = next(iter(predicted), None)
        if isinstance(lock, Exception):
            raise lock
        is_empty = lock is not None and not lock.chosen
        if is_empty or (lock is None and refusal is not None):
            shutil.rmtree(self.job.dump_folder, ignore_errors=True)
            return self.compiled(self.options)
        if refusal is not None and _was_ended_by_signal(refusal):
            raise refusal
        if lock is None or compiled is None or not has_waited:
            raise PredictedLockError(str(refusal or "XLA did not wait for results"))
        basis, other_choice = dict(lock.basis), lock.other_choice
        return replace(compiled, predicted_lock=basis, other_choice=other_choice)

    def compiled(
        self, options: dict[str, Any], module: bytes | None = None, name: str = ""
    ) -> CompiledProgram:
        """The program as XLA compiled it, or planned and then refused it."""
        refused = executable = None
        try:
            executable = self._planned(options, module, name)
        except RuntimeError as error:
            if not self._is_planned(error):
                raise
            refused = str(error)
        return CompiledProgram(executable, renumbered=module is not None, refused=refused)

    def _planned(self, options: dict[str, Any], module: bytes | None, name: str) -> Any:
        """Compiles, without kernels' machine code if the plan alone is wanted."""
        job, option = self.job, self.platform.cuda_folder_option
        is_of_xla = not may_hold_kernels(self.program.stablehlo)  # all kernels are XLA's own
        if job.plan_only and job.target is not None and option and is_of_xla:
            without = without_assembler(job.scratch / "cuda", option, name)
            try:
                return self.executable({**options, **without}, module)
            except RuntimeError as error:
                if self._is_planned(error) or _MISSING_RESULT.search(str(error)):
                    raise
            shutil.rmtree(job.dump_folder, ignore_errors=True)
        return self.executable(options, module)

    def _is_planned(self, error: RuntimeError) -> bool:
        """Whether XLA made a plan, and then refused it because the device has too little memory."""
        if not self.platform.refuses_after_planning or "RESOURCE_EXHAUSTED" not in str(error):
            return False
        return any(self.job.dump_folder.glob("*.after_optimizations-live-range.txt"))

    @property
    def is_renumbered(self) -> bool:
        """Whether XLA gets the module in the order that it has on the device."""
        if self.job.target is None or not can_compile_modules(self.platform.plugin):
            return False
        return XlaPatch.INSTRUCTION_ORDER not in self.job.without_xla_patches

    def module_of_a_client(self) -> bytes | None:
        """XLA's module before optimisation, in the order that it has on the device."""
        content = self.module_before_passes()[1] if self.is_renumbered else b""
        return in_client_order(content) if content else None

    def module_before_passes(self) -> tuple[str, bytes]:
        """XLA's module of the program before optimisation, with the name of its file.

        XLA writes the module to its dump before its first pass, and stops after a few passes.
        """
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
            return (files[0].name, files[0].read_bytes()) if len(files) == 1 else ("", b"")

    def executable(self, options: dict[str, Any], module: bytes | None = None) -> Any:
        """Compiles as `jax.stages.Lowered.compile` does, but from a module alone.

        A serialised HloModuleProto is compiled instead of the program's.
        """
        plugin = self.platform.plugin or ""
        replaced = nullcontext() if module is None else compiling(module, plugin)
        with mlir.make_ir_context(), replaced:
            stablehlo = ir.Module.parse(self.program.stablehlo)
            predicted = self.job.known_results is not None
            _set_workspaces(stablehlo, self.job.workspaces, predicted=predicted)
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
            limit_bytes = self.job.memory_limit_bytes
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
            # dtype as XLA writes it, and dimensions.
            kinds = [ir.RankedTensorType(result.type) for result in results]
            arrays = [(str(kind.element_type), kind.shape) for kind in kinds]
            size_bytes = workspaces.get(call_key(target, arrays))
            if size_bytes is None and predicted:
                size_bytes = attention_workspace_bytes(target, arrays)
            if size_bytes is not None and str(workspace.type) == "tensor<0xui8>":
                workspace.set_type(ir.Type.parse(f"tensor<{size_bytes}xui8>"))
        return ir.WalkResult.ADVANCE

    if workspaces or predicted:
        module.operation.walk(visit)


def _next_name(file: str) -> str:
    """The name of the next module of the same program in a dump, from a file of the last one."""
    match = re.match(r"module_(\d+)(.*)\.before_optimizations", file)
    return f"module_{int(match[1]) + 1:04d}{match[2]}" if match is not None else "module_0001"


def fingerprint_text(content: bytes) -> str:
    """The text of a module as `tuned_instructions` reads it."""
    return jax_private.module_text(HloProto.FromString(content).hlo_module.SerializeToString())


def without_assembler(folder: Path, folder_option: str, module: str = "") -> dict[str, str]:
    """XLA's options for compiles without machine code, which takes long and changes no plan.

    XLA looks for ptxas in the folder that an option names. There a script writes empty files. Where
    the module's name is known, another option names its PTX, and XLA does not run LLVM.

    `module` is the module's name in a dump, with its number; empty if it is not known.
    """
    machine, script = Machine.local(), folder / "bin" / "ptxas"
    ptxas, libdevice = machine.cuda_tool("ptxas"), machine.libdevice_folder()
    if ptxas is not None and libdevice is not None and not script.exists():
        script.parent.mkdir(parents=True)
        script.write_text(_SCRIPT.format(ptxas=shlex.quote(str(ptxas))), encoding="utf-8")
        script.chmod(0o755)
        (folder / "nvvm").symlink_to(libdevice.parent)
    if not module or not script.exists():
        return {folder_option: str(folder)}
    ptx = folder / f"{module}.ptx"
    ptx.write_text("// none\n", encoding="utf-8")
    return {folder_option: str(folder), _PTX_OPTION: str(ptx)}
