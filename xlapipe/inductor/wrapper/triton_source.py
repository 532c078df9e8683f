"""Triton kernels as the wrapper code holds them: their source text, read by its fixed spellings.

The source is never compiled or run. Inductor writes one load or store in a line:
`tmp0 = tl.load(in_ptr0 + (x0 + 512*r0_1), xmask)`, `tl.store(out_ptr0 + (x0), tmp3, xmask)`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from xlapipe.inductor.expressions import linear_terms
from xlapipe.inductor.layouts import dtype_name

_HEURISTIC = re.compile(r"@triton_heuristics\.(\w+)\(")
_SIGNATURE = re.compile(r"'signature': \{(.*?)\}")
_ARGUMENT = re.compile(r"'?(\w+)'?: '([^']*)'")
_MUTATED = re.compile(r"'mutated_arg_names': \[(.*?)\]")
_REDUCTIONS = re.compile(r"'num_reduction': (\d+)")
_PARAMETERS = re.compile(r"^def \w+\((.*?)\):\s*$", re.MULTILINE | re.DOTALL)
_LOAD = re.compile(r"tl\.load\((\w+) \+ \(")
_STORE = re.compile(r"tl\.store\((\w+) \+ \(")
_STORED = re.compile(r", (\w+)(?:, |\))")
_VARIABLE = re.compile(r"^\s*([xyzr]\d?_?\d*) = (.*[xyzr]\d?_?index.*|\w*index)$")
_ONE_ROW = re.compile(r"XBLOCK: tl\.constexpr = 1\b")
_FLOAT64 = "tl.float64"
# Characters of an index expression.
_LONGEST_INDEX = 4_000
_SIZE = re.compile(r"^\s*[xyz]numel = (\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KernelLoad:
    """A load whose neighbouring lanes read elements that are `stride` apart."""

    pointer: str
    index: str
    stride: int


@dataclass(frozen=True)
class TritonKernel:
    """One kernel's definition.

    Attributes:
      origins: the operators in the comment above it, e.g. `aten.mul`.
      fragment: names of FX nodes that its comment lists.
    """

    name: str
    source: str
    line: int
    origins: tuple[str, ...] = ()
    fragment: tuple[str, ...] = ()

    @cached_property
    def heuristic(self) -> str | None:
        """Inductor's class of kernel, e.g. `pointwise`, `template`, `user_autotune`."""
        match = _HEURISTIC.search(self.source)
        return match[1] if match is not None else None

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters that the wrapper passes by position."""
        match = _PARAMETERS.search(self.source)
        if match is None:
            return ()
        names = [part.split(":") for part in match[1].replace("\n", " ").split(",") if part.strip()]
        return tuple(name[0].strip() for name in names if "constexpr" not in ":".join(name[1:]))

    @cached_property
    def dtypes(self) -> Mapping[str, str]:
        """torch's dtype of each pointer by the parameter's name."""
        match = _SIGNATURE.search(self.source)
        if match is None:
            return {}
        dtype_of = {}
        for key, kind in _ARGUMENT.findall(match[1]):
            # Up to torch 2.4 the keys are positions.
            if kind.startswith("*"):
                at = int(key) if key.isdecimal() else len(self.parameters)
                name = self.parameters[at] if at < len(self.parameters) else key
                dtype_of[name] = dtype_name(kind[1:])
        return dtype_of

    @cached_property
    def written(self) -> frozenset[str]:
        """Parameters that it writes."""
        match = _MUTATED.search(self.source)
        mutated = re.findall(r"'(\w+)'", match[1]) if match is not None else []
        named = (name for name in self.parameters if name.startswith(("out_ptr", "in_out_ptr")))
        stored = (
            match[1] for match in re.finditer(r"tl\.(?:store|atomic_\w+)\((\w+) \+", self.source)
        )
        return frozenset((*mutated, *named, *stored)) & frozenset(self.parameters)

    @cached_property
    def read(self) -> frozenset[str]:
        """Pointers that it may read: those that it is not known only to write."""
        return frozenset(
            name
            for name in self.parameters
            if not name.startswith("out_ptr") and (name in self.dtypes or "ptr" in name)
        )

    @cached_property
    def reductions(self) -> int:
        match = _REDUCTIONS.search(self.source)
        return int(match[1]) if match is not None and len(match[1]) < 9 else 0

    @cached_property
    def duplicate_stores(self) -> tuple[tuple[str, str], ...]:
        """(pointer, first pointer) that get the same values of one dtype at the same places."""
        first: dict[tuple[str, str, str | None], str] = {}
        duplicates = []
        for store in filter(None, map(_STORE.search, self.source.splitlines())):
            index, after = _closed(store.string, store.end())
            value = _STORED.match(store.string, after)
            if value is not None:
                key = (index, value[1], self.dtypes.get(store[1]))
                if first.setdefault(key, store[1]) != store[1]:
                    duplicates.append((store[1], first[key]))
        return tuple(duplicates)

    @cached_property
    def strided_loads(self) -> tuple[KernelLoad, ...]:
        """Loads in which no neighbouring lanes read neighbouring elements."""
        lanes = self._lanes
        loads: dict[str, KernelLoad] = {}
        for match in _LOAD.finditer(self.source):
            index, _ = _closed(self.source, match.end())
            terms = linear_terms(index) or {}
            strides = [abs(factor) for name, factor in terms.items() if name in lanes and factor]
            if strides and 1 not in strides:
                loads.setdefault(match[1], KernelLoad(match[1], index, min(strides)))
        return tuple(loads.values())

    @cached_property
    def _lanes(self) -> frozenset[str]:
        """Index variables whose neighbours are in neighbouring lanes."""
        one_row = _ONE_ROW.search(self.source) is not None
        variables = filter(None, map(_VARIABLE.match, self.source.splitlines()))
        return frozenset(
            variable[1]
            for variable in variables
            if "//" not in variable[2] and not (one_row and variable[1].startswith("x"))
        )

    @cached_property
    def float64_elements(self) -> int | None:
        """How many elements it computes in float64; None if it computes none."""
        if _FLOAT64 not in self.source:
            return None
        return prod(int(size) for size in _SIZE.findall(self.source) if len(size) < 19)


def _closed(text: str, start: int) -> tuple[str, int]:
    """The text from `start` to the bracket that closes, and the place after that."""
    depth = 1
    for at in range(start, min(len(text), start + _LONGEST_INDEX)):
        depth += (text[at] == "(") - (text[at] == ")")
        if not depth:
            return text[start:at], at + 1
    return "", len(text)
