"""The user's own line in a traceback."""

import traceback
from pathlib import Path

from xlapipe.jax_private import TracedHere
from xlapipe.plans.call_chains import is_own_code

_XLAPIPE = f"{Path(__file__).parents[2]}/"


def user_frame(error: BaseException) -> str | None:
    """`file:line in function: code` of the innermost frame that is not in a library.

    What is raised while a traced operation is lowered has only jax's own frames; jax gives those of
    the traced operation as its cause.
    """
    cause = error.__cause__
    if isinstance(cause, TracedHere):
        frame = _innermost(cause)
        if frame is not None:
            return frame
    return _innermost(error)


def _innermost(error: BaseException) -> str | None:
    innermost = None
    for frame in traceback.extract_tb(error.__traceback__):
        if not is_user_code(frame.filename):
            continue
        innermost = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return innermost


def is_user_code(filename: str) -> bool:
    """Whether a file is neither of a library nor of xlapipe."""
    return is_own_code(filename) and not filename.startswith((_XLAPIPE, "<"))
