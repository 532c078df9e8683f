"""The user's own line in a traceback."""

import os
import sys
import traceback

_XLAPIPE = os.path.dirname(os.path.dirname(__file__))


def user_frame(error: BaseException) -> str | None:
    """`file:line in function: code` of the innermost frame that is not in a library."""
    innermost = None
    for frame in traceback.extract_tb(error.__traceback__):
        library = any(part in frame.filename for part in ("site-packages", "dist-packages"))
        if library or frame.filename.startswith((_XLAPIPE, "<", sys.base_prefix)):
            continue
        innermost = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return innermost
