"""What holds for collectives in every plan; a part of `xlapipe.plan.verify`."""

import re
from collections import Counter

from xlapipe.plan.collectives import Collective
from xlapipe.plan.hlo import COLLECTIVES, HloModule
from xlapipe.plan.loops import call_sites
from xlapipe.plan.plan import Plan
from xlapipe.plan.thunks import Thunk

# kAllGather; up to jaxlib 0.9 kAllGatherStart and kAllGatherDone.
_THUNK = re.compile(r"k(?:Nccl|Nvshmem)?(?P<words>[A-Z][A-Za-z]*?)(?:Start)?")

# Where GPUs are linked by NVLink, XLA 0.11 may reduce few bytes with a kernel of its own, and not
# through NCCL; the thunk does not say which kind of collective it is.
OWN_KERNEL = "kCollectiveKernel"


def wrong_collective(plan: Plan) -> tuple[str, str] | None:
    """What was expected, and what was found, of the first invariant that does not hold."""
    if not plan.collectives:
        return None
    for collective in plan.collectives:
        wrong = _wrong_groups(collective) or _wrong_bytes(collective)
        if wrong is not None:
            return wrong
    assert plan.module is not None  # it has collectives
    if plan.thunks is None:
        return None
    return _wrong_thunks(plan.module, plan.collectives, plan.thunks)


def _wrong_groups(collective: Collective) -> tuple[str, str] | None:
    devices = [device for group in collective.replica_groups for device in group]
    if len(set(devices)) != len(devices):
        return f"each device once in the groups of {collective.instruction}", "one twice"
    for number in (0, 1):
        ends = [pair[number] for pair in collective.source_target_pairs]
        if len(set(ends)) != len(ends):
            return f"each device at most once as an end of {collective.instruction}", "one twice"
    return None


def _wrong_bytes(collective: Collective) -> tuple[str, str] | None:
    found, size = collective.operand_bytes, collective.group_size
    expected = collective.output_bytes
    if found is None or expected is None or collective.kind == "ragged-all-to-all":
        return None
    if collective.kind in ("all-gather", "reduce-scatter") and size is None:
        return None
    if collective.kind == "all-gather":
        found *= size or 1
    elif collective.kind == "reduce-scatter":
        expected *= size or 1
    if expected == found:
        return None
    return (
        f"operands and results of {collective.kind} {collective.instruction} over "
        f"{size or 'all'} devices that come to the same whole",
        f"operands of {collective.operand_bytes} bytes, results of {collective.output_bytes}",
    )


def _wrong_thunks(
    module: HloModule, collectives: tuple[Collective, ...], thunks: tuple[Thunk, ...]
) -> tuple[str, str] | None:
    found = Counter(kind for thunk in thunks if (kind := _kind_of(thunk)) is not None)
    sites = call_sites(module)
    home = {
        instruction.name: sites.get(computation.name, 0)
        for computation, instruction in module.scheduled()
    }
    own = sum(thunk.kind == OWN_KERNEL for thunk in thunks)
    for kind in sorted(COLLECTIVES):
        written = [each for each in collectives if each.kind == kind]
        most = sum(home[each.instruction] for each in written)
        # XLA copies where a device has nobody to exchange with.
        least = sum(home[each.instruction] for each in written if not _alone(each))
        missing = max(0, least - found[kind])
        if missing > own or found[kind] > most:
            return f"{most} {kind} thunks, as the HLO has them", f"{found[kind]}"
        own -= missing
    return None


def _alone(collective: Collective) -> bool:
    pairs = collective.source_target_pairs
    if collective.kind == "collective-permute":
        return all(source == target for source, target in pairs)
    return collective.group_size == 1


def _kind_of(thunk: Thunk) -> str | None:
    """`all-gather` for kAllGather and kAllGatherStart; None for what is no collective."""
    found = _THUNK.fullmatch(thunk.kind)
    if found is None:
        return None
    kind = re.sub(r"(?<!^)(?=[A-Z])", "-", found["words"]).lower()
    return kind if kind in COLLECTIVES else None
