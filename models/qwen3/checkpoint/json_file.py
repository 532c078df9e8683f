"""JSON files of a checkpoint, with errors that say which key held what. Imports no jax."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlapipe.errors import XlapipeError


class CheckpointError(XlapipeError):
    """A checkpoint that is missing, damaged, contradictory or of a form that is not supported."""


def parse_json(text: bytes, *, where: Path) -> dict[str, Any]:
    """The object in `text`; a key that is there twice is an error, as is anything but an object.

    Raises:
      CheckpointError: naming `where`.
    """
    try:
        data = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{where}: expected a JSON object, found {type(data).__name__}")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise ValueError(f"the key {key!r} is there twice")
        data[key] = value
    return data


@dataclass(frozen=True)
class JsonFile:
    """The object in a JSON file. A key whose value is null counts as absent."""

    path: Path
    data: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "JsonFile":
        """Raises CheckpointError when the file is missing, unreadable or holds no object."""
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file") from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
        return cls(path, parse_json(text, where=path))

    def wrong(self, key: str, expected: str, why: str = "") -> CheckpointError:
        """The error for a key that does not hold what was expected."""
        value = self.data.get(key)
        found = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
        if len(found) > 200:
            found = f"{found[:200]}…"
        return CheckpointError(f"{self.path}: {key}: expected {expected}, found {found}{why}")

    def integer(self, key: str) -> int:
        """A whole number of at least 1."""
        value = self.data.get(key)
        if type(value) is not int or value < 1:
            raise self.wrong(key, "a whole number of at least 1")
        return value

    def number(self, key: str, expected: str, *, default: float | None = None) -> float:
        """A finite number; without `default` it must be there."""
        value = self.data.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                found = float(value)
            except OverflowError:
                found = math.inf
            if math.isfinite(found):
                return found
        raise self.wrong(key, expected)

    def flag(self, key: str) -> bool:
        """True or false; absent means false."""
        value = self.data.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value
