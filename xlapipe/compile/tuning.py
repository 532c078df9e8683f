"""Where a compile's autotune results come from. The command line lists the words in its help."""

from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from xlapipe.errors import XlapipeError


class Tuned(StrEnum):
    """Where autotune results come from, if not from a file.

    `auto`: what the device's tuner would probably choose, where results of the device are known,
    otherwise XLA's defaults. `none`: XLA's defaults. `tune`: the attached GPU's tuner, whose
    results are kept.
    """

    AUTO = "auto"
    NONE = "none"
    TUNE = "tune"


# A file is a lock or, with a target config, XLA's own file of results.
Tuning: TypeAlias = Tuned | Path


def tuning_of(value: str | Path) -> Tuning:
    """The tuning that a user names, as `--tuning` takes it.

    >>> tuning_of("none"), tuning_of("./none")
    (<Tuned.NONE: 'none'>, PosixPath('none'))
    """
    if value in list(Tuned):
        return Tuned(value)
    path = Path(value)
    if not path.exists():
        raise XlapipeError(
            f"tuning {str(value)!r}: expected {', '.join(Tuned)}, or a file with autotune results "
            "(autotune_lock.json), found none of that name; fix: give one of them"
        )
    return path
