"""The index of a folder of executables that were built in advance. Imports no jax.

DIR/executables.json    the model's config, and the sizes
DIR/prompts-128/        a dump with its executable, for prompts of up to 128 tokens
DIR/decode/             a dump with its executable, for the decode loop
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.static_sizes import GenerationSizes
from xlapipe import XlapipeError

INDEX = "executables.json"
SCHEMA_VERSION = 1
DECODE = "decode"


@dataclass(frozen=True, kw_only=True)
class PrebuiltExecutables:
    """The contents of a folder of executables.

    Attributes:
      path: the folder.
      config: config of the model that they are for.
      sizes: sizes that they are compiled for, with the largest bucket.
      buckets: prompt lengths, in ascending order; each has an executable.
      implementations: `steps.Implementation` of each program, by the name of its folder; empty if
        the folder was built before it was recorded.
    """

    path: Path
    config: Qwen3Config
    sizes: GenerationSizes
    buckets: tuple[int, ...]
    implementations: Mapping[str, str] = field(default_factory=dict)

    @property
    def persistent_kernel(self) -> bool:
        """Whether the decode loop has the persistent kernel."""
        return self.implementations.get(DECODE) == "persistent"

    def sizes_for(self, longest: int) -> GenerationSizes:
        """The sizes with the smallest bucket for `longest` tokens, or else the largest bucket."""
        large_enough = [bucket for bucket in self.buckets if bucket >= longest]
        return replace(self.sizes, bucket=min(large_enough, default=self.buckets[-1]))

    def implementations_for(self, longest: int) -> dict[str, str] | None:
        """The implementations of both steps for prompts of `longest` tokens; None if unknown."""
        folders = {"prompts": prompts_folder(self.sizes_for(longest).bucket), "decode": DECODE}
        if not all(folder in self.implementations for folder in folders.values()):
            return None
        return {step: self.implementations[folder] for step, folder in folders.items()}


def read_index(path: Path, config: Qwen3Config) -> PrebuiltExecutables:
    """Reads the index of a folder that `build_prebuilt.build_prebuilt` wrote.

    Raises:
      XlapipeError: the index is missing or damaged, or is for another model.
    """
    file = path / INDEX
    try:
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise XlapipeError(
            f"{file}: cannot be read: {error.strerror}; fix: build the folder with "
            "--build-executables"
        ) from None
    except (ValueError, RecursionError) as error:
        raise XlapipeError(f"{file}: not JSON: {error}; fix: build the folder again") from None
    try:
        prebuilt = _parse(path, data)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise XlapipeError(f"{file}: not an index of executables: {error}") from None
    differing = [
        f"{name} {value!r}, not {getattr(config, name)!r}"
        for name, value in asdict(prebuilt.config).items()
        if value != getattr(config, name)
    ]
    if differing:
        raise XlapipeError(
            f"{file}: built for another model: {', '.join(differing)}; fix: build the folder again "
            "for this model"
        )
    return prebuilt


def prompts_folder(bucket: int) -> str:
    """Name of the folder for prompts of up to `bucket` tokens."""
    return f"prompts-{bucket}"


def index_text(prebuilt: PrebuiltExecutables) -> str:
    """The index file's content, for `read_index`."""
    sizes = asdict(prebuilt.sizes)
    del sizes["bucket"]
    index = {
        "schema_version": SCHEMA_VERSION,
        "config": asdict(prebuilt.config),
        "sizes": sizes,
        "buckets": list(prebuilt.buckets),
        "implementations": dict(prebuilt.implementations),
    }
    return json.dumps(index, indent=1) + "\n"


def _parse(path: Path, data: Mapping[str, Any]) -> PrebuiltExecutables:
    """Raises KeyError, TypeError, ValueError or IndexError for data that are not an index."""
    if data["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema version {data['schema_version']!r}")
    config = Qwen3Config(**data["config"])
    buckets = tuple(sorted(int(bucket) for bucket in data["buckets"]))
    sizes = GenerationSizes(bucket=buckets[-1], **data["sizes"])
    for name, value in asdict(sizes).items():
        if value is not None and type(value) is not int:
            raise ValueError(f"{name} {value!r} is not an integer")
    return PrebuiltExecutables(
        path=path,
        config=config,
        sizes=sizes,
        buckets=buckets,
        # Folders that were built before this was recorded do not have it.
        implementations=dict(data.get("implementations", {})),
    )
