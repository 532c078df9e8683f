"""From the text of a log to its memory failures and XLA's warnings."""

import builtins
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xlapipe.report.failures.allocator_dump import AllocatorDump, read_allocator_dumps
from xlapipe.report.failures.cause import kind_and_reason, timed_instruction, traceback_before
from xlapipe.report.failures.failure import (
    Call,
    FailureKind,
    Memory,
    MemoryFailure,
    read_buffers,
    read_parts,
)
from xlapipe.report.failures.messages import (
    HOST,
    MemoryWarning,
    Message,
    find_messages,
    find_warnings,
)
from xlapipe.report.failures.sizes import ROUNDED

_EXECUTABLE = re.compile(
    r"\[executable_name='(?P<name>[^']*)'\]|HLO module: (?P<module>[\w.-]*\w)"
    r"|XlaModule:#hlo_module=(?P<annotated>[\w.-]*\w)"
)
_TRACED = re.compile(r'op_name="jit\((?P<name>\w+)\)/')
_EXCEPTION = re.compile(r"\b\w*(?:Error|Exception): [^\n]{0,400}\n?[^\n]{0,400}$")
# Characters of a line before a message that are searched for the exception.
_MAX_LINE = 1000
_LIMIT = re.compile(
    r"XLA backend (?:allocating|will use up to) (?:\S+ \()?(?P<size>\d+) bytes\)? on device "
    r"(?P<ordinal>\d+)"
)
# XLA's own lists follow its message; a message without a successor ends here at the latest.
_MAX_MESSAGE = 200_000
_UNRECOGNISED = re.compile(
    r"(?i)RESOURCE.EXHAUSTED|out.of.memory|\bOOM|oom.kill|ALLOC_FAILED|MemoryError|bad_alloc"
)
_FIGURES = (
    *("requested", "executable_name", "device", "limit_bytes", "call", "instruction", "parts"),
    *("buffers", "allocator"),
)
_FRAME = re.compile(
    r"""^\s*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in \S+)?[ \t]*\n"""
    r"""(?:\s+(?!File ")(?P<code>[^\n]+))?""",
    re.MULTILINE,
)
# Files of installed packages, and of the interpreter itself.
_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|jax|jaxlib|flax|optax|equinox|haiku|torch_xla)/"
    r"|/lib/python3\.\d+/|^<(?:frozen|string)"
)
# Functions that a step is passed through: `float(step(x))`, `jax.block_until_ready(step(x))`.
_AROUND = re.compile(rf"(?:jax|jnp|np|numpy|time|tqdm)\.|(?:{'|'.join(dir(builtins))})$")
_CALL = re.compile(r"([A-Za-z_][\w.]*)\(")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LEVEL = r"\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\]?"
_PREFIX = re.compile(
    r"\[\d+,\d+\]<std\w+>: ?"  # Open MPI, --tag-output
    r"|\s{0,4}\d{1,5}: "  # srun --label
    r"|\[[A-Za-z_.-]*rank[ _]?\d+\]:? "  # torchrun and others
    r"|\([\w.:/-]+(?: pid=\d+)?(?:, ip=[\d.]+)?\) "  # Ray
    r"|\[pod/[\w./-]+\] "  # kubectl logs --prefix
    r"|[\w.-]+ +\| "  # docker compose
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?"  # CRI
    # Python's logging: a time, fields that end with a separator, a level.
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*\]?:?"
    rf"(?:\s*(?:-|\||::)?\s*(?:{_LEVEL}|\[?[\w./<>-]+(?::\d+)?\]?)\s*(?:-|\||::)\s+)*"
    rf"(?:\s*{_LEVEL}:?\s)?\s?"
    rf"|{_LEVEL} \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]+:\d+\] ?"  # vLLM
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.-]+:\d+\] ?"  # absl, as XLA logs
)
# Every sentence that is read has one of these; lines of its report are at most so far from it.
_MARKER = re.compile(
    r"(?i)memory|alloc|exhausted|rematerialization|XLA backend|base limit|\boom|requirement"
)
_BEFORE, _AFTER = 300, 1000
# A number at the end of a log that was cut off may lack digits.
_CUT_NUMBER = re.compile(r"\d[\d.]* ?\Z")
# More digits than any size has; Python does not convert thousands of them.
_NO_SIZE = re.compile(r"\d{25,}")
_LONGEST_NUMBER = 40


