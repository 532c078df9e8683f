"""Run the ten jobs of `docs/lab/ten_jobs.md`, and write into that page what each prints.

    cd examples/gpt_training && python ten_jobs.py

Each command runs without a cache of compiles on a terminal of 80 columns: once if it compiles, else
three times, of which the least seconds are taken. Rows of the table have the command, seconds,
lines and the widest line.
"""

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parent
ROOT = PROJECT.parents[1]
PAGE = ROOT / "docs/lab/ten_jobs.md"
COLUMNS = 80
DUMP = "h200-auto-predicted-jax0.11.2"
DIR = f"hlo_dumps/gpt-train/{DUMP}"
OTHER = f"hlo_dumps/gpt-undonated/{DUMP}"
LOG = """\
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate \
1.26GiB with allocator GPU_0_bfc on device 0. [executable_name='jit_step'] \
[tf-allocator-allocation-error='']
"""
_ROW = re.compile(r"^(\| \d+b? \| [^|]+ \| `([^`]+)` \| [^|]+ \|) [^|]* \|$", re.MULTILINE)
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Printed:
    lines: tuple[str, ...]
    seconds: float

    @property
    def summary(self) -> str:
        widest = max(map(len, self.lines), default=0)
        number = f"{len(self.lines)} line{'s' if len(self.lines) != 1 else ''}"
        return f"{self.seconds:.1f} s, {number}, widest {widest}"


class Jobs:
    """The commands of the page, each run once.

    Args:
      folder: a copy of this project, in which the dumps are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = cache(self._run)

    def prepare(self) -> None:
        """Makes what the jobs are given: two dumps, a file that was sent, a log."""
        for workload in ("train", "undonated"):
            subprocess.run(
                [*_words("xlapipe dump"), f"workloads:{workload}"], cwd=self.folder, check=True
            )
        sent = self.folder / "sent"
        sent.mkdir()
        packed = self.folder / DIR / "after_optimizations.hlo.pb.xz"
        (sent / packed.stem).write_bytes(subprocess.check_output(["xz", "-dc", packed]))
        (self.folder / "oom.log").write_text(LOG)

    def _run(self, command: str) -> Printed:
        """Runs a command of the page, three times if it does not compile."""
        times = 1 if " workloads:" in command or "fsdp-mlp" in command else 3
        return min((self._once(command) for _ in range(times)), key=lambda printed: printed.seconds)

    def _once(self, command: str) -> Printed:
        """Runs a command with standard output on a terminal."""
        folder = ROOT if "fsdp-mlp" in command else self.folder
        terminal, printer = pty.openpty()
        environment = os.environ | {
            "COLUMNS": str(COLUMNS),
            "TERM": "xterm",
            "XLAPIPE_NO_CACHE": "1",
        }
        begin = time.monotonic()
        process = subprocess.Popen(
            _words(command),
            cwd=folder,
            env=environment,
            stdout=printer,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        os.close(printer)
        text = b"".join(_read(terminal)).decode()
        os.close(terminal)
        # Exit code 1: `check` found a violation, `diff` a difference.
        if process.wait() not in (0, 1) or not text:
            raise RuntimeError(f"{command}: exit code {process.returncode}")
        seconds = time.monotonic() - begin
        lines = _STYLE.sub("", text).replace("\r\n", "\n").removesuffix("\n").split("\n")
        return Printed(tuple(line.rstrip() for line in lines), seconds)

    def row(self, match: "re.Match[str]") -> str:
        return f"{match[1]} {self.run(match[2]).summary} |"


def _words(command: str) -> list[str]:
    command = re.sub(r"\bDIR\b", DIR, re.sub(r"\bOTHER\b", OTHER, command))
    if not command.startswith("xlapipe "):
        path = next(path for path in (DIR, OTHER) if path in command)
        return [sys.executable, "-c", f"import xlapipe; print({command.replace(path, repr(path))})"]
    return [sys.executable, "-m", *command.split()]


def _read(terminal: int) -> "list[bytes]":
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux: the other end is closed.
            return parts
        if not part:
            return parts
        parts.append(part)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / PROJECT.name
        shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__", "hlo_dumps"))
        jobs = Jobs(project)
        jobs.prepare()
        text = _ROW.sub(jobs.row, PAGE.read_text())
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
