"""A process that ends without freeing its memory does all else that Python does at the end."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from xlapipe.devices.environment.process_end import end_process

class Freed:
    def __del__(self):
        print("freed", flush=True)

def later():
    time.sleep(0.2)
    print("thread")

kept = Freed()
atexit.register(lambda: print("at exit"))
threading.Thread(target=later).start()
print("error", end="", file=sys.stderr)
end_process(3)
"""


def test_threads_exit_functions_and_streams() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 3
    assert done.stdout == "thread\nat exit\n"
    assert done.stderr == "error"


@pytest.mark.parametrize(("argument", "code"), [("--version", 0), ("--unknown", 2), ("targets", 0)])
def test_codes_of_commands(argument: str, code: int) -> None:
    command = [sys.executable, "-m", "xlapipe.cli", argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert (done.stdout if code == 0 else done.stderr).startswith(("xlapipe", "usage", "target"))
