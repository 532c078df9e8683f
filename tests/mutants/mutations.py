"""The mutants of a module: one constant, one entry of a table, or one comparison changed.

What is changed:

- a number: 16 or less plus one, a larger one and a float doubled; True and False exchanged;
- a string that a program reads (an opcode, a key, a pattern), by letters appended to it;
- a table, by leaving out one entry: of a set, a dict, a list or tuple of constants, an alternative
  of a `case`;
- a comparison: `<` and `<=`, `>` and `>=`, `==` and `!=`, `in` and `not in`, `is` and `is not`.

What is left: text that people read (a string with spaces, f-strings, docstrings), annotations, the
options of dataclasses, and `strict=`, which states what the program takes for granted.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}

# Functions whose arguments are patterns, also those with spaces.
_TAKES_PATTERNS = frozenset(
    {"compile", "count", "endswith", "find", "findall", "finditer", "fullmatch", "match"}
    | {"partition", "removeprefix", "removesuffix", "replace", "rpartition", "rsplit", "search"}
    | {"split", "startswith", "strip", "sub"}
)

# Keywords that state what the program takes for granted, or how a class is used.
_DECLARATIONS = frozenset({"kw_only", "repr", "strict"})

_LARGEST_SMALL_NUMBER = 16


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
      path: of the module, relative to the repository's root.
      place: qualified name of the function or class that has the change; `<module>` outside of any.
      kind: `constant`, `table` or `comparison`.
      change: the expression before and after.
      ordinal: distinguishes equal changes of one place, from 0.
      line: of the change.
      lines: of the changed expression and of the start of its statement.
      in_function: whether it takes effect only when a function runs, not at import.
      names: what the changed statement defines, if it takes effect at import.
    """

    path: str
    place: str
    kind: str
    change: str
    ordinal: int
    line: int
    lines: frozenset[int]
    in_function: bool
    names: frozenset[str]
    _apply: Callable[[ast.Module], None]

    @property
    def key(self) -> str:
        """Names the mutant as long as its function is not changed."""
        repeat = f" #{self.ordinal + 1}" if self.ordinal else ""
        return f"{self.path}::{self.place}: {self.change}{repeat}"

    def module(self, tree: ast.Module) -> ast.Module:
        """The changed module; `tree` is that which `mutants_of` parsed, and stays as it is."""
        changed = copy.deepcopy(tree)
        self._apply(changed)
        return changed


def mutants_of(root: Path, path: str) -> tuple[ast.Module, list[Mutant]]:
    """Parses a module, and gives its mutants in the order of their lines."""
    tree = ast.parse((root / path).read_text())
    finder = _Finder(path)
    finder.visit(tree)
    return tree, finder.mutants


