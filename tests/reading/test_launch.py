"""Several processes: who is who, finding each other, and leaving none behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from xlapipe.cli import main
from xlapipe.errors import TargetError
from xlapipe.running.launch import Launch, launch
from xlapipe.running.rendezvous import SEVERAL_GPUS, Member, meet, member_from

PYTHON = sys.executable
# `xlapipe launch` has no jax in its process; the tests' own may have, from a test before.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


@pytest.fixture(autouse=True)
def logs_among_the_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of processes that fail are kept on purpose."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def member(process: int, count: int, port: int, wait: float = 10) -> Member:
    return Member(process=process, count=count, coordinator=f"127.0.0.1:{port}", wait_seconds=wait)


def met(members: list[Member], abouts: list[str] | None = None) -> list[str | None]:
    """What each process was told when all met at once; None if nothing was wrong."""

    def one(number: int) -> str | None:
        try:
            meet(members[number], (abouts or ["same"] * len(members))[number])
        except TargetError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(one, range(len(members))))


def test_processes_meet_in_any_order_and_leave_the_port_free() -> None:
    port = free_port()
    members = [member(number, 3, port) for number in (2, 0, 1)]
    assert met(members) == [None, None, None]
    with socket.create_server(("127.0.0.1", port)):
        pass  # jax's coordinator listens there next


def test_who_is_missing_is_named_on_every_side() -> None:
    port = free_port()
    first, second = met([member(0, 3, port, 0.5), member(1, 3, port, 5)])
    assert first is not None
    assert second is not None
    assert f"process 0 of 3: process 2 did not come to 127.0.0.1:{port} within 0.5 s" in first
    assert "process 2 is missing" in second


def test_a_coordinator_that_is_not_there() -> None:
    started = time.monotonic()
    (said,) = met([member(1, 2, free_port(), 0.3)])
    assert said is not None
    assert "did not answer within 0.3 s" in said
    assert "is process 0 running" in said
    assert time.monotonic() - started < 5


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (said,) = met([member(0, 2, port, 0.3)])
    assert said is not None
    assert "cannot listen" in said
    assert "--coordinator" in said


@pytest.mark.parametrize(
    ("other", "about", "expected"),
    [
        (lambda port: member(1, 3, port, 3), "same", "process 1 expects 3"),
        (lambda port: member(1, 2, port, 3), "another", "process 1 runs another"),
    ],
)
def test_processes_that_want_different_things(
    other: Callable[[int], Member], about: str, expected: str
) -> None:
    port = free_port()
    for said in met([member(0, 2, port, 3), other(port)], ["same", about]):
        assert said is not None
        assert expected in said


def test_two_that_say_they_are_the_same() -> None:
    port = free_port()
    said = met([member(0, 3, port, 3), member(1, 3, port, 3), member(1, 3, port, 3)])
    assert "two processes say that they are number 1" in str(said[0])


def test_a_strangers_connection_is_let_go() -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(met, [member(0, 2, port, 5)])
        while True:
            try:
                stranger = socket.create_connection(("127.0.0.1", port), timeout=1)
                break
            except OSError:
                time.sleep(0.02)
        with stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert met([member(1, 2, port, 5)]) == [None]
        assert first.result() == [None]


def test_a_member_passes_through_the_environment() -> None:
    one = Member(process=3, count=8, coordinator="[::1]:5000", local_devices=(3,), wait_seconds=7.5)
    assert member_from(one.environment()) == one
    assert one.address == ("::1", 5000)
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
def test_an_environment_that_does_not_fit(changed: dict[str, str], expected: str) -> None:
    good = member(1, 2, 5000).environment()
    with pytest.raises(TargetError, match=expected):
        member_from({**good, **changed})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--host-index", "1"], "--host-index 1: expected 0 to 0"),
        (["--hosts", "2"], "name host 0 and a free port"),
        (["--coordinator", "host"], "--coordinator host: expected HOST:PORT"),
        (["--coordinator", "host:0"], "--coordinator host:0: expected HOST:PORT"),
        (["--wait", "0"], "--wait 0: expected seconds above 0"),
    ],
)
def test_options_of_launch_that_do_not_fit(
    options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "--processes", "2", *options, "--", "true"]) == 2
    assert expected in capsys.readouterr().err


def test_no_such_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--processes", "2", "--", "no-such-command-here"]) == 2
    assert "no-such-command-here: no such command" in capsys.readouterr().err


def test_hosts_number_their_processes_one_after_another() -> None:
    asked = Launch(command=("true",), processes=4, hosts=2, host_index=1, coordinator="first:5000")
    members = asked.members()
    assert [each.process for each in members] == [4, 5, 6, 7]
    assert {each.count for each in members} == {8}
    assert [each.local_devices for each in members] == [(0,), (1,), (2,), (3,)]


def started(folder: Path, body: str, processes: int = 3) -> Launch:
    """A launch of a script that leaves its process id in `folder` and goes on with `body`."""
    script = folder / "script.py"
    script.write_text(
        "import os, sys, time, json\nfrom pathlib import Path\n"
        "me = int(os.environ['JAX_PROCESS_ID'])\n"
        f"part = Path({str(folder)!r}, f'{{me}}.partial')\n"
        "part.write_text(json.dumps({'pid': os.getpid(), 'environ': dict(os.environ)}))\n"
        "part.rename(part.with_suffix('.json'))\n" + body
    )
    return Launch(command=(PYTHON, "-S", str(script)), processes=processes, wait_seconds=5)


def processes_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def alive(pid: object) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def gone_soon(pids: list[object]) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(map(alive, pids)):
        time.sleep(0.02)
    return not any(map(alive, pids))


# So that all are there before one of them ends.
ALL_THERE = "while len(list(Path(part.parent).glob('*.json'))) < 3: time.sleep(0.01)\n"


def test_all_run_and_know_who_they_are(tmp_path: Path) -> None:
    assert launch(started(tmp_path, "")) == 0
    found = processes_of(tmp_path)
    members = [member_from(each["environ"]) for each in found]  # type: ignore[arg-type]
    assert [each.process for each in members if each] == [0, 1, 2]
    assert len({each.coordinator for each in members if each}) == 1
    for each in found:
        assert SEVERAL_GPUS.items() <= each["environ"].items()  # type: ignore[attr-defined]


def test_what_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    launch(started(tmp_path, "", processes=1))
    (found,) = processes_of(tmp_path)
    environ = found["environ"]
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
def test_one_that_fails_ends_the_others(ending: str, expected: str, tmp_path: Path) -> None:
    body = f"{ALL_THERE}if me == 1: {ending}\ntime.sleep(60)"
    begun = time.monotonic()
    with pytest.raises(TargetError, match=f"process 1 of 3 ended with .*{expected}") as error:
        launch(started(tmp_path, body))
    assert time.monotonic() - begun < 30
    assert gone_soon([each["pid"] for each in processes_of(tmp_path)])
    log = Path(str(error.value).partition("its log is ")[2].partition(";")[0])
    assert log.name == "process-1.log"
    assert log.exists()


def test_the_first_process_speaks_for_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = f"{ALL_THERE}if me == 0: sys.exit('the reason')\ntime.sleep(60)"
    assert launch(started(tmp_path, body)) == 1
    assert capfd.readouterr().err == "the reason\n"
    assert gone_soon([each["pid"] for each in processes_of(tmp_path)])


def test_who_knows_why_is_asked_before_who_was_aborted(tmp_path: Path) -> None:
    """jax aborts a process when another leaves, and that other's words matter."""
    body = (
        f"{ALL_THERE}if me == 1: os.kill(os.getpid(), 6)\n"
        "if me == 2: time.sleep(0.2); sys.exit('the reason')\ntime.sleep(60)"
    )
    with pytest.raises(TargetError, match="process 2 of 3 ended with exit code 1: the reason"):
        launch(started(tmp_path, body))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell has what it puts into the background ignore interrupts, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_the_launcher_ends_its_processes(
    number: signal.Signals, tmp_path: Path
) -> None:
    asked = started(tmp_path, "time.sleep(60)")
    command = [PYTHON, "-m", "xlapipe.cli", "launch", "--processes", "3", "--", *asked.command]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environ)
    while len(list(tmp_path.glob("*.json"))) < 3:
        assert launcher.poll() is None
        time.sleep(0.02)
    os.kill(launcher.pid, number)
    launcher.wait(20)
    assert gone_soon([each["pid"] for each in processes_of(tmp_path)])
