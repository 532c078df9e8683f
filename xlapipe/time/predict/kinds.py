"""Kinds of kernels, and the features by which kernels of a kind are similar.

Each kind goes the same way: features, from the plan; parts of a roofline, from the features and the
GPU's constants; the correction by similar timed kernels; their spread. Sizes are base-2 logarithms
in `KernelWork.point`, some of them weighted, in the order of this table.
"""

_BYTES = ("bytes",)
_FUSION = (*_BYTES, "threads", "share written", "operations per byte", "elements per thread")
# Whether memory or all else is the bottleneck of a kernel that XLA's emitters write.
_BOUND = ("bound beside memory",)
_REDUCED = ("elements of a sum", "adjacent sums", "threads of a block")
_INDEXED = ("elements of a row", "bytes of the array", "times each place is accessed")
_SCATTER = ("elements of the indices", *_BYTES, "share written", *_INDEXED, *_BOUND)
_PRODUCT = ("flops", "bytes read", "bytes written", "terms", "threads", "area of the tile")
_CALL = (*_PRODUCT[:4], "input channels", "output channels")
_SORT = ("elements", "elements of a row", "arrays", "distance of neighbours")
_FACTORS = ("rows", "columns", "batch", "batched")

KINDS: dict[str, tuple[str, ...]] = {
    "loop row reduction": (*_FUSION, *_REDUCED, *_BOUND),
    "loop column reduction": (*_FUSION, *_REDUCED, *_BOUND),
    "input row reduction": (*_FUSION, *_REDUCED, *_BOUND),
    "input column reduction": (*_FUSION, *_REDUCED, "whole tiles", "vector", *_BOUND),
    "loop gather": (*_FUSION, *_INDEXED, *_BOUND),
    "input gather": (*_FUSION, *_INDEXED, *_BOUND),
    "loop scatter": _SCATTER,
    "input scatter": _SCATTER,
    "loop sort": (*_SORT, *_BOUND),
    "input sort": (*_SORT, *_BOUND),
    "loop": (*_FUSION, *_BOUND),
    "input": (*_FUSION, *_BOUND),
    "triton row reduction": (*_FUSION, *_REDUCED, "separate pieces", "dependent sums"),
    "triton column reduction": (*_FUSION, *_REDUCED),
    "triton bf16": (*_PRODUCT, "misaligned share", "terms of a step", "stages"),
    "triton f": (*_PRODUCT, "misaligned share", "terms of a step", "stages"),
    "triton s8": (*_PRODUCT, "misaligned share", "terms of a step", "stages"),
    "triton gather": (*_FUSION, *_INDEXED),
    "triton": _FUSION,
    "cublas": _PRODUCT[:5],
    "__cudnn$conv": (*_CALL, "groups", "engine"),
    "__cudnn$fmha": (*_CALL, "elements of a window per term"),
    "__cublas$triangularSolve": ("size", "right-hand sides", "batch", "partial blocks"),
    "cusolver": _FACTORS,
    "cusparse_gtsv2": ("size", "right-hand sides", "batch"),
    "cu_lu_pivots_to_permutation": ("pivots", "batch"),
    "fft": ("elements", "length", "roughness of the length"),
    "__gpu$TopK": ("elements of a row", "rows", "results of a row"),
    "custom sort": _SORT,
    "xla.gpu.ext.cub_sort": ("elements", "elements of a row", *_BYTES, "bytes of a key"),
    "pallas code": (
        *(*_BYTES, "programs", "warps", "steps", "bound beside memory", "registers"),
        "operations of a step",
    ),
    "pallas product": (
        *(*_BYTES, "programs", "warps", "steps", "bound beside memory", "registers"),
        "operations of a step",
    ),
    "pallas ": (*_BYTES, "elements"),
    "pallas": (*_BYTES, "threads", "elements", "threads of a block"),
    **dict.fromkeys(("copy", "host copy", "all-gather", "all-reduce", "all-to-all"), _BYTES),
    **dict.fromkeys(("collective-permute", "reduce-scatter"), _BYTES),
}
"""Features by kind, or by the beginning of several; the first that applies."""


def features_of(kind: str) -> tuple[str, ...] | None:
    """Names of the features of a kind; None of one that the table lacks."""
    return next((names for prefix, names in KINDS.items() if kind.startswith(prefix)), None)
