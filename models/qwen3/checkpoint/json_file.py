"""JSON files of a checkpoint, with errors that name file, key and value. Imports no jax."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlapipe import XlapipeError


class CheckpointError(XlapipeError):
    """A checkpoint is missing, damaged, inconsistent or not supported."""


def parse_json(text: bytes, *, path: Path) -> dict[str, Any]:
    """The JSON object in `text`, which was read from `path`.

    Raises:
      CheckpointError: not valid JSON, not an object, or a key that occurs twice.
    """
    try:
        data = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise ValueError(f"the key {key!r} occurs twice")
        data[key] = value
    return data


@dataclass(frozen=True)
class JsonFile:
    """The object in a JSON file. A key whose value is null is treated as absent."""

    path: Path
    data: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "JsonFile":
        """Reads and parses a file.

        Raises:
          CheckpointError: the file is missing or unreadable, or is not a JSON object.
        """
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file") from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
        return cls(path, parse_json(text, path=path))

    def wrong(self, key: str, expected: str, hint: str = "") -> CheckpointError:
        """The error for a key whose value is not as expected."""
        value = self.data.get(key)
        text = "no value" if value is None else json.dumps(value, ensure_ascii=False)
        if len(text) > 200:
            text = f"{text[:200]}…"
        return CheckpointError(f"{self.path}: {key}: expected {expected}, found {text}{hint}")

    def integer(self, key: str) -> int:
        """An integer of at least 1."""
        value = self.data.get(key)
        if type(value) is not int or value < 1:
            raise self.wrong(key, "an integer of at least 1")
        return value

    def number(self, key: str, expected: str, *, default: float | None = None) -> float:
        """A finite number; an absent key is an error unless there is a default."""
        value = self.data.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
        raise self.wrong(key, expected)

    def flag(self, key: str) -> bool:
        """True or false; an absent key means false."""
        value = self.data.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value
