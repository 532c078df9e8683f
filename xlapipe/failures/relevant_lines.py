"""The lines of a job's log that can be about memory, without what launchers write before them."""

import re

_PREFIX = re.compile(
    r"^(?:"
    r"\[\d+,\d+\]<std\w+>: ?"  # Open MPI, --tag-output
    r"|\d{1,5}: "  # srun --label
    r"|\[[A-Za-z_.-]*rank[ _]?\d+\]:? "  # torchrun and others
    r"|\([\w.:/-]+(?: pid=\d+)?(?:, ip=[\d.]+)?\) "  # Ray
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?"  # CRI, CI
    r"|[\w.-]+ +\| "  # docker compose
    r")+"
)
# Every sentence that is read has one of these in each of its lines or near them.
_MARKER = re.compile(
    r"memory|MEMORY|alloc|ALLOC|Alloc|EXHAUSTED|[Hh]bm|HBM|XLA backend|[Hh]andle\b|[Cc]uda failure"
    r"|BLAS(?:LT)? support|CUDNN_STATUS|cuFFT"
)
# Lines around a marker that belong to the same report: tracebacks before, lists of buffers after.
_BEFORE, _AFTER = 300, 1000


def relevant_lines(text: str) -> str:
    """`text` with the prefixes removed, and lines far from any mention of memory emptied.

    Every line keeps its number. A log of a long run is mostly about other things.

    >>> relevant_lines("3: out of memory")
    'out of memory'
    """
    lines = text.split("\n")
    kept_to, kept = 0, [""] * len(lines)
    for number, line in enumerate(lines):
        if _MARKER.search(line) is not None:
            begin = max(kept_to, number - _BEFORE)
            end = min(len(lines), number + _AFTER)
            for index in range(begin, end):
                kept[index] = _PREFIX.sub("", lines[index], count=1)
            kept_to = max(kept_to, end)
    return "\n".join(kept)
