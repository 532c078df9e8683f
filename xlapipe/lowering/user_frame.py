"""The user's own line in a traceback."""

import os
import traceback

from xlapipe.plans.call_chains import is_own_code

_XLAPIPE = os.path.dirname(os.path.dirname(__file__))


def user_frame(error: BaseException) -> str | None:
    """`file:line in function: code` of the innermost frame that is not in a library."""
    innermost = None
    for frame in traceback.extract_tb(error.__traceback__):
        if not is_user_code(frame.filename):
            continue
        innermost = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return innermost


def is_user_code(filename: str) -> bool:
    """Whether a file is neither of a library nor of xlapipe."""
    return is_own_code(filename) and not filename.startswith((_XLAPIPE, "<"))
