"""Removal of what launchers write in front of each line of a job's log."""

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


def without_launcher_prefixes(text: str) -> str:
    """`text` without these prefixes; every line keeps its number.

    >>> without_launcher_prefixes("3: out of memory")
    'out of memory'
    """
    return "\n".join(_PREFIX.sub("", line, count=1) for line in text.split("\n"))
