"""Commands end at once by Ctrl-C and other signals, with their children, and leave nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.folders import STEPS
from xlapipe.devices.environment.scratch import Scratch, scratch_folder

pytestmark = pytest.mark.jax

# The machine may be busy; without the cure the commands never end.
_PATIENCE_SECONDS = 30.0
ONE = ("dump", "hanging_step:hang")
SEVERAL = ("fit", "hanging_step:hang", "--vary", "batch=1,2,3,4")
CHOOSE = ("choose", "hanging_step:hang", "--vary", "batch=1,2")


def _until(condition: object, what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS * 2
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


@pytest.fixture(autouse=True)
def signals_not_ignored() -> Iterator[None]:
    """Lets children be interrupted under nohup and in a script's background, which ignore these."""
    former = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGHUP)
    }
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "steps").mkdir()
    (tmp_path / "tmp").mkdir()
    yield tmp_path
    for path in (tmp_path / "steps").iterdir():
        if path.name.isdecimal() and _alive(int(path.name)):
            os.kill(int(path.name), signal.SIGKILL)


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = subprocess.Popen(
        [sys.executable, "-m", "xlapipe", *arguments],
        cwd=STEPS,
        env={
            **os.environ,
            "HANGING_STEPS": str(folder / "steps"),
            "TMPDIR": str(folder / "tmp"),
            "PYTHONPATH": str(STEPS.parents[1]),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _until(
        lambda: (
            any(path.name.isdecimal() for path in (folder / "steps").iterdir())
            or command.poll() is not None
        ),
        "no child began",
    )
    assert command.poll() is None, command.communicate()
    return command


def children(folder: Path) -> list[int]:
    return [int(path.name) for path in (folder / "steps").iterdir() if path.name.isdecimal()]


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (ONE, signal.SIGTERM),
        (SEVERAL, signal.SIGINT),
        (CHOOSE, signal.SIGHUP),
    ],
)
def test_a_signal_ends_the_command_and_its_children(
    folder: Path, arguments: tuple[str, ...], number: signal.Signals
) -> None:
    command = start(folder, *arguments)
    os.kill(command.pid, number)
    _, errors = command.communicate(timeout=_PATIENCE_SECONDS)
    assert command.returncode == 128 + number
    assert "Traceback" not in errors
    assert "xlapipe: interrupted" in errors
    _until(lambda: not any(map(_alive, children(folder))), "a child compiles on")
    assert list((folder / "tmp").iterdir()) == []


def test_children_of_a_killed_command_end_too(folder: Path) -> None:
    command = start(folder, *SEVERAL)
    command.kill()
    command.communicate(timeout=_PATIENCE_SECONDS)
    _until(lambda: not any(map(_alive, children(folder))), "a child compiles on")
    left = list((folder / "tmp").glob("xlapipe-*"))
    assert left != []  # nobody was there to remove them
    # The next process that needs such a folder removes them.
    script = "from xlapipe.devices.environment.scratch import Scratch; Scratch('next-').close()"
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        check=True,
    )
    _until(lambda: list((folder / "tmp").iterdir()) == [], "stale folders stay")


def test_folders_in_use_and_kept_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    kept = Scratch("kept-")
    kept.keep()
    kept.close()
    other = tmp_path / "xlapipe-of-the-user"
    other.mkdir()
    with scratch_folder("used-") as used:
        script = "from xlapipe.devices.environment.scratch import Scratch; Scratch('next-').close()"
        subprocess.run([sys.executable, "-c", script], check=True)
        assert used.is_dir()
        assert kept.path.is_dir()
        assert other.is_dir()
    assert not used.exists()
