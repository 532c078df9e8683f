"""Registered workloads at other batch sizes."""

from models.qwen3.workloads import qwen3_decode
from xlapipe import Workload


def decode_of_four() -> Workload:
    """Qwen3's decode step for four sequences."""
    return qwen3_decode(batch=4)
