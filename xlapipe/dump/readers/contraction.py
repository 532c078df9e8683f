"""Read what a dot or a convolution sums over, from HLO text and from the proto."""

import re
from collections.abc import Iterable, Mapping

from xlapipe.dump.readers.hlo_proto import HloInstructionProto
from xlapipe.plans.hlo import Contraction
from xlapipe.plans.opcodes import CONTRACTS

# cuDNN's convolutions are custom calls.
_ALONG_DIMENSIONS = frozenset({"broadcast", "fft", "iota", "reduce", "sort", "transpose"})
_AT_OTHER_PLACES = frozenset({"gather", "pad", "reduce-window", "slice"})
MAY_CONTRACT = CONTRACTS | _ALONG_DIMENSIONS | _AT_OTHER_PLACES | {"custom-call"}

# PrecisionConfig.Algorithm in xla_data.proto, spelled as in HLO text.
_ALGORITHMS = (
    None,
    "dot_any_f8_any_f8_f32",
    "dot_any_f8_any_f8_f32_fast_accum",
    "dot_f16_f16_f16",
    "dot_f16_f16_f32",
    "dot_bf16_bf16_bf16",
    "dot_bf16_bf16_f32",
    "dot_bf16_bf16_f32_x3",
    "dot_bf16_bf16_f32_x6",
    "dot_tf32_tf32_f32",
    "dot_tf32_tf32_f32_x3",
    "dot_f32_f32_f32",
    "dot_f64_f64_f64",
    "dot_bf16_bf16_f32_x9",
)
# Attributes that are a list of dimensions.
_NUMBERS = ("fft_length", "iota_dimension", "dimensions")
_OF_GATHER = ("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_index_map")
_DIGITS = re.compile(r"\d{1,6}")
# Per dimension: `[start:limit:stride]` of a slice, `low_high_interior` of a pad.
_SLICE = re.compile(r"\[(\d{1,18}):\d+(?::(\d{1,18}))?\]")
_PADDING = re.compile(r"(-?\d{1,18})_-?\d+(?:_(\d{1,18}))?")
_WINDOW_SIZES = re.compile(r"\bsize=([\dx]+)")
_WINDOW_PADS = re.compile(r"\bpad=([-\d_x]+)")


def contraction_of_text(attributes: Mapping[str, str]) -> Contraction | None:
    """The contraction in an instruction's attributes; None if they have no dimensions of one."""
    if "dim_labels" in attributes:
        kernel, _, result = attributes["dim_labels"].partition("_")[2].partition("->")
        dims = [index for index, label in enumerate(kernel) if label != "o"]
        return Contraction(
            tuple(dims),
            attributes.get("algorithm"),
            tuple(result.find(kernel[dim]) for dim in dims),
        )
    if "lhs_contracting_dims" in attributes:
        dims = sorted(map(int, _DIGITS.findall(attributes["lhs_contracting_dims"])))
    elif "rhs_batch_dims" in attributes or "lhs_batch_dims" in attributes:
        dims = []  # an outer product of batches
    elif "offset_dims" in attributes:
        offset, collapsed, batching, starts = (
            tuple(map(int, _DIGITS.findall(attributes.get(name, "")))) for name in _OF_GATHER
        )
        return Contraction(_dims_of_gather(offset, collapsed + batching), None, starts)
    elif "slice" in attributes:
        places = _SLICE.findall(attributes["slice"])
        return _at_places((int(stride or 1), int(start)) for start, stride in places)
    elif "padding" in attributes:
        padded = _PADDING.findall(attributes["padding"])
        return _at_places((int(interior or 0), int(low)) for low, interior in padded)
    elif "window" in attributes:
        sizes = _WINDOW_SIZES.search(attributes["window"])
        pads = _WINDOW_PADS.search(attributes["window"])
        if sizes is None:
            return None
        dims = [int(size) for size in _DIGITS.findall(sizes[1])]
        lows = [int(low) for low, _ in _PADDING.findall(pads[1])] if pads else [0] * len(dims)
        return Contraction(tuple(dims), None, tuple(lows))
    else:
        numbers = next((attributes[name] for name in _NUMBERS if name in attributes), None)
        return None if numbers is None else Contraction(tuple(map(int, _DIGITS.findall(numbers))))
    return Contraction(tuple(dims), attributes.get("algorithm"))


def contraction_of_proto(proto: HloInstructionProto) -> Contraction | None:
    """The same from an instruction's proto."""
    starts: tuple[int, ...] = ()
    if proto.HasField("convolution_dimension_numbers"):
        numbers = proto.convolution_dimension_numbers
        spatial = (numbers.kernel_spatial_dimensions, numbers.output_spatial_dimensions)
        pairs = sorted([*zip(*spatial, strict=False), (numbers.kernel_input_feature_dimension, -1)])
        dims, starts = [dim for dim, _ in pairs], tuple(place for _, place in pairs)
    elif proto.HasField("dot_dimension_numbers"):
        dims = list(proto.dot_dimension_numbers.lhs_contracting_dimensions)
    elif proto.opcode in _ALONG_DIMENSIONS:
        return Contraction(tuple(proto.fft_length or proto.dimensions))
    elif proto.opcode == "gather":
        gather = proto.gather_dimension_numbers
        read_at_index = (*gather.collapsed_slice_dims, *gather.operand_batching_dims)
        of_gather = _dims_of_gather(tuple(gather.offset_dims), read_at_index)
        return Contraction(of_gather, None, tuple(gather.start_index_map))
    elif proto.opcode == "slice":
        return _at_places((dim.stride, dim.start) for dim in proto.slice_dimensions)
    elif proto.opcode == "pad":
        padded = proto.padding_config.dimensions
        return _at_places((dim.interior_padding, dim.edge_padding_low) for dim in padded)
    elif proto.opcode == "reduce-window":
        return _at_places((dim.size, dim.padding_low) for dim in proto.window.dimensions)
    else:
        return None
    number = proto.precision_config.algorithm
    algorithm = _ALGORITHMS[number] if 0 <= number < len(_ALGORITHMS) else None
    return Contraction(tuple(sorted(dims)), algorithm, starts)


def _at_places(pairs: Iterable[tuple[int, int]]) -> Contraction:
    """One of which each dimension has a number and a start."""
    listed = list(pairs)
    return Contraction(tuple(n for n, _ in listed), None, tuple(start for _, start in listed))


def _dims_of_gather(offset: tuple[int, ...], at_index: tuple[int, ...]) -> tuple[int, ...]:
    """The operand's dimension of each of the result's up to the last offset; -1 for an index."""
    kept = (dim for dim in range(len(offset) + len(at_index)) if dim not in at_index)
    dims = [-1] * (max(offset, default=-1) + 1)
    for position, dim in zip(sorted(offset), kept, strict=False):
        dims[position] = dim
    return tuple(dims)
