"""The call chain of a value: the user's line first, then what it calls and who calls it."""

from collections.abc import Iterator, Sequence

from xlapipe.plans import SourceLine
from xlapipe.plans.call_chains import Frame
from xlapipe.report.overview.source_text import SourceTexts
from xlapipe.report.wrapped_text import shortened

# A library's own frames, of which the first and the last are most useful.
_MAX_LIBRARY = 4


def chain_lines(chain: Sequence[Frame], texts: SourceTexts, width: int) -> Iterator[str]:
    """One line per frame.

    Args:
      chain: innermost frame first.
      texts: for the text of the lines, where the files are there.
    """
    own = next((i for i, frame in enumerate(chain) if frame.is_own_code), len(chain) - 1)
    if not chain:
        return
    yield _line("", chain[own], texts, width)
    inner = list(reversed(chain[:own]))
    for frame in inner[:_MAX_LIBRARY]:
        yield _line("  calls ", frame, texts, width)
    if len(inner) > _MAX_LIBRARY:
        yield f"  calls {len(inner) - _MAX_LIBRARY} more frames of libraries"
    libraries = 0
    for frame in chain[own + 1 :]:
        if not frame.is_own_code:
            libraries += 1
            continue
        if libraries:
            yield f"  through {libraries} frame{'s' if libraries > 1 else ''} of libraries"
            libraries = 0
        yield _line("  called from ", frame, texts, width)


def _line(relation: str, frame: Frame, texts: SourceTexts, width: int) -> str:
    function = frame.function.rpartition(".")[2].strip("<>")
    text = f"{relation}{frame}" + (f" in {function}" if function else "")
    if not frame.is_own_code:
        return text
    source = texts.of(SourceLine(frame.file, frame.line))
    beside = shortened(source, width - len(text) - 4)
    return f"{text}    {beside}".rstrip()
