"""Functions of the user that are changed when their module is imported, as if written there.

The decorator is on the function's definition, so that it holds for methods, for functions that are
made anew in each call, and for names that other modules have imported.
"""

import ast
import builtins
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any
from unittest.mock import patch

Decorator = Callable[[Callable[..., Any]], Any]
_NAME = "__xlapipe_decorators__"


def decorated_functions(
    decorators: Mapping[str, Decorator], statements: Mapping[str, str]
) -> AbstractContextManager[object]:
    """Changes functions in modules that are imported while the context is open.

    Args:
      decorators: by `file:line` of the definition or of the decorator that each is written above.
      statements: of those functions, which run first.
    """
    files = {place.rpartition(":")[0] for place in decorators}
    original = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if path not in files:
            return original(self, fullname)
        tree = ast.parse(self.get_data(path), path)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                _decorate(node, path, decorators, statements)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    stack = ExitStack()
    stack.enter_context(patch.object(SourceFileLoader, "get_code", get_code))
    stack.enter_context(patch.object(builtins, _NAME, decorators, create=True))
    return stack


def _decorate(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    path: str,
    decorators: Mapping[str, Decorator],
    statements: Mapping[str, str],
) -> None:
    lines = (*node.decorator_list, node)
    number = next((n for n, own in enumerate(lines) if f"{path}:{own.lineno}" in decorators), None)
    if number is None:
        return
    place = f"{path}:{lines[number].lineno}"
    added = ast.parse(f"{_NAME}[{place!r}]", mode="eval").body
    first = ast.parse(statements.get(place, "")).body
    for part in (own for tree in (added, *first) for own in ast.walk(tree)):
        ast.copy_location(part, lines[number])
    after = ast.get_docstring(node, clean=False) is not None
    node.body[after:after] = first
    node.decorator_list.insert(number, added)
