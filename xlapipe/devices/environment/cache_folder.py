"""Where xlapipe keeps files between runs that it can regenerate."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder of this user's, e.g. `~/.cache/xlapipe/plans`; it need not be there yet."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "xlapipe" / name
