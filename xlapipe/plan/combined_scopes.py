"""Name scopes of what XLA combined: `jit(f)/(a/psum:b/psum)` stands for two op_names."""

# XLA combines hundreds at most; a damaged name could stand for any number.
_MOST_SCOPES = 4096


def split_scopes(op_name: str | None) -> tuple[str, ...]:
    """The op_names that XLA's combiner joined into one.

    >>> split_scopes("jit(f)/(a/psum:jvp(b)/psum)")
    ('jit(f)/a/psum', 'jit(f)/jvp(b)/psum')
    """
    if not op_name:
        return ()
    return tuple(_expanded(op_name) or [op_name])


def _expanded(text: str) -> list[str] | None:
    """Every reading of a text with alternatives; None where they are too many to be XLA's."""
    readings, begin, position = [""], 0, 0
    while position < len(text):
        if text[position] == "(" and (position == 0 or text[position - 1] == "/"):
            parts, end = _alternatives(text, position)
            if len(parts) > 1:
                expanded = [_expanded(part) for part in parts]
                inner = [each for part in expanded if part is not None for each in part]
                if None in expanded or len(readings) * len(inner) > _MOST_SCOPES:
                    return None
                before = text[begin:position]
                readings = [reading + before + each for reading in readings for each in inner]
                begin = position = end
                continue
        position += 1
    return [reading + text[begin:] for reading in readings]


def _alternatives(text: str, start: int) -> tuple[list[str], int]:
    """Parts between colons of the bracket that opens at `start`, and the place behind it."""
    depth, begin = 0, start + 1
    parts: list[str] = []
    for position in range(start, len(text)):
        character = text[position]
        depth += (character == "(") - (character == ")")
        if depth == 0 or (depth == 1 and character == ":"):
            parts.append(text[begin:position])
            begin = position + 1
        if depth == 0:
            return parts, position + 1
    return [], len(text)