class _Finder(ast.NodeVisitor):
    """Walks a module in the order of `ast.walk`'s indices, so that a copy has the same places."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.mutants: list[Mutant] = []
        self._places: list[str] = []
        self._functions = 0
        self._statement = 0
        self._names: frozenset[str] = frozenset()
        self._steps: list[tuple[str, int | None]] = []
        self._pattern = False
        self._counts: dict[tuple[str, str], int] = {}

    # Descending: the path of fields from the module to a node finds the node in a copy.

    def _child(self, node: ast.AST, name: str) -> None:
        value = getattr(node, name)
        if isinstance(value, ast.AST):
            self._steps.append((name, None))
            self.visit(value)
            self._steps.pop()
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    self._steps.append((name, index))
                    self.visit(item)
                    self._steps.pop()

    def _children(self, node: ast.AST, *left_out: str) -> None:
        for name in node._fields:
            if name not in left_out:
                self._child(node, name)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self._statement = node.lineno
        super().visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        self._children(node)

    def _add(self, node: ast.AST, kind: str, change: str, edit: Callable[[ast.AST], None]) -> None:
        steps = tuple(self._steps)

        def apply(tree: ast.Module) -> None:
            edit(_at(tree, steps))

        place = ".".join(self._places) or "<module>"
        if not self._functions and self._names:
            place = ".".join([*self._places, *sorted(self._names)])
        ordinal = self._counts.get((place, change), 0)
        self._counts[place, change] = ordinal + 1
        names = frozenset() if self._functions else self._names | frozenset(self._places)
        line = getattr(node, "lineno", self._statement)
        lines = range(line, (getattr(node, "end_lineno", None) or line) + 1)
        self.mutants.append(
            Mutant(
                self.path,
                place,
                kind,
                change,
                ordinal,
                line,
                frozenset({*lines, self._statement}),
                self._functions > 0,
                names,
                apply,
            )
        )

    # Places.

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._places.append(node.name)
        for name in ("args", "decorator_list"):  # Run when the function is defined.
            self._child(node, name)
        self._functions += 1
        self._steps.append(("body", None))
        for index in range(1 if ast.get_docstring(node) is not None else 0, len(node.body)):
            self._steps[-1] = ("body", index)
            self.visit(node.body[index])
        self._steps.pop()
        self._functions -= 1
        self._places.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._child(node, "args")
        # Outside of any function, the lambda's name is not one that tests can be found by.
        self._functions += self._functions > 0
        self._child(node, "body")
        self._functions -= self._functions > 1

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        names, self._names = self._names, frozenset()
        self._places.append(node.name)
        self._children(node, "decorator_list")
        self._places.pop()
        self._names = names

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(name, ast.Name) and name.id == "__all__" for name in node.targets):
            return
        if not self._functions:
            targets = (name for target in node.targets for name in ast.walk(target))
            self._names = frozenset(name.id for name in targets if isinstance(name, ast.Name))
        self._child(node, "value")
        if self._functions:
            self._child(node, "targets")
        else:
            self._names = frozenset()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if not self._functions and isinstance(node.target, ast.Name):
            self._names = frozenset({node.target.id})
        if node.value is not None:
            self._child(node, "value")
        if not self._functions:
            self._names = frozenset()

    def visit_arg(self, node: ast.arg) -> None:
        pass  # Annotations.

    def visit_TypeAlias(self, node: ast.AST) -> None:
        pass

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self._children(node)

    # What is changed.

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # Docstrings.
            self._children(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        for index, part in enumerate(node.values):
            if isinstance(part, ast.FormattedValue):
                self._steps += [("values", index), ("value", None)]
                self.visit(part.value)
                del self._steps[-2:]

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not (isinstance(node.value, ast.Name) and node.value.id == "Literal"):
            self._children(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "TypeVar":
            return
        if name == "cast":
            self._steps.append(("args", 1))
            self.visit(node.args[1])
            self._steps.pop()
            return
        self._child(node, "func")
        outer, self._pattern = self._pattern, name in _TAKES_PATTERNS
        self._child(node, "args")
        for index, keyword in enumerate(node.keywords):
            if keyword.arg not in _DECLARATIONS:
                self._steps += [("keywords", index), ("value", None)]
                self.visit(keyword.value)
                del self._steps[-2:]
        self._pattern = outer

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        changed: object
        if isinstance(value, bool):
            changed = not value
        elif isinstance(value, int):
            changed = value + 1 if value <= _LARGEST_SMALL_NUMBER else value * 2
        elif isinstance(value, float):
            changed = value * 2 if value else 1.0
        elif isinstance(value, str) and (self._pattern or " " not in value):
            changed = value + "XX"
        else:
            return

        def edit(copied: ast.AST) -> None:
            assert isinstance(copied, ast.Constant)
            copied.value = changed

        self._add(node, "constant", f"{value!r} → {changed!r}", edit)

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, operator in enumerate(node.ops):
            changed = _COMPARISONS[type(operator)]

            def edit(
                copied: ast.AST, index: int = index, changed: type[ast.cmpop] = changed
            ) -> None:
                assert isinstance(copied, ast.Compare)
                copied.ops[index] = changed()

            altered = copy.deepcopy(node)
            altered.ops[index] = changed()
            self._add(node, "comparison", f"{ast.unparse(node)} → {ast.unparse(altered)}", edit)
        outer, self._pattern = self._pattern, True
        self._children(node, "ops")
        self._pattern = outer

    def _drop_entries(self, node: ast.AST, *fields: str) -> None:
        entries = getattr(node, fields[0])
        for index, entry in enumerate(entries):

            def edit(copied: ast.AST, index: int = index) -> None:
                for field in fields:
                    del getattr(copied, field)[index]
                if isinstance(copied, ast.Set) and not copied.elts:
                    copied.elts.append(ast.Starred(ast.Tuple([], ast.Load()), ast.Load()))
                    ast.fix_missing_locations(copied)
                if isinstance(copied, ast.MatchOr):  # Which may not have one pattern alone.
                    copied.patterns.append(copied.patterns[0])

            text = ast.unparse(entry) if entry is not None else "**"
            self._add(entry or node, "table", f"without {text}", edit)

    def visit_Set(self, node: ast.Set) -> None:
        self._drop_entries(node, "elts")
        for index, entry in enumerate(node.elts):  # A changed entry is one left out.
            if not isinstance(entry, ast.Constant):
                self._steps.append(("elts", index))
                self.visit(entry)
                self._steps.pop()

    def visit_Dict(self, node: ast.Dict) -> None:
        if len(node.keys) > 1:
            self._drop_entries(node, "keys", "values")
        self._child(node, "values")

    def _sequence(self, node: ast.Tuple | ast.List) -> None:
        is_table = len(node.elts) > 1 and isinstance(node.ctx, ast.Load)
        constants = all(isinstance(entry, ast.Constant) for entry in node.elts)
        if is_table and (constants or self._is_module_table()):
            self._drop_entries(node, "elts")
        if not (is_table and constants):
            self._children(node)

    visit_Tuple = visit_List = _sequence  # noqa: N815

    def _is_module_table(self) -> bool:
        """Whether this is the whole value of an assignment outside of functions."""
        return bool(self._names) and len(self._steps) == 2 and self._steps[-1] == ("value", None)

    def visit_MatchOr(self, node: ast.MatchOr) -> None:
        self._drop_entries(node, "patterns")
        self._children(node)


def _at(tree: ast.Module, steps: tuple[tuple[str, int | None], ...]) -> ast.AST:
    node: ast.AST = tree
    for name, index in steps:
        value = getattr(node, name)
        node = value if index is None else value[index]
    return node


def modules_of(root: Path, packages: tuple[str, ...]) -> Iterator[str]:
    """Paths of modules, relative to the root: those of packages, and modules named themselves."""
    for package in packages:
        path = root / package
        for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield str(module.relative_to(root))
