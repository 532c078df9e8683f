"""Several processes: their numbers, and how all end when one fails."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from xlapipe.cli import main
from xlapipe.errors import TargetError
from xlapipe.run.launch import LaunchSettings, launch
from xlapipe.run.rendezvous import SEVERAL_GPUS, Member, member_from

PYTHON = sys.executable
# `xlapipe launch` has no jax in its process; the tests' own may have, from a test before.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


@pytest.fixture(autouse=True)
def logs_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher keeps the logs of processes that fail."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def member(process: int, count: int, port: int) -> Member:
    return Member(process=process, count=count, coordinator=f"127.0.0.1:{port}")


def test_a_member_round_trips_through_the_environment() -> None:
    original = Member(
        process=3,
        count=8,
        coordinator="[::1]:5000",
        local_devices=(3,),
        wait_seconds=7.5,
    )
    assert member_from(original.environment()) == original
    assert original.address == ("::1", 5000)
    assert member_from({}) is None
    assert member_from({"JAX_COORDINATOR_ADDRESS": "somebody:1"}) is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"JAX_PROCESS_ID": ""}, "JAX_PROCESS_ID not set"),
        ({"JAX_COORDINATOR_ADDRESS": "host"}, "expected HOST:PORT"),
        ({"JAX_NUM_PROCESSES": "two"}, "expected HOST:PORT and numbers"),
        ({"JAX_PROCESS_ID": "2"}, "process 2 of 2"),
        ({"JAX_COORDINATOR_ADDRESS": "host:99999"}, "a port from 1 to 65535"),
        ({"XLAPIPE_WAIT_SECONDS": "0"}, "a wait above 0 s"),
    ],
)
def test_an_invalid_environment(changed: dict[str, str], expected: str) -> None:
    valid = member(1, 2, 5000).environment()
    with pytest.raises(TargetError, match=expected):
        member_from({**valid, **changed})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--host-index", "1"], "--host-index 1: expected 0 to 0"),
        (["--hosts", "2"], "fix: give the address of host 0 and a free port"),
        (["--coordinator", "host"], "--coordinator host: expected HOST:PORT"),
        (["--coordinator", "host:0"], "--coordinator host:0: expected HOST:PORT"),
        (["--wait", "0"], "--wait 0: expected seconds above 0"),
    ],
)
def test_invalid_options_of_launch(
    options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "--processes", "2", *options, "--", "true"]) == 2
    assert expected in capsys.readouterr().err


def test_a_command_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Its own `--json` does not make the launcher print JSON."""
    assert main(["launch", "--processes", "2", "--", "no-such-command-here", "--json"]) == 2
    captured = capsys.readouterr()
    assert "no-such-command-here: no such command" in captured.err
    assert captured.out == ""


def test_processes_are_numbered_over_all_hosts() -> None:
    second_host = LaunchSettings(
        command=("true",), processes=4, hosts=2, host_index=1, coordinator="first:5000"
    )
    members = second_host.members()
    assert [member.process for member in members] == [4, 5, 6, 7]
    assert {member.count for member in members} == {8}
    assert [member.local_devices for member in members] == [(0,), (1,), (2,), (3,)]


def launch_of(folder: Path, body: str, processes: int = 3) -> LaunchSettings:
    """A launch of a script that writes its process id into `folder` and then runs `body`."""
    script = folder / "script.py"
    script.write_text(
        "import os, sys, time, json\nfrom pathlib import Path\n"
        "me = int(os.environ['JAX_PROCESS_ID'])\n"
        f"part = Path({str(folder)!r}, f'{{me}}.partial')\n"
        "part.write_text(json.dumps({'pid': os.getpid(), 'environ': dict(os.environ)}))\n"
        "part.rename(part.with_suffix('.json'))\n" + body
    )
    return LaunchSettings(command=(PYTHON, "-S", str(script)), processes=processes, wait_seconds=5)


