"""Split the op_name of a combined collective: `jit(f)/(a/psum:b/psum)` is two op_names."""

from xlapipe.plans.brackets import split_bracket

# XLA combines hundreds at most; a damaged name could expand to any number.
_MAX_OP_NAMES = 4096


def split_scopes(op_name: str | None) -> tuple[str, ...]:
    """The op_names that XLA's combiner joined into one; empty for no op_name.

    >>> split_scopes("jit(f)/(a/psum:jvp(b)/psum)")
    ('jit(f)/a/psum', 'jit(f)/jvp(b)/psum')
    """
    if not op_name:
        return ()
    return tuple(_expanded(op_name) or [op_name])


def _expanded(text: str) -> list[str] | None:
    """All expansions of a text with alternatives; None if there are too many to be XLA's."""
    expansions, begin, position = [""], 0, 0
    while position < len(text):
        if text[position] == "(" and (position == 0 or text[position - 1] == "/"):
            parts, end = split_bracket(text, position, ":", ("(", ")"))
            if len(parts) > 1:
                alternatives: list[str] = []
                for part in parts:
                    expanded_part = _expanded(part)
                    if expanded_part is None:
                        return None
                    alternatives += expanded_part
                if len(expansions) * len(alternatives) > _MAX_OP_NAMES:
                    return None
                literal = text[begin:position]
                expansions = [
                    prefix + literal + alternative
                    for prefix in expansions
                    for alternative in alternatives
                ]
                begin = position = end
                continue
        position += 1
    return [prefix + text[begin:] for prefix in expansions]
