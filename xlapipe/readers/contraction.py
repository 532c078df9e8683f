"""Read what a dot or a convolution sums over, from HLO text and from the proto."""

import re
from collections.abc import Mapping

from xlapipe.plans.hlo import Contraction
from xlapipe.plans.opcodes import CONTRACTS
from xlapipe.readers.hlo_proto import HloInstructionProto

# cuDNN's convolutions are custom calls.
_ALONG_DIMENSIONS = frozenset({"broadcast", "fft", "reduce", "sort", "transpose"})
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
_DIGITS = re.compile(r"\d{1,6}")
# Of each dimension: `[start:limit:stride]` of a slice, `low_high_interior` of a pad.
_SLICE = re.compile(r"\[\d+:\d+(?::(\d{1,18}))?\]")
_PADDING = re.compile(r"-?\d+_-?\d+(?:_(\d{1,18}))?")
_WINDOW_SIZES = re.compile(r"\bsize=([\dx]+)")


def contraction_of_text(attributes: Mapping[str, str]) -> Contraction | None:
    """The contraction in an instruction's attributes; None if they have no dimensions of one."""
    if "dim_labels" in attributes:
        kernel = attributes["dim_labels"].partition("_")[2].partition("->")[0]
        dims = [index for index, label in enumerate(kernel) if label != "o"]
    elif "lhs_contracting_dims" in attributes:
        dims = sorted(map(int, _DIGITS.findall(attributes["lhs_contracting_dims"])))
    elif "rhs_batch_dims" in attributes or "lhs_batch_dims" in attributes:
        dims = []  # an outer product of batches
    elif "offset_dims" in attributes:
        offset, collapsed, batching = (
            tuple(map(int, _DIGITS.findall(attributes.get(name, ""))))
            for name in ("offset_dims", "collapsed_slice_dims", "operand_batching_dims")
        )
        return Contraction(_dims_of_gather(offset, collapsed + batching))
    elif "slice" in attributes:
        strides = _SLICE.findall(attributes["slice"])
        return Contraction(tuple(int(stride or 1) for stride in strides))
    elif "padding" in attributes:
        interior = _PADDING.findall(attributes["padding"])
        return Contraction(tuple(int(number or 0) for number in interior))
    elif "window" in attributes:
        sizes = _WINDOW_SIZES.search(attributes["window"])
        return Contraction(tuple(map(int, _DIGITS.findall(sizes[1])))) if sizes else None
    elif "fft_length" in attributes or "dimensions" in attributes:
        numbers = attributes.get("fft_length") or attributes["dimensions"]
        return Contraction(tuple(int(digits) for digits in _DIGITS.findall(numbers)))
    else:
        return None
    return Contraction(tuple(dims), attributes.get("algorithm"))


def contraction_of_proto(proto: HloInstructionProto) -> Contraction | None:
    """The same from an instruction's proto."""
    if proto.HasField("convolution_dimension_numbers"):
        numbers = proto.convolution_dimension_numbers
        dims = [*numbers.kernel_spatial_dimensions, numbers.kernel_input_feature_dimension]
    elif proto.HasField("dot_dimension_numbers"):
        dims = list(proto.dot_dimension_numbers.lhs_contracting_dimensions)
    elif proto.opcode in _ALONG_DIMENSIONS:
        return Contraction(tuple(proto.fft_length or proto.dimensions))
    elif proto.opcode == "gather":
        gather = proto.gather_dimension_numbers
        read_at_index = (*gather.collapsed_slice_dims, *gather.operand_batching_dims)
        return Contraction(_dims_of_gather(tuple(gather.offset_dims), read_at_index))
    elif proto.opcode == "slice":
        return Contraction(tuple(dim.stride for dim in proto.slice_dimensions))
    elif proto.opcode == "pad":
        return Contraction(tuple(dim.interior_padding for dim in proto.padding_config.dimensions))
    elif proto.opcode == "reduce-window":
        return Contraction(tuple(dim.size for dim in proto.window.dimensions))
    else:
        return None
    number = proto.precision_config.algorithm
    algorithm = _ALGORITHMS[number] if 0 <= number < len(_ALGORITHMS) else None
    return Contraction(tuple(sorted(dims)), algorithm)


def _dims_of_gather(offset: tuple[int, ...], at_index: tuple[int, ...]) -> tuple[int, ...]:
    """The operand's dimension of each of the result's up to the last offset; -1 for an index."""
    kept = (dim for dim in range(len(offset) + len(at_index)) if dim not in at_index)
    dims = [-1] * (max(offset, default=-1) + 1)
    for position, dim in zip(sorted(offset), kept, strict=False):
        dims[position] = dim
    return tuple(dims)
