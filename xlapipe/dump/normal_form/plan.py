"""The normal form of a plan: readable text, the same on every machine.

Rules, by name; each leaves a real change visible:

- paths: no file names and no source lines; op_name scopes are kept.
- ids: no ids of values and no numbers of modules.
- thread-locals: allocations of scalars inside fusions are counted by shape and size, because their
  order differs between machines.
- inner names: instructions outside the entry computation, such as a loop's, have names without
  numbers.

Workspace bytes, offsets, sizes, kinds, operands, tiles and the order of thunks are kept.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import unified_diff
from functools import cached_property, partial
from pathlib import Path

from xlapipe.devices.platforms.dump_files import MODULE
from xlapipe.dump.dump import HLO, PLAN, Dump, read_file
from xlapipe.dump.normal_form.canonical import canonical_hlo, canonical_plan
from xlapipe.dump.normal_form.constant_values import (
    ConstantDifference,
    constants_that_differ,
    split_constants,
    with_digests,
)
from xlapipe.dump.normal_form.hlo import normal_hlo
from xlapipe.errors import DumpError
from xlapipe.plans import AllocationKind, BufferAllocation, MemorySpace, Program
from xlapipe.plans.once import once_per_object

FORM_VERSION = 1
_OPTIMISED = "after_optimizations.txt"
# The last result of a call of cuDNN's attention.
_WORKSPACE = re.compile(r"(?m)^(.*, )u8\[\d*\](?=\{0\}\) custom-call\(.*__cudnn\$fmha)")
# Numbers that XLA appends to a name to make it unique.
_NUMBERS = re.compile(r"(\.\d+)+$")


@dataclass(frozen=True)
class NormalForm:
    """The normal form of a dump.

    Attributes:
      plan: content of `plan.txt`: program, totals, aliases, allocations, gemms, fusions, thunks.
      hlo: content of `hlo.txt`: the optimised module.
      before: XLA's text of the module before optimisation.
      read: reads another file of the dump, for the values of large constants.
    """

    plan: str
    hlo: str
    before: bytes
    read: Callable[[str], bytes] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def lowered(self) -> str:
        """The normal form of the module before optimisation.

        Without the bytes of workspaces, which a lock may have put into the module.
        """
        return _WORKSPACE.sub(r"\1u8[]", normal_hlo(self.before.decode(errors="replace")))

    @cached_property
    def canonical(self) -> "NormalForm":
        """What two machines share; see `xlapipe.dump.normal_form.canonical`."""
        text, _ = self._with_digests
        module = canonical_hlo(normal_hlo(text) if self.large_constants else self.hlo)
        plan = canonical_plan(self.plan, module)
        return replace(self, plan=plan, hlo=module.text)

    @property
    def large_constants(self) -> Mapping[str, bytes]:
        """The values of constants that XLA's text leaves out, by digest."""
        return self._with_digests[1]

    @cached_property
    def _with_digests(self) -> tuple[str, Mapping[str, bytes]]:
        """XLA's text of the optimised module, with digests of its large constants."""
        if self.read is None or "constant({...})" not in self.hlo:
            return "", {}
        try:
            text = self.read(_OPTIMISED).decode(errors="replace")
            return with_digests(text, self.read(MODULE))
        except (DumpError, KeyError):  # a dump without the serialised module
            return "", {}

    def files(self) -> dict[str, bytes]:
        """The files of a dump that hold it, by name."""
        return {PLAN: self.plan.encode(), HLO: self.hlo.encode()}


def normal_form(dump: Dump, files: Mapping[str, bytes]) -> NormalForm:
    """Makes the normal form of a dump and its files; equal plans give equal text."""
    return NormalForm(
        plan=_plan_text(dump),
        hlo=normal_hlo(files[_OPTIMISED].decode()),
        before=files["before_optimizations.txt"],
        read=files.__getitem__,
    )


def read_normal_form(folder: Path) -> NormalForm:
    """Reads the normal form from a dump directory."""
    return NormalForm(
        plan=read_file(folder, PLAN).decode(errors="replace"),
        hlo=read_file(folder, HLO).decode(errors="replace"),
        before=read_file(folder, "before_optimizations.txt"),
        read=partial(read_file, folder),
    )


def differences(golden: NormalForm, new: NormalForm, *, name: str) -> list[str]:
    """Lines for a message: the first stage that differs, and a unified diff; empty if equal.

    This alone decides whether a plan is its golden's: for `dump`, for tests and for devices.
    """
    comparison = compare(golden, new)
    if comparison.stage is None:
        return []
    lines = [f"{name}: first stage that differs: {comparison.stage}"]
    lines += dict.fromkeys(f"  constant {it}" for it in comparison.constants if not it.is_same)
    golden, new = golden.canonical, new.canonical
    texts = ((PLAN, golden.plan, new.plan), (HLO, golden.hlo, new.hlo))
    for file, golden_text, new_text in texts:
        lines += unified_diff(
            golden_text.splitlines(),
            new_text.splitlines(),
            f"golden {file}",
            f"new {file}",
            n=1,
            lineterm="",
        )
    return lines


