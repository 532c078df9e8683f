"""The manifest of a Dump: what was compiled, for what, with what, and the digest of each file."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from xlapipe.devices.platforms import PLATFORMS, platform_named
from xlapipe.devices.platforms.dump_files import SOURCE_LINES
from xlapipe.errors import DumpError
from xlapipe.files.typed_data import MisfitError, typed
from xlapipe.files.visible_text import visible_line
from xlapipe.plans import SourceLine
from xlapipe.plans.program import CompileFacts, RequestedCollective, RequestedDot
from xlapipe.plans.short_repr import short_repr
from xlapipe.plans.wording import counted, listed
from xlapipe.time.predicted_locks.basis import shares_text

if TYPE_CHECKING:
    from xlapipe.dump.readers.source_lines import SourceLines

PATCHED = "XLA was changed in memory to compile as on the device"
SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
# All other fields are left out where they have their default, since older dumps lack them.
_ALWAYS_WRITTEN = ("files", "fusion_without_result", "mesh", "requested_collectives")
# Paths that a note names.
_LISTED = 4


@dataclass(frozen=True, kw_only=True)
class Manifest(CompileFacts):
    """The inputs of a dump's compile, and what the compile reported.

    Attributes:
      target_description: the device's name; `target_source` is one of `catalogue`, `file` and
        `attached`.
      tuned: True if a device's autotune results covered every fusion that needs one.
      extra_options: XLA options of neither the workload nor the policy.
      platform: jax's name of the vendor's platform, e.g. `cuda`.
      reference: what the user named to compile it, `module:attribute(layers=2)` or a registered
        name; None if that is the workload's name, and in older dumps.
      without_xla_patches: names of changes to XLA that the user switched off.
      left_out: variables of the user's environment that the compile did not get, `NAME=value`.
      files: SHA-256 of each file's content before compression, by name without `.gz` or `.xz`;
        empty for `source_lines.json`, which may change where the plan does not.
    """

    __repr__ = short_repr

    # Without the defaults that they have while they are unknown.
    target: str = field()
    gemm_policy: str = field()
    requested_dots: tuple[RequestedDot, ...] = field()
    target_description: str
    target_source: str
    tuned: bool
    extra_options: Mapping[str, str] = field(default_factory=dict)
    platform: str = "cuda"
    reference: str | None = None
    left_out: tuple[str, ...] = ()
    without_xla_patches: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def compiled_name(self) -> str:
        """Options with which a command recompiles it."""
        return self.reference or self.workload

    @property
    def title(self) -> str:
        """The workload with the arguments that it was compiled with, e.g. `gpt(batch=64)`."""
        _, bracket, arguments = (self.reference or "").partition("(")
        return self.workload + bracket + arguments

    @property
    def device(self) -> str:
        """The target, with the topology if there are several devices: `h200`, `h200 8x8`."""
        return self.target if self.topology is None else f"{self.target} {self.topology}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of the program to judge its plan."""
        return (
            *self.notes_on_step,
            *(
                [f"patches of XLA that were switched off: {', '.join(self.without_xla_patches)}"]
                if self.without_xla_patches
                else []
            ),
            *(
                f"{variable} of the environment is left out, since a plan must not depend on it; "
                "fix: jax.config.update in the module, or the workload's options for XLA's flags"
                for variable in self.left_out
            ),
        )

    @property
    def notes_on_step(self) -> tuple[str, ...]:
        """Those of the notes that may be a mistake in the step."""
        unused = [leaf.path for leaf in self.arguments if leaf.parameter_number is None]
        constant = [leaf.path for leaf in self.outputs if leaf.constant]
        every = ", so the program computes constants" if len(constant) == len(self.outputs) else ""
        return (
            *_paths_note("argument", unused, "not used by the program"),
            *_paths_note("output", constant, f"independent of all arguments{every}"),
            *_paths_note(
                "value",
                self.dropped_updates,
                "stored in Python objects, which jax.jit drops (nnx.jit carries modules' updates "
                "out; others must be returned)",
            ),
            *_paths_note(
                "answer",
                self.asked_early,
                "about devices not the target's (ask jax inside the step)",
            ),
        )

    @property
    def tuned_or_none(self) -> bool | None:
        """`tuned`; None on a platform whose plans depend on no autotune results."""
        return self.tuned if platform_named(self.platform).has_autotuning else None

    @property
    def autotuning(self) -> str:
        """The label that states the plan's autotuning in every display."""
        if self.tuned_or_none is None:
            return "no autotune results (TPU plans do not depend on any)"
        if self.tuned:
            return f"tuned on {self.target_description}"
        if self.fusion_without_result is not None:
            return f"partly tuned (the lock holds no result for {self.fusion_without_result})"
        if self.predicted_lock is not None:
            shares = shares_text(self.predicted_lock)
            return f"predicted tuning (results of tuned instructions: {shares})"
        why = "XLA refused the predicted tuning" if self.refused_tuning else "no autotune results"
        return f"untuned ({why}: gemm tiles are XLA's defaults)"

    def to_json(self) -> dict[str, Any]:
        data = {"schema_version": SCHEMA_VERSION, **super().to_json()}
        for item in fields(self):
            default = item.default if item.default_factory is MISSING else {}
            if item.name not in _ALWAYS_WRITTEN and getattr(self, item.name) == default:
                del data[item.name]
        if self.call is not None and not self.call.gradients:
            del data["call"]["gradients"]
        if not self.requested_collectives and self.mesh is None:
            del data["requested_collectives"]
        if SOURCE_LINES in self.files:
            for item in (*data["requested_dots"], *(data.get("requested_collectives") or ())):
                item["source"] = None  # in that file
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
                + (
                    "made by a newer xlapipe; fix: update xlapipe"
                    if newer
                    else "not a dump of xlapipe; fix: give a folder that `xlapipe dump` wrote, "
                    "or remove this file to read XLA's own dump beside it"
                )
            )
        known = {item.name: item for item in fields(cls)}
        given = {key: value for key, value in data.items() if key in known}
        if data.get("mesh"):
            given.setdefault("requested_collectives", None)  # absent in older dumps
        try:
            manifest = typed(cls, given)
        except MisfitError as error:
            raise DumpError(
                f"{where}: {visible_line(str(error))}; fix: make the dump again"
            ) from error
        manifest._check_types(where)
        return manifest

    def _check_types(self, where: str) -> None:
        if self.platform not in (platform.name for platform in PLATFORMS):
            raise DumpError(
                f"{where}: platform: expected {' or '.join(p.name for p in PLATFORMS)}, found "
                f"{self.platform!r:.60}; fix: read the dump with the version of xlapipe that wrote "
                "it, or make it again"
            )
        if "jaxlib" not in self.versions:
            raise DumpError(
                f"{where}: versions: expected that of jaxlib, found none; fix: make the dump again"
            )
        for name in self.files:
            if not name.isprintable() or "/" in name or name in ("", ".", ".."):
                raise DumpError(
                    f"{where}: expected names of files in the dump's folder, found {name!r:.60}; "
                    "fix: make the dump again"
                )


