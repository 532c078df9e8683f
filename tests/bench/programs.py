"""The program that the benchmarks compile: Qwen3's decode step with 28 layers."""

from models.qwen3.workloads import qwen3_decode
from xlapipe import Workload


def decode_28() -> Workload:
    return qwen3_decode(layers=28)
