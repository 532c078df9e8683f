"""The counted code of Pallas kernels, beside XLA's files of a program that was timed."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from xlapipe.files.typed_data import typed
from xlapipe.plans.kernel_code import KernelCode
from xlapipe.plans.plan import Plan

KERNEL_CODES = "kernel_codes.json"


def write_kernel_codes(folder: Path, codes: Sequence[KernelCode]) -> None:
    """Writes `kernel_codes.json`."""
    text = json.dumps([asdict(code) for code in codes], separators=(",", ":"))
    (folder / KERNEL_CODES).write_text(text, encoding="utf-8")


def with_kernel_codes(plan: Plan, folder: Path) -> Plan:
    """The plan of a folder with the codes there, if there are any."""
    path = folder / KERNEL_CODES
    if not path.exists():
        return plan
    codes = json.loads(path.read_text(encoding="utf-8"))
    return replace(plan, kernel_codes=tuple(typed(KernelCode, code) for code in codes))
