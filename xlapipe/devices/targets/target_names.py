"""Names of targets as people write them: `H100`, `a100-40gb`, `RTX A6000`, `tpu v5e`.

A text names a row of the catalogue if it has the letters and numbers of the row's family (`h100`),
and nothing that the row's name, description and memory do not have.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PARTS = re.compile(r"[a-z]+|\d+")
_SOCKET = re.compile(r"sxm\d?(?!\d)")
# Cloud's name of the chips whose name ends with e.
_LITE = re.compile(r"\b(v\d)lite(?:pod)?")
# Default when only the family is given.
_USUAL = ("h100_sxm", "a100_sxm_80")
# How far a number of gigabytes, of either kind, may be from the device's memory.
_MEMORY_ERROR = 0.06
# Words before a GPU's name, and the unit of its memory, whose short form may also end a name: A10G.
_FILLERS = {"nvidia", "tesla", "geforce", "quadro", "gb"}
_GIGABYTES = re.compile(r"(?<=[\s_-])(\d+)g\b")


@dataclass(frozen=True, slots=True)
class Named:
    """What a text can name.

    Attributes:
      description: the device's own name.
      memory_bytes: memory of the device.
      compute_capability: compute capability of a GPU, or its architecture; empty for a TPU.
    """

    name: str
    description: str
    memory_bytes: int
    compute_capability: str = ""


@dataclass(frozen=True, slots=True)
class TargetMatch:
    """What a text names.

    Attributes:
      name: in the catalogue; None if it is unknown, or several without a usual one.
      others: other names that the text fits, or, without a name, those that begin alike.
    """

    name: str | None
    others: tuple[str, ...] = ()


def resolve_target(text: str, rows: Mapping[str, Named]) -> TargetMatch:
    """The row that `text` names.

    Args:
      rows: the catalogue, by name.
    """
    if text in rows:
        return TargetMatch(text)
    plain = _LITE.sub(r"\1e", _SOCKET.sub("sxm ", _GIGABYTES.sub(r"\1", text.lower())))
    parts = set(_PARTS.findall(plain)) - _FILLERS
    matches = [name for name, row in rows.items() if parts and _fits(parts, row)]
    usual = [name for name in matches if name in _USUAL] or matches
    if len(usual) == 1:
        return TargetMatch(usual[0], tuple(name for name in matches if name != usual[0]))
    last = text.lower().split()[-1:]
    begin = [name for name in rows if last and name.startswith(last[0])]
    return TargetMatch(None, tuple(matches or begin))


def _fits(parts: set[str], row: Named) -> bool:
    family = set(_PARTS.findall(row.name.split("_")[0])) - {"tpu", "rtx"}
    if not row.compute_capability and parts & {"trillium", "ironwood"}:
        family = parts
    words = set(_PARTS.findall(f"{row.name} {row.description}".lower()))
    if "pcie" not in words:
        words.add("sxm")
    if "mig" in words - parts:  # a part of a GPU is meant only by its name
        return False
    return family <= parts and all(
        part in words or (part.isdigit() and _is_memory(int(part), row.memory_bytes))
        for part in parts
    )


def _is_memory(gigabytes: int, memory_bytes: int) -> bool:
    return any(
        abs(gigabytes * unit - memory_bytes) <= _MEMORY_ERROR * memory_bytes
        for unit in (10**9, 2**30)
    )
