"""Default settings of a compile. The command line shows them in its help, so imports stay cheap."""

from pathlib import Path

from xlapipe.project_file import stated_text

DEFAULT_TARGET = "h200"
DEFAULT_TIMEOUT_SECONDS = 600.0


def default_target() -> str:
    """The target that the project of the current folder states, else `DEFAULT_TARGET`."""
    _, target = stated_text(Path.cwd(), "target") or ("", DEFAULT_TARGET)
    return target
