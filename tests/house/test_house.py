"""One name for each thing, comments that cite what exists, and few files for `show`."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "xlapipe").rglob("*.py"))
FILES_ENTERED = 110
# Prints the number of files of the package in which a function runs, class bodies left out.
_COUNT = """
import sys
entered = set()
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_flags & 1:
        entered.add(frame.f_code.co_filename)
sys.setprofile(note)
from xlapipe.cli import main
main(sys.argv[1:])
sys.setprofile(None)
names = sys.modules.keys()
print("ENTERED", sum("/xlapipe/" in name for name in entered))
print("PREDICTOR", *(name for name in names if name.startswith("xlapipe.time.predict.")))
"""
# Files of jax, of torch and of users.
_OF_OTHERS = {"fx_graph_readable.py", "jax.py", "output_code.py", "step.py", "train.py"}


def test_no_public_class_has_the_name_of_another() -> None:
    names = Counter(
        name
        for module in MODULES
        for name in re.findall(r"^class ([A-Z]\w*)", module.read_text(encoding="utf-8"), re.M)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_three_modules_have_one_name() -> None:
    names = Counter(module.name for module in MODULES)
    allowed = ("__init__.py", "__main__.py")
    assert [name for name, count in names.items() if count > 2 and name not in allowed] == []


def test_comments_and_docstrings_cite_modules_that_exist() -> None:
    folders = ("xlapipe", "models", "tests", "docs", "examples")
    known = {path.name for folder in folders for path in (ROOT / folder).rglob("*.py")}
    missing = [
        f"{module.relative_to(ROOT)}: {name}"
        for module in MODULES
        for name in cited(module.read_text(encoding="utf-8"))
        if name.rpartition("/")[2] not in known | _OF_OTHERS
    ]
    assert missing == []


def cited(text: str) -> set[str]:
    """Names of Python files in the comments of a module, and in backquotes of its docstrings."""
    comments = re.findall(r"^\s*# (.*)", text, re.M)
    backquoted = re.findall(r"`([\w/]+\.py)`", text)
    return {
        *backquoted,
        *(name for line in comments for name in re.findall(r"\b[\w/]+\.py\b", line)),
    }


def test_showing_a_plan_enters_few_files_and_no_rule_of_the_predictor(goldens: Path) -> None:
    (dump,) = (goldens / "qwen3-step").glob("h200-cublas-jax*")
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, "show", str(dump)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    entered, predictor = done.stdout.splitlines()[-2:]
    assert int(entered.partition(" ")[2]) <= FILES_ENTERED
    assert predictor == "PREDICTOR"
