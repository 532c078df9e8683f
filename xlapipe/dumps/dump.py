"""A Dump: a directory with a manifest, the only thing that crosses from compiling to reading.

Files of more than 256 KiB are gzip-compressed. The manifest holds the SHA-256 of each file's
content, so that a damaged or edited dump is refused.
"""

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.errors import DumpError, PlanMismatchError, XlapipeError
from xlapipe.plan import Plan, SourceLine
from xlapipe.plan.program import (
    ArgumentLeaf,
    OutputLeaf,
    Program,
    RequestedCollective,
    RequestedDot,
)
from xlapipe.read import read_path

if TYPE_CHECKING:
    from xlapipe.expect import Expectation

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
PLAN, HLO, EXECUTABLE = "plan.txt", "hlo.txt", "executable.pjrt"
# Read by people, or where every millisecond counts.
_NEVER_COMPRESSED = (MANIFEST, PLAN, EXECUTABLE)
# Texts for people and for other commands; what is not read here is not held against its digest.
_NOT_READ = ("before_optimizations.txt", "after_optimizations.txt", HLO, PLAN)
_COMPRESS_ABOVE_BYTES = 256 * 1024
# 9 takes five times as long for 2 % less; kernels in HLO make files of 70 MB.
_COMPRESSION = 6
_LARGEST_MANIFEST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a dump is a dump of.

    Attributes:
      target: the target's name; `target_description` is the device's, `target_source` tells a
        catalogue row from a file or an attached GPU.
      tuned: True if a device's autotune results were found for every fusion that wants one.
      fusion_without_result: the first fusion without, where a lock holds results for others.
      requested_collectives: of the traced program; None for a dump of several devices that was
        made before they were recorded.
      options: XLA options of the workload, of the GEMM policy, and the extra ones.
      extra_options: XLA options that neither the workload nor the policy asks for.
      expectations: as `expectation_to_json` writes them; None stands for one of a user's class.
      memory_analysis: XLA's own totals, in bytes: argument, output, alias, temp.
      mesh: axis names to sizes; None for one device.
      topology: hosts and GPUs that it was laid over, `8x8`; None for one device.
      platform: jax's name of the vendor's platform, e.g. `cuda`.
      files: SHA-256 of each file's content before compression, by name without `.gz`.
    """

    workload: str
    target: str
    target_description: str
    target_source: str
    gemm_policy: str
    tuned: bool
    versions: Mapping[str, str]
    options: Mapping[str, str]
    arguments: tuple[ArgumentLeaf, ...]
    outputs: tuple[OutputLeaf, ...]
    requested_dots: tuple[RequestedDot, ...]
    expectations: tuple[Mapping[str, Any] | None, ...]
    memory_analysis: Mapping[str, int]
    mesh: Mapping[str, int] | None = None
    topology: str | None = None
    requested_collectives: tuple[RequestedCollective, ...] | None = ()
    fusion_without_result: str | None = None
    extra_options: Mapping[str, str] = field(default_factory=dict)
    platform: str = "cuda"
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """The target, and its topology if there are several devices: `h200`, `h200 8x8`."""
        return self.target if self.topology is None else f"{self.target} {self.topology}"

    @property
    def autotuning(self) -> str:
        """How the plan's autotuning is told wherever it is shown."""
        if self.tuned:
            return f"tuned on {self.target_description}"
        if self.fusion_without_result is not None:
            return f"partly tuned (the lock holds no result for {self.fusion_without_result})"
        return "untuned (no autotune results: gemm tiles are XLA's defaults)"

    def to_json(self) -> dict[str, Any]:
        data = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        for name, leaves in (("arguments", self.arguments), ("outputs", self.outputs)):
            data[name] = [leaf.to_json() for leaf in leaves]
        if not self.extra_options:
            del data["extra_options"]  # as in dumps that were made before there were any
        if self.topology is None:
            del data["topology"]
        if self.platform == "cuda":
            del data["platform"]  # as in dumps from before there were other platforms
        if not self.requested_collectives and self.mesh is None:
            del data["requested_collectives"]
        return data

    @classmethod
    def from_json(cls, data: Any, *, where: str) -> "Manifest":
        """Raises DumpError for a manifest of another form or schema."""
        if not isinstance(data, dict):
            raise DumpError(f"{where}: expected a JSON object, found {type(data).__name__}")
        schema = data.get("schema_version")
        if schema != SCHEMA_VERSION:
            newer = isinstance(schema, int) and schema > SCHEMA_VERSION
            raise DumpError(
                f"{where}: schema version {schema!r}, expected {SCHEMA_VERSION}: "
                + ("made by a newer xlapipe; update xlapipe" if newer else "not an xlapipe dump")
            )
        known = {item.name: item for item in fields(cls)}
        given = {key: value for key, value in data.items() if key in known}
        try:
            for name, leaf_class in (("arguments", ArgumentLeaf), ("outputs", OutputLeaf)):
                given[name] = tuple(map(leaf_class.from_json, given[name]))
            given["requested_dots"] = tuple(map(_requested_dot, given["requested_dots"]))
            asked = given.get("requested_collectives", None if given.get("mesh") else ())
            given["requested_collectives"] = (
                None if asked is None else tuple(map(RequestedCollective.from_json, asked))
            )
            given["expectations"] = tuple(given["expectations"])
            manifest = cls(**given)
        except (KeyError, TypeError, ValueError) as error:
            raise DumpError(
                f"{where}: not a manifest of xlapipe: {error}; make the dump again"
            ) from error
        manifest._check_types(where)
        return manifest

    def _check_types(self, where: str) -> None:
        expected: dict[str, type | tuple[type, ...]] = {
            **dict.fromkeys(("workload", "target", "target_description", "target_source"), str),
            "gemm_policy": str,
            "tuned": bool,
            **dict.fromkeys(("versions", "options", "memory_analysis", "files"), dict),
            "extra_options": dict,
            "mesh": (dict, type(None)),
            "topology": (str, type(None)),
            "fusion_without_result": (str, type(None)),
        }
        for name, types in expected.items():
            if not isinstance(getattr(self, name), types):
                raise DumpError(
                    f"{where}: {name} is {getattr(self, name)!r:.60}; make the dump again"
                )
        numbers = [*self.memory_analysis.values(), *(leaf.size_bytes for leaf in self.arguments)]
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise DumpError(f"{where}: a number of bytes that is none; make the dump again")


