"""Environments with other versions of jax: made once, again if incomplete, and their errors."""

import os
import sys
from pathlib import Path

import pytest

from xlapipe.cli import main
from xlapipe.differences.comparing import jax_environments
from xlapipe.differences.comparing.jax_environments import python_with_jax
from xlapipe.errors import XlapipeError

# Replaces uv: makes the same files without installing, and writes its arguments to a log.
UV = """#!/bin/sh
[ "$1" = --version ] || echo "$@" >>"$UV_LOG"
case $1 in
venv) for last; do :; done; mkdir -p "$last/bin"; ln -s "$REAL_PYTHON" "$last/bin/python" ;;
pip) [ -z "$UV_FAILS" ] || { echo "resolving" >&2; echo "$UV_FAILS" >&2; exit 2; } ;;
esac
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of the replaced uv; the cache is an empty folder."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "uv").write_text(UV)
    (commands / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("UV_FAILS", "")
    monkeypatch.setenv("REAL_PYTHON", sys.executable)
    return tmp_path / "log"


def commands_in(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def quiet(_: str) -> None:
    """Ignores the message."""


def test_an_environment_is_made_once_with_the_pins(log: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    python = python_with_jax("0.10.2", on_install=messages.append)
    assert python.exists()
    assert python.is_relative_to(tmp_path / "cache" / "xlapipe" / "environments")
    assert [line.split()[0] for line in commands_in(log)] == ["venv", "pip"]
    assert "--no-python-downloads" in commands_in(log)[0]
    install = commands_in(log)[1].split()
    assert {"jax==0.10.2", "jaxlib==0.10.2", "jax-cuda13-plugin==0.10.2"} <= set(install)
    assert install[install.index("--constraint") + 1].endswith("requirements/jax-0.10.2.txt")
    assert [text.split(" into ")[0] for text in messages] == ["installing jax 0.10.2"]

    assert python_with_jax("0.10.2", on_install=messages.append) == python
    assert len(commands_in(log)) == 2
    assert len(messages) == 1


def test_a_version_without_pins_is_installed_without_constraints(log: Path) -> None:
    python_with_jax("0.10.99", on_install=quiet)
    assert "--constraint" not in commands_in(log)[1]
    assert "jax==0.10.99" in commands_in(log)[1]


def test_an_incomplete_environment_is_made_again(log: Path) -> None:
    python = python_with_jax("0.10.2", on_install=quiet)
    folder = python.parent.parent
    (folder / ".complete").unlink()
    (folder / "partial").write_text("an interrupted installation")
    assert python_with_jax("0.10.2", on_install=quiet) == python
    assert not (folder / "partial").exists()
    assert (folder / ".complete").is_file()
    assert len(commands_in(log)) == 4


def test_a_failed_installation_is_one_error_and_leaves_no_stamp(
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("UV_FAILS", "error: dns error: no such host")
    arguments = ["diff", "--workload", "qwen3-step", "--versions", "0.10.99,0.10.98"]
    assert main(arguments) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("xlapipe: error: jax 0.10.99 cannot be installed: uv failed")
    assert "dns error: no such host" in message
    assert "fix: check that the package index" in message
    assert not list(tmp_path.rglob(".complete"))
    monkeypatch.setenv("UV_FAILS", "")
    assert python_with_jax("0.10.99", on_install=quiet).exists()


def test_without_uv_pip_installs(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin" / "uv").unlink()
    run: list[list[str]] = []
    monkeypatch.setattr(jax_environments, "_run", lambda command, version: run.append(command))
    # Without a real installation there is no folder for the stamp.
    with pytest.raises(XlapipeError):
        python_with_jax("0.10.2", on_install=quiet)
    assert run[0][1:4] == ["-I", "-m", "venv"]
    assert run[1][1:4] == ["-m", "pip", "install"]
    assert commands_in(log) == []


def test_a_cache_that_cannot_be_written_is_refused(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(XlapipeError, match=r"file/xlapipe/environments.*fix: set XDG_CACHE_HOME"):
        python_with_jax("0.10.2", on_install=quiet)
    assert commands_in(log) == []
