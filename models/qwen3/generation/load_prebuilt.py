"""A folder of executables that were built ahead, with an index of what they are for.

DIR/executables.json    the model's config and the sizes
DIR/prompts-128/        a dump with its executable, for prompts of up to 128 tokens
DIR/decode/             the same of the decode loop
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.sizes import GenerationSizes
from xlapipe.errors import XlapipeError

INDEX = "executables.json"
SCHEMA_VERSION = 1
DECODE = "decode"


@dataclass(frozen=True, kw_only=True)
class Executables:
    """What a folder holds.

    Attributes:
      sizes: with the largest bucket.
      buckets: of prompts, in rising order.
    """

    path: Path
    config: Qwen3Config
    sizes: GenerationSizes
    buckets: tuple[int, ...]

    def sizes_for(self, longest: int) -> GenerationSizes:
        """With the smallest bucket that has room for `longest` tokens, or else the largest."""
        fitting = [bucket for bucket in self.buckets if bucket >= longest]
        return replace(self.sizes, bucket=min(fitting, default=self.buckets[-1]))


def read_executables(path: Path, config: Qwen3Config) -> Executables:
    """The index of a folder that `build_executables.build` made.

    Raises:
      XlapipeError: it is missing or damaged, or of another model.
    """
    where = path / INDEX
    try:
        data = json.loads(where.read_bytes())
    except OSError as error:
        raise XlapipeError(
            f"{where}: cannot be read: {error.strerror}; --build-executables makes the folder"
        ) from None
    except (ValueError, RecursionError) as error:
        raise XlapipeError(f"{where}: not JSON: {error}; build the folder again") from None
    try:
        if data["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema version {data['schema_version']!r}")
        built_for = Qwen3Config(**data["config"])
        buckets = tuple(sorted(int(bucket) for bucket in data["buckets"]))
        sizes = GenerationSizes(bucket=buckets[-1], **data["sizes"])
        if any(
            type(value) is not int for name, value in asdict(sizes).items() if value is not None
        ):
            raise ValueError("a size that is no number")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise XlapipeError(f"{where}: not an index of executables: {error}") from None
    differing = [
        f"{name} {value!r}, not {getattr(config, name)!r}"
        for name, value in asdict(built_for).items()
        if value != getattr(config, name)
    ]
    if differing:
        raise XlapipeError(
            f"{where}: built for another model: {', '.join(differing)}; build it again for this one"
        )
    return Executables(path=path, config=config, sizes=sizes, buckets=buckets)


def prompts_folder(bucket: int) -> str:
    """Name of the folder for prompts of up to `bucket` tokens."""
    return f"prompts-{bucket}"


def index_text(executables: Executables) -> str:
    """What `read_executables` reads."""
    sizes = asdict(executables.sizes)
    del sizes["bucket"]
    index = {
        "schema_version": SCHEMA_VERSION,
        "config": asdict(executables.config),
        "sizes": sizes,
        "buckets": list(executables.buckets),
    }
    return json.dumps(index, indent=1) + "\n"
