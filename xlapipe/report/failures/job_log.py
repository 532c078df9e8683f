"""The lines of a job's log that can be about memory, without what launchers write before them."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LEVEL = r"\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\]?"
# What names the process that wrote a line, if several write to one log.
_PROCESS = re.compile(
    r"\[\d+,\d+\]<std\w+>: ?"  # Open MPI, --tag-output
    r"|\s{0,4}\d{1,5}: "  # srun --label
    r"|\[[A-Za-z_.-]*rank[ _]?\d+\]:? "  # torchrun and others
    r"|\[(?:default)?\d+\]:? (?=\d{4}-|\S+Error)"
    r"|\([\w.:/-]+(?: pid=\d+)?(?:, ip=[\d.]+)?\) "  # Ray
    r"|\[pod/[\w./-]+\] "  # kubectl logs --prefix
    r"|[\w.-]+ +\| "  # docker compose
)
_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?"  # CRI, CI
    # Python's logging: a time, fields that end with a separator, a level.
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*\]?:?"
    rf"(?:\s*(?:-|\||::)?\s*(?:{_LEVEL}|\[?[\w./<>-]+(?::\d+)?\]?)\s*(?:-|\||::)\s+)*"
    rf"(?:\s*{_LEVEL}:?\s)?\s?"
    rf"|{_LEVEL} \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]+:\d+\] ?"  # vLLM
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.-]+:\d+\] ?"  # absl, as XLA logs
)
# Every sentence that is read has one of these in each of its lines or near them.
_MARKER = re.compile(
    r"memory|MEMORY|Memory|alloc|ALLOC|Alloc|EXHAUSTED|exhausted|[Hh]bm|HBM|XLA backend|[Hh]andle\b"
    r"|[Cc]uda failure|requirement|out of resource|shared data"
    r"|BLAS(?:LT)? support|CUDNN_STATUS|DNN library|cuFFT|oom.kill"
)
# Lines around a marker that belong to the same report: tracebacks before, lists of buffers after.
_BEFORE, _AFTER = 300, 1000
# A number at the end of a log that was cut off may lack digits, or letters of its unit.
_CUT_NUMBER = re.compile(r"\d[\d.]* ?[KMGTPE]?i?\Z")
# Where collectors of logs put a line that they wrap in JSON.
_JSON_KEYS = ("log", "message", "msg", "textPayload", "text", "line", "event", "jsonPayload")


@dataclass(frozen=True)
class JobLog:
    """The relevant lines of a log.

    Attributes:
      text: without prefixes, colours and JSON; if several processes wrote the log, the lines of
        each follow each other. Irrelevant lines are empty.
      numbers: the number in the log of each line of `text`, from 1.
    """

    text: str
    numbers: tuple[int, ...]


def read_job_log(text: str) -> JobLog:
    """Removes what launchers and collectors of logs add.

    >>> read_job_log("3: out of memory")
    JobLog(text='out of memory', numbers=(1,))
    """
    lines = (
        _CUT_NUMBER.sub("", _ANSI.sub("", text))
        .replace("\r\n", "\n")
        .replace("\r", " ")
        .split("\n")
    )
    kept = list(_relevant(lines))
    ordered = _by_process([piece for number, line in kept for piece in _pieces(number, line)])
    return JobLog("\n".join(line for _, _, line in ordered), tuple(n for n, _, _ in ordered))


def _relevant(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Number and text of each line; lines far from any mention of memory are empty."""
    kept_to, kept = 0, [""] * len(lines)
    for number, line in enumerate(lines):
        if _MARKER.search(line) is not None:
            begin = max(kept_to, number - _BEFORE)
            end = min(len(lines), number + _AFTER)
            kept[begin:end] = lines[begin:end]
            kept_to = max(kept_to, end)
    return enumerate(kept, start=1)


def _pieces(number: int, line: str) -> Iterator[tuple[int, str, str]]:
    """Number, process and text of each line that a line contains; several only in JSON."""
    process, line = _without_prefix(line)
    payload = _payload(line)
    if payload is None:
        yield number, process, line
        return
    for part in payload.rstrip("\n").split("\n"):
        inner, text = _without_prefix(_ANSI.sub("", part))
        yield number, process + inner, text


def _without_prefix(line: str) -> tuple[str, str]:
    """The process that a line's prefixes name, and the rest of the line."""
    process, position = "", 0
    while match := _PROCESS.match(line, position) or _TIME.match(line, position):
        if match.re is _PROCESS:
            process += match[0].strip()
        position = match.end()
    return process, line[position:]


def _payload(line: str) -> str | None:
    """The text in a line of JSON; None if it is another line."""
    if not line.startswith("{"):
        return None
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    while isinstance(value, dict):
        value = next((value[key] for key in _JSON_KEYS if key in value), None)
    return value if isinstance(value, str) else None


def _by_process(lines: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """The lines of each process together, in the order of their last lines."""
    named = sum(1 for _, process, _ in lines if process)
    written = sum(1 for _, _, text in lines if text)
    if len({process for _, process, _ in lines if process}) < 2 or 2 * named < written:
        return lines
    by_process = defaultdict(list)
    for line in lines:
        by_process[line[1]].append(line)
    groups = sorted(by_process.values(), key=lambda group: group[-1][0])
    return [line for group in groups for line in group]