def _requested_dot(data: Mapping[str, Any]) -> RequestedDot:
    source = data["source"]
    return RequestedDot(
        data["op_name"], data["shape"], SourceLine(**source) if source is not None else None
    )


@dataclass(frozen=True)
class Dump:
    """A dump directory that was read and held against its manifest."""

    path: Path
    manifest: Manifest
    plan: Plan

    @cached_property
    def program(self) -> Program:
        return Program(
            plan=self.plan,
            gemm_policy=self.manifest.gemm_policy,
            arguments=self.manifest.arguments,
            outputs=self.manifest.outputs,
            requested_dots=self.manifest.requested_dots,
            requested_collectives=self.manifest.requested_collectives,
        )

    @property
    def expectations(self) -> "tuple[Expectation, ...]":
        """The expectations recorded with the dump, but for those of users' own classes."""
        from xlapipe.expect import expectation_from_json  # showing a dump needs none

        where = str(self.path / MANIFEST)
        return tuple(
            expectation_from_json(item, where=where)
            for item in self.manifest.expectations
            if item is not None
        )


def is_dump(path: Path) -> bool:
    """Whether `path` is a directory that xlapipe wrote."""
    return (path / MANIFEST).is_file()


def open_dump(path: Path) -> Dump:
    """Reads a dump directory.

    Raises:
      DumpError: a missing, damaged or contradictory file.
      PlanMismatchError: totals that are not XLA's own.
    """
    manifest = read_manifest(path)
    plan = read_path(path)
    check_memory_analysis(plan, manifest.memory_analysis, where=str(path))
    return Dump(path, manifest, plan)