@dataclass(frozen=True)
class Comparison:
    """How a normal form compares with its golden's.

    Attributes:
      stage: the first stage that differs, in words; None if the plans are the same.
      constants: those that differ, be it in the last digit, at the stages up to that one.
      notes: what differs although the plans are the same, in words.
    """

    stage: str | None
    constants: tuple[ConstantDifference, ...] = ()
    notes: tuple[str, ...] = ()


def compare(golden: NormalForm, new: NormalForm) -> Comparison:
    """Compares the modules that XLA got, those that it made of them, and the plans."""
    digests = golden.large_constants.keys() == new.large_constants.keys()
    if golden == new and digests:
        return Comparison(None)
    constants = _constants_that_differ(golden.lowered, new.lowered, {})
    if constants is None:
        return Comparison("lowering: the program, jax or flax differs, so XLA got another module")
    first, second = golden.canonical, new.canonical
    literals = {**golden.large_constants, **new.large_constants}
    optimised = _constants_that_differ(first.hlo, second.hlo, literals)
    constants += optimised or ()
    others = tuple(it for it in constants if not it.is_same)
    if others:
        return Comparison(f"{_cpus(others)} are not the golden's", constants)
    if optimised is None:
        stage = "XLA's optimisation: the same module became different HLO"
        if constants:
            stage = (
                f"XLA's optimisation: {_cpus(constants)} differ in the last digits, and XLA "
                "made other HLO of them"
            )
        return Comparison(stage, constants)
    if first.plan != second.plan:
        section = _first_differing_section(first.plan, second.plan)
        return Comparison(f"[{section}] of the plan: same HLO, different plan", constants)
    notes = [f"{_cpus(constants)} differ in the last digits"] if constants else []
    if golden.plan != new.plan or (split_constants(golden.hlo)[0] != split_constants(new.hlo)[0]):
        notes.append("names are numbered differently")
    return Comparison(None, constants, tuple(notes))


def _constants_that_differ(
    golden: str, new: str, literals: Mapping[str, bytes]
) -> tuple[ConstantDifference, ...] | None:
    """The constants that differ between two texts of a module; None if more does."""
    if golden == new:
        return ()
    (golden_text, before), (new_text, after) = split_constants(golden), split_constants(new)
    if golden_text != new_text:
        return None
    return tuple(constants_that_differ(before, after, literals))


def _cpus(constants: Sequence[ConstantDifference]) -> str:
    stated = "" if all(it.is_same for it in constants) else ", or that the program states,"
    return f"constants that this machine's CPU computed{stated}"


def _first_differing_section(golden: str, new: str) -> str:
    section = "head"
    for golden_line, new_line in zip(golden.splitlines(), new.splitlines(), strict=False):
        if golden_line != new_line:
            return section
        if golden_line.startswith("["):
            section = golden_line.strip("[]")
    return section


def _plan_text(dump: Dump) -> str:
    manifest = dump.manifest
    mesh = ", ".join(f"{axis}={size}" for axis, size in (manifest.mesh or {}).items())
    lines = [
        f"xlapipe plan {FORM_VERSION}",
        f"workload: {manifest.workload}",
        f"target: {manifest.target} ({manifest.target_description})",
        *([f"devices: {manifest.topology}, mesh {mesh}"] if manifest.topology is not None else ()),
        f"gemm policy: {manifest.gemm_policy}",
        f"autotuning: {manifest.autotuning}",
        f"jaxlib: {manifest.versions['jaxlib']}",
    ]
    if manifest.extra_options:
        options = sorted(manifest.extra_options.items())
        lines.append(f"extra options: {', '.join(f'{key}={value}' for key, value in options)}")
    for section, body_of in _BODIES.items():
        body = list(body_of(dump))
        if body:
            lines += ["", f"[{section}]", *body]
    return "\n".join(lines) + "\n"


def _program(program: Program) -> Iterator[str]:
    for leaf in program.arguments:
        number = "unused" if leaf.parameter_number is None else f"parameter {leaf.parameter_number}"
        donated = ", donated" if leaf.donated else ""
        shape = ",".join(map(str, leaf.shape))
        yield f"{number}: {leaf.path} {leaf.dtype}[{shape}] {leaf.size_bytes:,} B{donated}"
    for output in program.outputs:
        shape = ",".join(map(str, output.shape))
        yield f"{output.path} {output.dtype}[{shape}] {output.size_bytes:,} B"


def _totals(program: Program) -> Iterator[str]:
    for name, value in asdict(program.plan.totals).items():
        yield f"{name}: {value:,}"
    for space, totals in program.plan.spaces.items():
        if space is not MemorySpace.HBM and totals.total_allocation_bytes:
            for name in ("parameter", "live_out", "aliased", "temp"):
                yield f"{space}_{name}_bytes: {getattr(totals, f'{name}_bytes'):,}"
            yield f"{space}_total_bytes: {totals.total_allocation_bytes:,}"
    if program.plan.live_ranges is not None:
        yield f"live_range_peak_bytes: {program.plan.live_ranges.live_range_peak_bytes or 0:,}"


