"""A name may come from a file of another person: no installed function is called by it."""

from pathlib import Path

import pytest

from xlapipe.compile.lowering.load_workload import load_workload
from xlapipe.errors import WorkloadError
from xlapipe.registry import find_workload, is_of_project

pytestmark = pytest.mark.jax

MODULE = """
import functools, os
from subprocess import run

import jax
import numpy as np

from xlapipe import Workload

with_arguments = functools.partial(run)


@functools.cache
def workload(n=8):
    return Workload(name="own", fn=lambda x: x, args=(jax.ShapeDtypeStruct((n,), "f"),))


given = functools.partial(workload, n=16)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "step_of_others.py").write_text(MODULE)
    (tmp_path / "json.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("subprocess:run(args=['touch', 'made'])", "subprocess is a module of Python itself"),
        ("step_of_others:run(args=['touch', 'made'])", "subprocess is a module of Python"),
        ("step_of_others:with_arguments(args=['touch', 'made'])", "subprocess is a module of"),
        ("step_of_others:os.system(command='touch made')", "posix is a module of Python itself"),
        ("step_of_others:np.save(file='made', arr=[1])", "numpy is an installed package"),
        ("pip.__main__:x", "pip is an installed package.*below .tool.xlapipe.workloads"),
        ("json:loads", "json is a module of Python itself.*fix: give json.py another name"),
    ],
)
def test_what_is_not_of_the_project_is_not_called(folder: Path, name: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load_workload(find_workload(name))
    assert not list(folder.glob("made*"))


def test_what_the_project_defines_or_registers_is_called(folder: Path) -> None:
    assert load_workload(find_workload("step_of_others:workload(n=4)")).args[0].shape == (4,)
    assert load_workload(find_workload("step_of_others:given")).args[0].shape == (16,)
    (folder / "pyproject.toml").write_text("[tool.xlapipe.workloads]\nversion = 'numpy:dtype'\n")
    with pytest.raises(WorkloadError, match=r"expected an xlapipe\.Workload or a function"):
        load_workload(find_workload("version(dtype='i4')"))


def test_only_names_of_the_project_are_printed_to_be_pasted(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.xlapipe.workloads]\nmine = 'a.b:c'\n")
    assert is_of_project("step_of_others:workload(n=4)")
    assert is_of_project("mine(layers=2)")
    for name in ("subprocess:run(args=['rm'])", "other", "step_of_others:workload(n=", ""):
        assert not is_of_project(name)
