"""Text from a file, made safe to show.

A name in a dump may hold characters that move a terminal's cursor, change its title, turn the
direction of writing, or begin a new line that looks like xlapipe's own. Each becomes one visible
character, so that widths stay as they are. Used where output leaves: by `cli.output` for terminals,
by `report.changed_dumps` for Markdown and by `report.html_page` for HTML, which escape markup.
"""

_PICTURES = 0x2400  # Unicode's pictures of control characters: ␛ for ESC, ␊ for a new line
_DELETE, _PICTURE_OF_DELETE = "\x7f", "\u2421"
# Marks inside words of some scripts, which change no direction.
_JOINERS = "\u00ad\u200c\u200d"


def visible_line(text: str) -> str:
    """The text of one line; a new line in it is data, and becomes a picture.

    >>> visible_line("a\x1b[2Jb\n\u202ec")
    'a␛[2Jb␊�c'
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def visible_lines(text: str) -> str:
    """The same for a text that xlapipe made of several lines, with tabs as they are."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(char if char in "\n\t" else _visible(char) for char in text)


def _visible(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    if character < " ":
        return chr(_PICTURES + ord(character))
    if character.isspace() and character not in "\x85\u2028\u2029":
        return " "  # such as one that does not break
    return _PICTURE_OF_DELETE if character == _DELETE else "\N{REPLACEMENT CHARACTER}"
