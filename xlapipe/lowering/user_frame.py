"""The user's own line in a traceback."""

import os
import traceback

from xlapipe.plans.call_chains import is_own_code

_XLAPIPE = os.path.dirname(os.path.dirname(__file__))


def user_frame(error: BaseException) -> str | None:
    """`file:line in function: code` of the innermost frame that is not in a library."""
    innermost = None
    for frame in traceback.extract_tb(error.__traceback__):
        if not is_own_code(frame.filename) or frame.filename.startswith((_XLAPIPE, "<")):
            continue
        innermost = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return innermost