def _aliases(program: Program) -> Iterator[str]:
    paths = {leaf.parameter_number: leaf.path for leaf in program.arguments}
    for alias in sorted(program.plan.aliases, key=lambda alias: alias.parameter_number):
        path = paths.get(alias.parameter_number, "?")
        kind = "must-alias" if alias.must_alias else "may-alias"
        output = program.output_path(alias.output_index)
        yield f"parameter {alias.parameter_number} {path} -> {output} ({kind})"
    for number, _ in program.plan.buffer_donors or ():
        yield f"parameter {number} {paths.get(number, '?')} donated, without alias"


def _allocations(program: Program) -> Iterator[str]:
    names = _inner_names(program)
    thread_locals: Counter[tuple[int, tuple[str, ...]]] = Counter()
    for allocation in program.plan.allocations:
        if allocation.is_a(AllocationKind.THREAD_LOCAL):
            shapes = tuple(sorted(value.shape.text for value in allocation.values))
            thread_locals[allocation.size_bytes, shapes] += 1
        else:
            yield from _allocation(allocation, names)
    for (size, shapes), count in sorted(thread_locals.items()):
        yield f"{count} × thread-local: {size:,} B, {', '.join(shapes)}"


def _allocation(allocation: BufferAllocation, names: Mapping[str, str]) -> Iterator[str]:
    kinds = ", ".join(allocation.kinds)
    number = allocation.parameter_number
    parameter = "" if number is None else f" {number}"
    color = f", color {allocation.color}" if allocation.color else ""
    kinds = kinds.replace("parameter", f"parameter{parameter}", 1)
    yield f"{allocation.index}: {allocation.size_bytes:,} B, {kinds}{color}"
    for value in allocation.values:
        instruction, brace, index = value.name.partition("{")
        name = names.get(instruction, instruction) + brace + index
        yield f"  @{value.offset_bytes:,} {value.size_bytes:,} B {name} {value.shape}"


@once_per_object
def _inner_names(program: Program) -> dict[str, str]:
    """Names without numbers of instructions outside the entry, such as a loop's, by full name.

    Their numbers depend on the machine: `pallas_call.76` on one is `pallas_call.77` on another.
    """
    module = program.plan.module
    if module is None:
        return {}
    return {
        instruction.name: _NUMBERS.sub("", instruction.name)
        for computation, instruction in module.scheduled()
        if computation.name != module.entry
    }


def _gemms(program: Program) -> Iterator[str]:
    names = _inner_names(program)
    for gemm in program.plan.gemms:
        shapes = " × ".join(map(str, gemm.shapes[:-1])) + f" -> {gemm.shapes[-1]}"
        fast = ", fast accumulation" if gemm.fast_accumulation else ""
        name = names.get(gemm.instruction, gemm.instruction)
        yield f"{name}: {gemm.backend}{fast}, {shapes}, {gemm.op_name}"


def _collectives(program: Program) -> Iterator[str]:
    """Nothing on one device, so that there is no such section."""
    names = _inner_names(program)
    for collective in program.plan.collectives or ():
        name = names.get(collective.instruction, collective.instruction)
        sizes = [
            "unknown bytes" if size is None else f"{size:,} B"
            for size in (collective.operand_bytes, collective.output_bytes)
        ]
        instructions, gemms = len(collective.overlapped_by), collective.overlapped_gemms
        overlap = f"asynchronous beside {instructions} instructions, {gemms} gemms"
        mode = overlap if collective.asynchronous else "synchronous"
        executions = collective.executions
        results = ", ".join(map(str, collective.results))
        times = "an unknown number of" if executions is None else executions
        yield (
            f"{name}: {collective.kind}, {' -> '.join(sizes)} as {results}, "
            f"devices {collective.devices}, {mode}, {times} × a step"
            + (f", {collective.op_name}" if collective.op_name else "")
        )


def _fusions(program: Program) -> Iterator[str]:
    names = _inner_names(program)
    for instruction in program.plan.instructions.values():
        if instruction.opcode == "fusion":
            name = names.get(instruction.name, instruction.name)
            operands = ", ".join(names.get(operand, operand) for operand in instruction.operands)
            config = instruction.fusion_backend_config
            yield (
                f"{name}: {instruction.fusion_kind} {instruction.shape} "
                f"({operands})" + (f" {config}" if config else "")
            )


def _thunks(program: Program) -> Iterator[str]:
    for thunk in program.plan.thunks or ():
        yield f"{'  ' * thunk.depth}{thunk.kind} {thunk.detail}".rstrip()


_BODIES = {
    "program": _program,
    "totals": _totals,
    "aliases": _aliases,
    "allocations": _allocations,
    "gemms": _gemms,
    "collectives": _collectives,
    "fusions": _fusions,
    "thunks": _thunks,
}
