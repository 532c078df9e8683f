"""Models and examples use what everybody may: names of `xlapipe.__all__` and `xlapipe.expect`."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import xlapipe
from xlapipe import expect

ROOT = Path(__file__).parents[2]
PUBLIC = {"xlapipe": {*xlapipe.__all__, "expect"}, "xlapipe.expect": {*expect.__all__}}


def sources() -> Iterator[tuple[Path, str]]:
    for folder in ("models", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")
        for path in sorted((ROOT / folder).rglob("*.ipynb")):
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
            yield path, "\n".join(code)


def other_imports(code: str) -> list[str]:
    """Imports of xlapipe that are not public, also those for type checkers alone."""
    others: list[str] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
            others += [name for name in modules if name.startswith("xlapipe.")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "xlapipe":
            public = PUBLIC.get(str(node.module), set())
            others += [f"{node.module}.{a.name}" for a in node.names if a.name not in public]
    return others


def test_models_and_examples_import_public_names_alone() -> None:
    found = {str(path): other_imports(code) for path, code in sources()}
    assert len(found) > 100
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("code", "other"),
    [
        ("from xlapipe import Workload, expect", []),
        ("from xlapipe.expect import Donated", []),
        ("from xlapipe import cli", ["xlapipe.cli"]),
        ("from xlapipe.workload import Workload", ["xlapipe.workload.Workload"]),
        ("if TYPE_CHECKING:\n    import xlapipe.plans", ["xlapipe.plans"]),
    ],
)
def test_other_imports_are_found(code: str, other: list[str]) -> None:
    assert other_imports(code) == other


@pytest.mark.parametrize("name", [*xlapipe.__all__, "expect", "__version__"])
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(xlapipe, name) is not None
