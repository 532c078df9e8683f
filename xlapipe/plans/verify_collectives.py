"""Invariants of the collectives of every plan; part of `xlapipe.plans.verify`."""

import re
from collections import Counter

from xlapipe.plans.collectives import Collective
from xlapipe.plans.hlo import HloModule
from xlapipe.plans.loops import call_sites
from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.plans.plan import Plan
from xlapipe.plans.thunks import Thunk

# kAllGather; up to jaxlib 0.9, kAllGatherStart and kAllGatherDone.
_THUNK = re.compile(r"k(?:Nccl|Nvshmem)?(?P<words>[A-Z][A-Za-z]*?)(?:Start)?")

# If GPUs are linked by NVLink, XLA 0.11 may reduce small arrays with its own kernel instead of
# NCCL; this thunk does not show the kind of collective.
OWN_KERNEL = "kCollectiveKernel"


def collective_mismatch(plan: Plan) -> tuple[str, str] | None:
    """(expected, found) of the first invariant that does not hold; None if all hold."""
    if not plan.collectives:
        return None
    for collective in plan.collectives:
        mismatch = _group_mismatch(collective) or _bytes_mismatch(collective)
        if mismatch is not None:
            return mismatch
    assert plan.module is not None  # collectives come from the module
    if plan.thunks is None:
        return None
    return _thunk_mismatch(plan.module, plan.collectives, plan.thunks)


def _group_mismatch(collective: Collective) -> tuple[str, str] | None:
    devices = [device for group in collective.replica_groups for device in group]
    if len(set(devices)) != len(devices):
        return f"each device once in the groups of {collective.instruction}", "a device twice"
    for number in (0, 1):
        ends = [pair[number] for pair in collective.source_target_pairs]
        if len(set(ends)) != len(ends):
            side = ("source", "target")[number]
            expected = f"each device at most once as a {side} of {collective.instruction}"
            return expected, "a device twice"
    return None


def _bytes_mismatch(collective: Collective) -> tuple[str, str] | None:
    operand_bytes, output_bytes = collective.operand_bytes, collective.output_bytes
    size = collective.group_size
    if operand_bytes is None or output_bytes is None or collective.kind == "ragged-all-to-all":
        return None
    if collective.kind in ("all-gather", "reduce-scatter") and size is None:
        return None
    if collective.kind == "all-gather":
        operand_bytes *= size or 1
    elif collective.kind == "reduce-scatter":
        output_bytes *= size or 1
    if operand_bytes == output_bytes:
        return None
    if any(result.is_tiled for result in collective.results):
        # XLA for TPUs pads what it scatters to whole tiles on each device, and may sum bfloat16 to
        # float32.
        padded = collective.kind == "reduce-scatter" and operand_bytes < output_bytes
        widened = collective.kind == "all-reduce" and 2 * operand_bytes == output_bytes
        if padded or widened:
            return None
    return (
        f"operands and results of {collective.kind} {collective.instruction} over "
        f"{size or 'all'} devices to have the same total size",
        f"operands of {collective.operand_bytes} bytes, results of {collective.output_bytes}",
    )


def _thunk_mismatch(
    module: HloModule, collectives: tuple[Collective, ...], thunks: tuple[Thunk, ...]
) -> tuple[str, str] | None:
    thunk_counts = Counter(kind for thunk in thunks if (kind := _kind_of(thunk)) is not None)
    calls = call_sites(module)
    occurrences = {
        instruction.name: calls.get(computation.name, 0)
        for computation, instruction in module.scheduled()
    }
    own_kernels = sum(thunk.kind == OWN_KERNEL for thunk in thunks)
    for kind in sorted(COLLECTIVES):
        in_hlo = [collective for collective in collectives if collective.kind == kind]
        most = sum(occurrences[collective.instruction] for collective in in_hlo)
        # XLA emits a copy instead if each device exchanges data only with itself.
        least = sum(
            occurrences[collective.instruction]
            for collective in in_hlo
            if not _is_local(collective)
        )
        missing = max(0, least - thunk_counts[kind])
        if missing > own_kernels or thunk_counts[kind] > most:
            return f"{most} {kind} thunks, as in the HLO", f"{thunk_counts[kind]}"
        own_kernels -= missing
    return None


def _is_local(collective: Collective) -> bool:
    """Whether no device exchanges data with another one."""
    pairs = collective.source_target_pairs
    if collective.kind == "collective-permute":
        return all(source == target for source, target in pairs)
    return collective.group_size == 1


def _kind_of(thunk: Thunk) -> str | None:
    """`all-gather` for kAllGather and kAllGatherStart; None for other thunks."""
    match = _THUNK.fullmatch(thunk.kind)
    if match is None:
        return None
    kind = re.sub(r"(?<!^)(?=[A-Z])", "-", match["words"]).lower()
    return kind if kind in COLLECTIVES else None
