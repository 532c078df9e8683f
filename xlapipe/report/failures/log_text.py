"""The lines of a job's log, without what terminals and launchers write before them."""

import re

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
