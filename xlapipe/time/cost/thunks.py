"""Which thunk launches which kernel, and which kernels a command buffer launches together."""

import re
from collections.abc import Mapping, Sequence

from xlapipe.plans import Plan, Thunk
from xlapipe.time.cost.schedule import BranchNode, LoopNode, Node, Site, sites_of

# Thunks that contain other thunks, or launch nothing on the device.
_NO_LAUNCH = frozenset(
    {"kAsyncDone", "kAsyncStart", "kCommandBuffer", "kConditional", "kDynamicSliceFusion"}
    | {"kGemmWorkspace", "kHostRecvDone", "kHostSendDone", "kSequential", "kWaitForStreams"}
    | {"kWhile"}
)
# XLA's default for xla_gpu_graph_min_graph_size.
_SMALLEST_GRAPH = 5
# Thunks that XLA puts into command buffers; of custom calls only those that it knows.
_IN_GRAPHS = frozenset(
    {"kCopy", "kCublasLtMatmul", "kCuDnn", "kCustomKernel", "kKernel", "kMemset32BitValue"}
    | {"kMemzero", "kGemm"}
)
# Kernels of one sort: `sort_6_1`, `sort_6_1__1` and so on.
_SORT = re.compile(r"(sort\w*?)(?:__\d+)? grid:")


def thunks_of(plan: Plan, nodes: Sequence[Node]) -> Mapping[str, Thunk]:
    """The thunk that launches each kernel, by name; empty if the two do not correspond.

    A sort has one thunk per kernel; only the first is kept.
    """
    sites = list(sites_of(nodes))
    thunks: list[Thunk] = []
    last_sort = ""
    for thunk in plan.thunks or ():
        if thunk.kind in _NO_LAUNCH:
            continue
        sort = _SORT.match(thunk.detail)
        if sort and sort[1] == last_sort:
            continue
        last_sort = sort[1] if sort else last_sort
        site = sites[len(thunks)] if len(thunks) < len(sites) else None
        if thunk.kind == "kCopy" and site is not None and _overwrites_its_operand(site, plan):
            continue  # of the operand
        thunks.append(thunk)
    if len(sites) != len(thunks):
        return {}
    return {site.name: thunk for site, thunk in zip(sites, thunks, strict=True)}


def _overwrites_its_operand(site: Site, plan: Plan) -> bool:
    """Whether a kernel is a sort or triangular solve: a copy before it is part of it."""
    inner, module = site.inner, plan.module
    if inner.opcode == "sort" or "triangularSolve" in (inner.custom_call_target or ""):
        return True
    body = module.computations.get(next(iter(inner.called_computations), "")) if module else None
    return body is not None and any(item.opcode == "sort" for item in body.instructions)


def graphs_of(plan: Plan, nodes: Sequence[Node], thunks: Mapping[str, Thunk]) -> Mapping[str, int]:
    """The number of the command buffer of each kernel that is in one, by name.

    As in the thunk sequence; or, if XLA wrote that before it made command buffers, runs of at least
    five kernels that XLA can put into one.
    """
    graphs: dict[str, int] = {}
    if any(thunk.kind == "kCommandBuffer" for thunk in plan.thunks or ()):
        names = iter(thunks)
        number, depth = 0, -1
        for thunk in plan.thunks or ():
            if thunk.depth <= depth:
                depth = -1
            if thunk.kind == "kCommandBuffer":
                number, depth = number + 1, thunk.depth
            elif thunk.kind not in _NO_LAUNCH:
                name = next(names, None)
                if name is not None and depth >= 0:
                    graphs[name] = number
        return graphs
    number = 0

    def visit(nodes: Sequence[Node]) -> None:
        nonlocal number
        run: list[str] = []
        for node in (*nodes, None):
            if isinstance(node, Site) and _capturable(node, thunks):
                run.append(node.name)
                continue
            if len(run) >= _SMALLEST_GRAPH:
                number += 1
                graphs.update(dict.fromkeys(run, number))
            run = []
            if isinstance(node, LoopNode):
                visit(node.condition)
                visit(node.body)
            elif isinstance(node, BranchNode):
                for branch in node.branches:
                    visit(branch)

    visit(nodes)
    return graphs


def _capturable(site: Site, thunks: Mapping[str, Thunk]) -> bool:
    thunk = thunks.get(site.name)
    if thunk is not None:
        return thunk.kind in _IN_GRAPHS
    target = site.inner.custom_call_target or ""
    return site.inner.opcode in ("fusion", "copy") or target.startswith(
        ("__cublas$lt", "__cudnn$fmha")
    )
