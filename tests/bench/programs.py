"""The programs that the benchmarks compile: Qwen3's decode step at several depths."""

from models.qwen3.workloads import qwen3_decode
from xlapipe import Workload


def decode_7() -> Workload:
    return qwen3_decode(layers=7)


def decode_28() -> Workload:
    return qwen3_decode(layers=28)


def decode_112() -> Workload:
    return qwen3_decode(layers=112)


def decode_150() -> Workload:
    return qwen3_decode(layers=150)
