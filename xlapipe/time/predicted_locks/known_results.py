"""Results that devices' tuners are known to have chosen, as one table per device and jaxlib."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from xlapipe.errors import TargetError
from xlapipe.files.contents import Refusal, read_plain
from xlapipe.time.predicted_locks.form import Form

TABLES = Path(__file__).with_name("tables")
_LIMIT_BYTES = 64 << 20
_PARTS = tuple(
    re.compile(pattern)
    for pattern in (
        r'device: "(\w+)"',
        r'hlo_fingerprint: "(\w+)"',
        r'codegen_version: "(\w+)"',
        r"optimal_config \{",
    )
)
_VERSION = re.compile(r'optimal_backend_version: "([^"]*)"')
_BACKEND = re.compile(r"\bbackend: (\w+)")
TRITON_COMMITS = {
    "0.11.2": "a77e7c793abc0d0c923a9afb275058e2fe57a198",
    "0.12.0.1": "b575c0c38d428a609e25487db64051a5fa7bfab8",
}
"""The commit of Triton in each known jaxlib, the oldest first. XLA of 0.12 ignores results of
another one."""


@dataclass(frozen=True)
class KnownResult:
    """What a tuner chose for one instruction.

    Attributes:
      fingerprint: of the instruction; empty if only its form is known.
      config: XLA's `optimal_config` in text format, on one line; its backend alone if no more is
        known.
      version: of the backend that was chosen.
      form: of the instruction; None if only its fingerprint is known, and for other fusions.
      programs: names of those in whose lock it is.
      other_device: whether it is of another device of the same architecture.
      other_jaxlib: whether it is of another jaxlib than the installed one.
      margin: octaves of time by which another backend's best candidate was slower, as the tuner
        measured it; None if unknown.
    """

    fingerprint: str
    config: str
    version: str
    form: Form | None = None
    programs: tuple[str, ...] = ()
    other_device: bool = False
    other_jaxlib: bool = False
    margin: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the config states more than the backend."""
        return "backend_config" in self.config

    @property
    def backend(self) -> str:
        """XLA's name of the chosen backend, e.g. `TRITON`."""
        match = _BACKEND.search(self.config)
        return match[1] if match is not None else ""


@dataclass(frozen=True)
class KnownResults:
    """Results of one device and one version of XLA.

    Attributes:
      device: XLA's key of the device.
      codegen: XLA's key of its version.
      about: what the results are valid for: the fields of an `AutotuneLock` without results.
    """

    device: str
    codegen: str
    about: Mapping[str, Any]
    results: tuple[KnownResult, ...]

    @property
    def jaxlib(self) -> str:
        return str(self.about["versions"].get("jaxlib"))

    def for_jaxlib(self, jaxlib: str) -> "KnownResults | None":
        """The results in the form in which XLA of a jaxlib takes them, marked if of an earlier one.

        Forms of instructions do not depend on jaxlib. Fingerprints do where XLA's canonical text
        changed, and such a result is then used by its form alone.
        """
        if jaxlib == self.jaxlib:
            return self
        order = list(TRITON_COMMITS)
        if self.jaxlib not in order or jaxlib not in order[order.index(self.jaxlib) :]:
            return None
        earlier, own = TRITON_COMMITS[self.jaxlib], TRITON_COMMITS[jaxlib]
        rows = (
            replace(row, version=own if row.version == earlier else row.version, other_jaxlib=True)
            for row in self.results
        )
        return replace(self, results=tuple(rows))

    def without(self, program: str) -> "KnownResults":
        """The results without those known from this program alone."""
        rows = (
            replace(row, programs=tuple(name for name in row.programs if name != program))
            for row in self.results
        )
        return replace(self, results=tuple(row for row in rows if row.programs))

    def with_results(self, results: Iterable[KnownResult]) -> "KnownResults":
        """The results and further ones; programs of equal results are joined."""
        rows = {_key(row): row for row in self.results}
        for row in results:
            earlier = rows.get(key := _key(row), row)
            programs = tuple(sorted({*earlier.programs, *row.programs}))
            rows[key] = replace(earlier, form=earlier.form or row.form, programs=programs)
        return replace(self, results=tuple(rows.values()))

    def with_other_device(self, others: "KnownResults") -> "KnownResults":
        """The results and those of another device of the same architecture."""
        rows = (replace(row, other_device=True) for row in others.results)
        return replace(self, results=(*self.results, *rows))

    def by_fingerprint(self) -> dict[str, KnownResult]:
        """The result of the most programs for each instruction, the first among equals.

        A result of another jaxlib is taken only where the installed one has none.
        """
        own = (row for row in self.results if row.fingerprint and not row.other_device)
        by_count = sorted(
            own, key=lambda row: (not row.other_jaxlib, len(row.programs), row.config)
        )
        return {row.fingerprint: row for row in by_count}

    @cached_property
    def lines(self) -> str:
        """The table as JSON lines: a header, and one line per result."""
        programs = sorted({name for row in self.results for name in row.programs})
        versions = {row.backend: row.version for row in self.results}
        header = {
            "device": self.device,
            "codegen": self.codegen,
            "about": self.about,
            "programs": programs,
            "versions": versions,
        }
        numbers = {name: number for number, name in enumerate(programs)}
        rows = (
            {
                "fingerprint": row.fingerprint,
                "config": row.config,
                "programs": [numbers[name] for name in row.programs],
                **({"version": row.version} if row.version != versions[row.backend] else {}),
                **({"form": vars(row.form)} if row.form is not None else {}),
                **({"other_device": True} if row.other_device else {}),
                **({"other_jaxlib": True} if row.other_jaxlib else {}),
                **({"margin": row.margin} if row.margin is not None else {}),
            }
            for row in sorted(self.results, key=repr)
        )
        return "".join(
            json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in (header, *rows)
        )

    @classmethod
    def read(cls, path: Path) -> "KnownResults":
        """Read a table; refuses a file that is none."""
        refusal = Refusal(TargetError, "install xlapipe again")
        lines = read_plain(path, limit_bytes=_LIMIT_BYTES, refusal=refusal).decode().splitlines()
        try:
            header, *rows = map(json.loads, lines)
            keys = header["device"], header["codegen"], header["about"]
            return cls(*keys, tuple(_result(row, header) for row in rows))
        except (KeyError, TypeError, ValueError) as error:
            raise TargetError(f"{path}: not a table of known results: {error}") from None


