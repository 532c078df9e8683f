"""Split what is in brackets at the separators that are not in inner ones."""


def split_bracket(
    text: str, start: int = 0, separator: str = ",", brackets: tuple[str, str] = ("([{", ")]}")
) -> tuple[list[str], int]:
    """The parts of the bracket that opens at `start`, and the position after it.

    No parts, and the end of the text, for a bracket that is not closed.

    >>> split_bracket("f(a, (b, c))", 1)
    (['a', ' (b, c)'], 12)
    """
    depth, begin = 0, start + 1
    parts: list[str] = []
    for position in range(start, len(text)):
        character = text[position]
        depth += (character in brackets[0]) - (character in brackets[1])
        if depth == 0 or (depth == 1 and character == separator):
            parts.append(text[begin:position])
            begin = position + 1
        if depth == 0:
            return parts, position + 1
    return [], len(text)
