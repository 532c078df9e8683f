"""The user's line in a traceback, and what it calls."""

import builtins
import re

from xlapipe.report.failures.failure import Call

_FRAME = re.compile(
    r"""^\s*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in \S+)?[ \t]*\n"""
    r"""(?:\s+(?!File ")(?P<code>[^\n]+))?""",
    re.MULTILINE,
)
# Files of installed packages, and of the interpreter itself.
_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|jax|jaxlib|flax|optax|equinox|haiku|torch_xla)/"
    r"|/lib/python3\.\d+/|^<(?:frozen|string)"
)
# Functions that a step is passed through: `float(step(x))`, `jax.block_until_ready(step(x))`.
_AROUND = re.compile(rf"(?:jax|jnp|np|numpy|time|tqdm)\.|(?:{'|'.join(dir(builtins))})$")
_CALL = re.compile(r"([A-Za-z_][\w.]*)\(")


def called_by(traceback: str) -> Call | None:
    """The last frame of `traceback` that is not of a library; None if it has none."""
    frames = [match for match in _FRAME.finditer(traceback) if not _LIBRARY.search(match["file"])]
    if not frames:
        return None
    names = _CALL.findall(frames[-1]["code"] or "")
    names = [name for name in names if not _AROUND.match(name)] or names
    source = f"{frames[-1]['file']}:{frames[-1]['line']}"
    return Call(source, names[0] if len(names) == 1 else None)