@dataclass(frozen=True)
class LogFindings:
    """What a log states about memory.

    Attributes:
      failures: in order; equal ones that follow each other are one.
      warnings: in order.
      unrecognised: number and text of the last line about memory, if nothing was recognised.
    """

    failures: tuple[MemoryFailure, ...] = ()
    warnings: tuple[MemoryWarning, ...] = ()
    unrecognised: tuple[int, str] | None = None

    @property
    def last_failure(self) -> MemoryFailure | None:
        """The failure that ended the run: of the last exception, else of the last message."""
        raised = [failure for failure in self.failures if failure.raised]
        return next(reversed(raised or self.failures), None)


def read_log(text: str) -> LogFindings:
    """Every failure and warning; an allocation that the run did without is not a failure."""
    text = log_text(text)
    line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
    dumps = read_allocator_dumps(text)
    logged = list(find_messages(text))
    messages = sorted([*logged, *_unreported(dumps, logged)], key=lambda message: message.start)
    failures: list[MemoryFailure] = []
    for index, message in enumerate(messages):
        if message.is_usage and any(earlier.by_compiler for earlier in messages[:index]):
            continue  # the table belongs to the error before it
        following = messages[index + 1].start if index + 1 < len(messages) else len(text)
        if index + 1 < len(messages) and messages[index + 1].is_usage:
            following = len(text)
        report = text[message.start : min(following, message.start + _MAX_MESSAGE)]
        line = bisect_right(line_starts, message.start)
        failure = _failure(text, message, report, dumps, line)
        if failures and _is_same(failures[-1], failure):
            failures[-1] = _merged(failures[-1], failure)
        else:
            failures.append(failure)
    warnings = sorted(find_warnings(text), key=lambda warning: warning.start)
    lines = [replace(item, line=bisect_right(line_starts, item.start)) for item in warnings]
    unrecognised = None if failures or lines else _unrecognised(text, line_starts)
    return LogFindings(tuple(failures), tuple(lines), unrecognised)


def _unrecognised(text: str, line_starts: Sequence[int]) -> tuple[int, str] | None:
    for match in reversed(list(_UNRECOGNISED.finditer(text))):
        number = bisect_right(line_starts, match.start())
        line = text[line_starts[number - 1] :].split("\n", 1)[0]
        if "this is not a failure" not in line:
            return number, line.strip()
    return None


def _unreported(dumps: Sequence[AllocatorDump], messages: Sequence[Message]) -> Iterator[Message]:
    """Dumps of an allocator without a later message, e.g. at the end of a log that was cut off."""
    last = max((m.start for m in messages if not m.by_compiler), default=-1)
    for dump in dumps:
        if not dump.tolerated and last <= dump.start:
            yield Message(
                start=dump.start, text=dump.head, requested=dump.requested, place=dump.device
            )


def _is_same(earlier: MemoryFailure, later: MemoryFailure) -> bool:
    """Whether two messages are of one failure: no figure that both have differs."""
    both = (
        (earlier.executable_name, later.executable_name),
        (earlier.device, later.device),
        (earlier.memory, later.memory),
        (earlier.limit_bytes, later.limit_bytes),
        (earlier.kind is FailureKind.COMPILE, later.kind is FailureKind.COMPILE),
    )
    if any(None not in pair and pair[0] != pair[1] for pair in both):
        return False
    if earlier.requested is None or later.requested is None:
        return True
    slack_bytes = earlier.requested.slack_bytes + later.requested.slack_bytes
    return abs(earlier.requested.size_bytes - later.requested.size_bytes) <= slack_bytes


def _merged(earlier: MemoryFailure, later: MemoryFailure) -> MemoryFailure:
    """The later message, with what only the earlier one has."""
    missing = {name: getattr(earlier, name) for name in _FIGURES if not getattr(later, name)}
    exact = earlier.requested is not None and not earlier.requested.slack_bytes
    if exact and later.requested is not None and later.requested.slack_bytes:
        missing["requested"] = earlier.requested
    if later.kind is FailureKind.EXECUTION:  # by default, if the message states no more
        missing |= {"kind": earlier.kind, "reason": earlier.reason}
    return replace(
        later,
        count=earlier.count + later.count,
        raised=earlier.raised or later.raised,
        **missing,
    )