def read_manifest(path: Path) -> Manifest:
    """The manifest of a dump directory, whose files are held against it; the plan is not read.

    Raises:
      DumpError: a missing or damaged file.
    """
    where = path / MANIFEST
    try:
        if where.stat().st_size > _LARGEST_MANIFEST_BYTES:
            raise DumpError(f"{where}: larger than {_LARGEST_MANIFEST_BYTES:,} B; not a manifest")
        data = json.loads(where.read_bytes())
    except OSError as error:
        raise DumpError(f"{where}: cannot be read: {error.strerror}; make the dump again") from None
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{where}: not JSON: {error}; make the dump again") from None
    manifest = Manifest.from_json(data, where=str(where))
    for name, digest in manifest.files.items():
        if name in _NOT_READ:
            continue
        if hashlib.sha256(read_file(path, name)).hexdigest() != digest:
            raise DumpError(
                f"{path / name}: content differs from the SHA-256 in {MANIFEST}: damaged or "
                "edited; make the dump again"
            )
    return manifest


def check_memory_analysis(plan: Plan, analysis: Mapping[str, int], *, where: str) -> None:
    """Holds the plan against the executable's own memory_analysis().

    Raises:
      PlanMismatchError: arguments + outputs - aliased + temp + thread-local is not the total.
    """
    totals = plan.totals
    expected = (
        analysis["argument_bytes"]
        + analysis["output_bytes"]
        - analysis["alias_bytes"]
        + analysis["temp_bytes"]
        + totals.thread_local_bytes
    )
    # XLA counts constants neither as arguments nor as temp.
    found = totals.total_allocation_bytes - totals.constant_bytes
    if found != expected:
        raise PlanMismatchError(
            f"{where}: allocations without constants come to {found:,} B, memory_analysis() to "
            f"{expected:,} B; please report this dump"
        )


def read_file(folder: Path, name: str) -> bytes:
    """Content of a dump's file, compressed or not.

    Raises:
      DumpError: missing or not readable.
    """
    if Path(name).name != name:
        raise DumpError(f"{folder / MANIFEST}: file name {name!r} leaves the dump")
    plain, packed = folder / name, folder / f"{name}.gz"
    try:
        if plain.exists():
            return plain.read_bytes()
        with gzip.open(packed) as stream:
            return stream.read()
    except (OSError, EOFError, ValueError) as error:
        raise DumpError(
            f"{plain}: named in {MANIFEST}, but cannot be read: {error}; make the dump again"
        ) from None


def with_digests(manifest: Manifest, files: Mapping[str, bytes]) -> Manifest:
    """The manifest with the digests of `files`."""
    digests = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    return replace(manifest, files=digests)


def write_dump(
    path: Path,
    manifest: Manifest,
    files: Mapping[str, bytes],
    *,
    remedy: str = "choose another folder with --out",
) -> bool:
    """Writes a dump directory whole or not at all; returns whether a byte changed.

    Args:
      remedy: what to do where the folder cannot be written, for the message.

    Raises:
      XlapipeError: the folder cannot be written.
    """
    manifest = with_digests(manifest, files)
    text = json.dumps(manifest.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    contents = {**files, MANIFEST: text.encode()}
    if _holds(path, contents):
        return False
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    former = path.with_name(f".{path.name}.former-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        for name, content in contents.items():
            _write(partial, name, content)
        if path.exists():
            path.rename(former)
        partial.rename(path)
    except OSError as error:
        if former.exists() and not path.exists():
            former.rename(path)
        raise XlapipeError(f"{path}: cannot be written: {error.strerror}; {remedy}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)
    return True


def _write(folder: Path, name: str, content: bytes) -> None:
    if len(content) > _COMPRESS_ABOVE_BYTES and name not in _NEVER_COMPRESSED:
        packed = gzip.compress(content, compresslevel=_COMPRESSION, mtime=0)
        (folder / f"{name}.gz").write_bytes(packed)
    else:
        (folder / name).write_bytes(content)


def _holds(folder: Path, contents: Mapping[str, bytes]) -> bool:
    """Whether `folder` holds `contents` already: gzip's bytes differ between zlib builds."""
    if not folder.is_dir():
        return False
    names = {item.name.removesuffix(".gz") for item in folder.iterdir()}
    if names != set(contents):
        return False
    try:
        return all(read_file(folder, name) == content for name, content in contents.items())
    except DumpError:
        return False
