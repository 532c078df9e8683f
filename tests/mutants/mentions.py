"""The lines of xlapipe that mention a name, directly or through another name made from it."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

Place = tuple[str, int]


def lines_that_mention(root: Path, names: Iterable[str]) -> dict[str, frozenset[Place]]:
    """Path and line of each mention inside of a function, per name.

    A constant that is made from another outside of functions (`FORWARDS = RENAMES | WAITS`) counts
    as a mention of it wherever it is mentioned.
    """
    places: dict[str, set[Place]] = defaultdict(set)
    made_from: dict[str, set[str]] = defaultdict(set)
    for file in sorted((root / "xlapipe").rglob("*.py")):
        path = str(file.relative_to(root))
        for name, line, target in _mentions(ast.parse(file.read_text())):
            if target is None:
                places[name].add((path, line))
            elif target != name:
                made_from[name].add(target)
    return {name: _closure(name, places, made_from) for name in names}


def _closure(
    name: str, places: dict[str, set[Place]], made_from: dict[str, set[str]]
) -> frozenset[Place]:
    names = [name]
    for known in names:
        names += made_from.get(known, set()) - set(names)
    return frozenset(place for known in names for place in places.get(known, ()))


def _mentions(tree: ast.Module) -> Iterator[tuple[str, int, str | None]]:
    """Names, lines, and for a mention outside of functions the name that is being defined."""
    stack: list[tuple[ast.AST, str | None, bool]] = [(tree, None, False)]
    while stack:
        node, target, in_function = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not in_function:  # Defaults and decorators run at import.
                stack += [(part, node.name, False) for part in [node.args, *node.decorator_list]]
            stack += [(part, None, True) for part in node.body]
            continue
        if isinstance(node, ast.ClassDef) and not in_function:
            target = node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not in_function:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in targets:
                if isinstance(name, ast.Name):
                    target = name.id
        elif isinstance(node, ast.alias) and node.asname:
            yield node.name, node.lineno, node.asname
        name_here = _name(node)
        if name_here is not None and (in_function or target is not None):
            yield name_here, node.lineno, None if in_function else target
        stack += [(part, target, in_function) for part in ast.iter_child_nodes(node)]


def _name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None