def processes_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def alive(pid: object) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def end_soon(pids: list[object]) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(map(alive, pids)):
        time.sleep(0.02)
    return not any(map(alive, pids))


# Waits until all processes have started.
ALL_STARTED = "while len(list(Path(part.parent).glob('*.json'))) < 3: time.sleep(0.01)\n"


def test_every_process_gets_its_number_and_the_coordinator(tmp_path: Path) -> None:
    assert launch(launch_of(tmp_path, "")) == 0
    processes = processes_of(tmp_path)
    members = [member_from(process["environ"]) for process in processes]  # type: ignore[arg-type]
    assert [member.process for member in members if member] == [0, 1, 2]
    assert len({member.coordinator for member in members if member}) == 1
    for process in processes:
        assert SEVERAL_GPUS.items() <= process["environ"].items()  # type: ignore[attr-defined]


def test_the_users_settings_take_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    launch(launch_of(tmp_path, "", processes=1))
    (process,) = processes_of(tmp_path)
    environ = process["environ"]
    assert isinstance(environ, dict)
    assert environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
    assert environ["NCCL_NVLS_ENABLE"] == "0"


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("print('xlapipe: error: no GPU', file=sys.stderr); sys.exit(2)", "exit code 2: no GPU"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("os.kill(os.getpid(), 14)", "first call did not end within 5 s"),
        ("os._exit(7)", "exit code 7"),
    ],
)
def test_a_failed_process_ends_the_others(ending: str, expected: str, tmp_path: Path) -> None:
    body = f"{ALL_STARTED}if me == 1: {ending}\ntime.sleep(60)"
    started = time.monotonic()
    with pytest.raises(TargetError, match=f"process 1 of 3 ended with .*{expected}") as error:
        launch(launch_of(tmp_path, body))
    assert time.monotonic() - started < 30
    assert end_soon([process["pid"] for process in processes_of(tmp_path)])
    log = Path(str(error.value).partition("its log is ")[2].partition(";")[0])
    assert log.name == "process-1.log"
    assert log.exists()


def test_a_process_that_jax_aborts_for_another_host(tmp_path: Path) -> None:
    alone = launch_of(tmp_path, "os.abort()", processes=1)
    of_two = replace(alone, hosts=2, coordinator="127.0.0.1:5000")
    with pytest.raises(TargetError, match=r"process 0 of 2 .* on each of the 2 hosts"):
        launch(of_two)


def test_the_first_process_prints_its_own_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = f"{ALL_STARTED}if me == 0: sys.exit('the reason')\ntime.sleep(60)"
    assert launch(launch_of(tmp_path, body)) == 1
    assert capfd.readouterr().err == "the reason\n"
    assert end_soon([process["pid"] for process in processes_of(tmp_path)])


def test_a_process_that_exited_is_reported_before_an_aborted_one(tmp_path: Path) -> None:
    """jax aborts a process when another ends; the other one's error is the reason."""
    body = (
        f"{ALL_STARTED}if me == 1: os.kill(os.getpid(), 6)\n"
        "if me == 2: time.sleep(0.2); sys.exit('the reason')\ntime.sleep(60)"
    )
    with pytest.raises(TargetError, match="process 2 of 3 ended with exit code 1: the reason"):
        launch(launch_of(tmp_path, body))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Undoes that a shell lets its background processes, and their children, ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_launcher_ends_its_processes(
    number: signal.Signals, tmp_path: Path
) -> None:
    script = launch_of(tmp_path, "time.sleep(60)").command
    command = [PYTHON, "-m", "xlapipe.cli", "launch", "--processes", "3", "--", *script]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environ)
    while len(list(tmp_path.glob("*.json"))) < 3:
        assert launcher.poll() is None
        time.sleep(0.02)
    os.kill(launcher.pid, number)
    launcher.wait(20)
    assert end_soon([process["pid"] for process in processes_of(tmp_path)])