def _failure(
    text: str, message: Message, report: str, dumps: Sequence[AllocatorDump], line: int
) -> MemoryFailure:
    executable = _EXECUTABLE.search(report) or _TRACED.search(report)
    name = executable[executable.lastgroup or 0] if executable is not None else None
    if executable is not None and executable.re is _TRACED:
        name = f"jit_{name}"
    dump = None if message.by_compiler else _dump_of(message, dumps)
    device = message.place or (dump.device if dump is not None else None)
    rounded = message.requested is not None and message.requested.slack_bytes
    requested = dump.requested if dump is not None and rounded else message.requested
    limit_bytes = _limit_bytes(text, message, device, dump)
    kind, reason = kind_and_reason(text, message, name, dump, requested, limit_bytes)
    on_device = Memory.ON_CHIP if message.on_chip else Memory.DEVICE
    before = text[max(0, message.start - _MAX_LINE) : message.start]
    autotuning = kind is FailureKind.AUTOTUNING
    return MemoryFailure(
        kind=kind,
        line=line,
        message=message.text,
        reason=reason,
        requested=requested,
        executable_name=name,
        device=device,
        memory=Memory.HOST if device == HOST else on_device,
        limit_bytes=limit_bytes,
        call=called_by(traceback_before(text, message.start)),
        instruction=timed_instruction(text, message.start) if autotuning else None,
        parts=read_parts(report),
        buffers=read_buffers(report),
        allocator=dump,
        raised=_EXCEPTION.search("\n".join(before.split("\n")[-2:])) is not None,
    )


def _dump_of(message: Message, dumps: Sequence[AllocatorDump]) -> AllocatorDump | None:
    """The last dump up to the message that is about the same size and device."""
    for dump in reversed(dumps):
        if dump.start > message.start or message.requested is None:
            continue
        slack_bytes = message.requested.slack_bytes + dump.requested.slack_bytes + 256
        near = abs(dump.requested.size_bytes - message.requested.size_bytes) <= slack_bytes
        if near and (message.place is None or dump.device in (None, message.place)):
            return dump
    return None


def _limit_bytes(
    text: str, message: Message, device: str | None, dump: AllocatorDump | None
) -> int | None:
    """The exact limit that XLA printed when it started, if the dump does not name another one."""
    if message.limit is not None:
        return message.limit.size_bytes
    printed = dump.limit_bytes if dump is not None else None
    if message.by_compiler or device == HOST:
        return printed
    limits = {f"GPU_{match['ordinal']}": int(match["size"]) for match in _LIMIT.finditer(text)}
    if device is None and len(set(limits.values())) == 1:
        device = next(iter(limits))
    size_bytes = limits.get(device or "")
    if size_bytes is None or printed is None or abs(size_bytes - printed) > printed * ROUNDED:
        return printed if printed is not None else size_bytes
    return size_bytes


def called_by(traceback: str) -> Call | None:
    """The last frame of `traceback` that is not of a library; None if it has none."""
    frames = [match for match in _FRAME.finditer(traceback) if not _LIBRARY.search(match["file"])]
    if not frames:
        return None
    names = _CALL.findall(frames[-1]["code"] or "")
    names = [name for name in names if not _AROUND.match(name)] or names
    source = f"{frames[-1]['file']}:{frames[-1]['line']}"
    return Call(source, names[0] if len(names) == 1 else None)


def log_text(text: str) -> str:
    r"""The same lines without prefixes and colours; lines far from any sentence are empty.

    >>> log_text("3: out of memory\r\n")
    'out of memory\n'
    """
    plain = _ANSI.sub("", _NO_SIZE.sub("?", text))
    plain = plain[:-_LONGEST_NUMBER] + _CUT_NUMBER.sub("", plain[-_LONGEST_NUMBER:])
    lines = plain.replace("\r\n", "\n").replace("\r", " ").split("\n")
    kept, kept_to = [""] * len(lines), 0
    for number, line in enumerate(lines):
        if _MARKER.search(line) is not None:
            begin, end = max(kept_to, number - _BEFORE), min(len(lines), number + _AFTER)
            kept[begin:end] = map(_without_prefix, lines[begin:end])
            kept_to = max(kept_to, end)
    return "\n".join(kept)


def _without_prefix(line: str) -> str:
    position = 0
    while match := _PREFIX.match(line, position):
        position = match.end()
    return line[position:]
