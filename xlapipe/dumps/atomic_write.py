"""Files written whole or not at all."""

import os
from collections.abc import Mapping
from pathlib import Path

from xlapipe.errors import XlapipeError


def write_files(files: Mapping[Path, bytes]) -> None:
    """Writes all of `files`, making their folders; each appears under its name when complete.

    Raises:
      XlapipeError: one cannot be written; those that were there before are as they were, unless
        the disk fails between two renames.
    """
    partials = {path: path.with_name(f".{path.name}.partial-{os.getpid()}") for path in files}
    at = next(iter(files), Path())
    try:
        for at, content in files.items():
            if at.is_dir():
                raise XlapipeError(f"{at}: expected the name of a file to write, found a folder")
            at.parent.mkdir(parents=True, exist_ok=True)
            partials[at].write_bytes(content)
        for at, partial in partials.items():
            partial.replace(at)
    except OSError as error:
        raise XlapipeError(
            f"{at}: cannot be written: {error.strerror}; choose another place"
        ) from None
    finally:
        for partial in partials.values():
            _remove(partial)


def _remove(partial: Path) -> None:
    try:
        partial.unlink(missing_ok=True)
    except OSError:  # its folder could not be made
        return
