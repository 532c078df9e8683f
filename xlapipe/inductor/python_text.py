"""Python source in a dump, parsed with `ast` and never run."""

import ast
import warnings

from xlapipe.inductor.text_lines import TextLines

_PYTHON = (
    "fix: the file is damaged or cut short, or a version of torch wrote it whose form xlapipe does "
    "not know: dump it again, or report the line"
)


def parse_module(text: TextLines) -> ast.Module:
    """The syntax tree.

    Raises:
      DumpError: the lines are not Python; it names the line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings
            return ast.parse("\n".join(text.lines))
    except SyntaxError as error:
        text.fail((error.lineno or 1) - 1, "Python", f"{error.msg}", _PYTHON)
    except (ValueError, RecursionError, MemoryError) as error:
        text.fail(0, "Python", f"{str(error) or type(error).__name__}", _PYTHON)
