"""Read what a dot or a convolution sums over, from HLO text and from the proto."""

import re
from collections.abc import Mapping

from xlapipe.plans.hlo import Contraction
from xlapipe.plans.opcodes import CONTRACTS
from xlapipe.readers.hlo_proto import HloInstructionProto

# cuDNN's convolutions are custom calls.
_ALONG_DIMENSIONS = frozenset({"fft", "reduce", "sort", "transpose"})
MAY_CONTRACT = CONTRACTS | _ALONG_DIMENSIONS | {"custom-call"}

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


def contraction_of_text(attributes: Mapping[str, str]) -> Contraction | None:
    """The contraction in an instruction's attributes; None if they have no dimensions of one."""
    if "dim_labels" in attributes:
        kernel = attributes["dim_labels"].partition("_")[2].partition("->")[0]
        dims = [index for index, label in enumerate(kernel) if label != "o"]
    elif "lhs_contracting_dims" in attributes:
        dims = sorted(map(int, _DIGITS.findall(attributes["lhs_contracting_dims"])))
    elif "rhs_batch_dims" in attributes or "lhs_batch_dims" in attributes:
        dims = []  # an outer product of batches
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
    else:
        return None
    number = proto.precision_config.algorithm
    algorithm = _ALGORITHMS[number] if 0 <= number < len(_ALGORITHMS) else None
    return Contraction(tuple(sorted(dims)), algorithm)
