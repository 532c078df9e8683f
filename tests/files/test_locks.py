"""Locks between processes: no forked child holds one, and no wait is silent or endless."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from xlapipe.errors import XlapipeError
from xlapipe.files import locks
from xlapipe.files.locks import hold, locked, release

FORKS = """
import os, sys, time
from xlapipe.files.locks import hold
hold(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT))
if os.fork() == 0:
    print("forked", flush=True)
    time.sleep(600)
sys.stdin.read()
"""


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)


def test_a_users_fork_holds_no_lock(tmp_path: Path) -> None:
    """Another process waited until the child ended, also where its parent had been killed."""
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"forked\n"
        descriptor = opened(path)
        with pytest.raises(BlockingIOError):
            hold(descriptor)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        hold(descriptor)
        release(descriptor)
        os.killpg(process.pid, 9)


def test_a_wait_names_its_holder_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "_SILENT_SECONDS", 0.05)
    holder, waiting = opened(tmp_path / "lock"), opened(tmp_path / "lock")
    hold(holder)
    began = time.monotonic()
    text = rf"my-step: waited \d+ s for process {os.getpid()} \(.*which holds the lock; fix: "
    with (
        pytest.raises(XlapipeError, match=text),
        locked(waiting, what="my-step", limit_seconds=0.3),
    ):
        pass
    assert 0.3 <= time.monotonic() - began < 30
    assert f"my-step: waiting for process {os.getpid()} (" in caplog.text
    release(holder)
    with locked(opened(tmp_path / "lock"), what="my-step", limit_seconds=0):
        pass