def _key(row: KnownResult) -> tuple[object, ...]:
    form = None if row.fingerprint else row.form
    return row.fingerprint, row.config, row.other_device, row.other_jaxlib, form


def _result(row: Mapping[str, Any], header: Mapping[str, Any]) -> KnownResult:
    form = row.get("form")
    if form is not None:
        form = Form(**{**form, "dimensions": tuple(form["dimensions"])})
    result = KnownResult(
        row["fingerprint"],
        row["config"],
        row.get("version", ""),
        form,
        tuple(header["programs"][number] for number in row["programs"]),
        row.get("other_device", False),
        row.get("other_jaxlib", False),
        row.get("margin"),
    )
    return replace(result, version=result.version or header["versions"][result.backend])


# XLA's keys of the device and of its version, and the results.
LockResults: TypeAlias = tuple[tuple[str, str], tuple[KnownResult, ...]]


def results_of_lock(results: str, *, program: str) -> LockResults:
    """XLA's keys of the device and its version, and the results of AutotuneResults as text.

    Raises:
      TargetError: the text holds no entries, or those of several devices or versions.
    """
    rows = [row for row in map(_row, _entries(results)) if row is not None]
    keys = {key for key, _ in rows}
    if len(keys) != 1:
        raise TargetError(
            "autotune results: expected entries of one device and one version of XLA, found "
            f"{len(keys)}; fix: give a lock that jaxlib 0.11 or later made"
        )
    return keys.pop(), tuple(replace(row, programs=(program,)) for _, row in rows)


def _row(entry: str) -> tuple[tuple[str, str], KnownResult] | None:
    """Keys and result of an entry, whose fields come in this order; None for other entries."""
    position, parts = 0, []
    for pattern in _PARTS:
        match = pattern.search(entry, position)
        if match is None:
            return None
        position = match.end()
        parts.append(match)
    device, fingerprint, codegen, _ = parts
    end = entry.rfind("optimal_backend_version", position)
    version = _VERSION.match(entry, max(end, 0))
    config = entry[position : max(end, position)].rstrip()
    if version is None or not config.endswith("}"):
        return None
    result = KnownResult(fingerprint[1], " ".join(config[:-1].split()), version[1])
    return (device[1], codegen[1]), result


def _entries(results: str) -> Iterator[str]:
    """The contents of the outermost messages `entries`, as XLA prints them."""
    lines: list[str] = []
    for line in results.splitlines(keepends=True):
        if line == "entries {\n":
            lines = []
        elif line == "}\n":
            yield "".join(lines)
            lines = []
        else:
            lines.append(line)