def _paths_note(noun: str, paths: Sequence[str], what: str) -> Iterator[str]:
    """A sentence with the first paths, if there are any."""
    if paths:
        yield f"{counted(len(paths), noun)} {what}: {listed(paths, _LISTED)}"


def with_digests(manifest: Manifest, files: Mapping[str, bytes]) -> Manifest:
    """The manifest with the names of `files` and their SHA-256 digests."""
    digests = {
        name: "" if name == SOURCE_LINES else hashlib.sha256(files[name]).hexdigest()
        for name in sorted(files)
    }
    return replace(manifest, files=digests)


def with_requested_lines(lines: "SourceLines", manifest: Manifest) -> "SourceLines":
    """Adds those of a manifest's requested dots and collectives, which are left out in its JSON."""

    def rows(requested: Iterable[RequestedDot | RequestedCollective]) -> Any:
        return tuple(it.source and (it.source.file, it.source.line) for it in requested)

    collectives = rows(manifest.requested_collectives or ())
    return replace(
        lines, requested_dots=rows(manifest.requested_dots), requested_collectives=collectives
    )


def with_lines(manifest: Manifest, lines: "SourceLines", *, where: str) -> Manifest:
    """A manifest as it was read, with its lines."""
    changed: dict[str, Any] = {}
    for name in ("requested_dots", "requested_collectives"):
        requested, rows = getattr(manifest, name), getattr(lines, name)
        if requested is None:
            continue
        if len(requested) != len(rows):
            raise DumpError(
                f"{where}: expected {len(requested)} lines of requested dots or collectives, found "
                f"{len(rows)}; fix: copy the whole folder, or make the dump again"
            )
        changed[name] = tuple(
            replace(item, source=row and SourceLine(*row))
            for item, row in zip(requested, rows, strict=True)
        )
    return replace(manifest, **changed)
