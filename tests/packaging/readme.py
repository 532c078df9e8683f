"""The example of a user's own step, as README.md prints it."""

import re
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = "$ xlapipe check step:workload"


@dataclass(frozen=True)
class Example:
    """The step that fails its check, the line that fixes it, and what both checks print.

    Attributes:
      table: the project's pyproject.toml, which names the workload `my-step`.
    """

    failing: str
    fix: str
    printed_failing: str
    printed_passing: str
    table: str

    @property
    def passing(self) -> str:
        """The step with the line added, before the expectations."""
        line = "    expectations="
        assert self.failing.count(line) == 1, f"README.md: step.py has one line `{line}`"
        return self.failing.replace(line, f"    {self.fix}\n{line}")


def example() -> Example:
    """Reads the example.

    Raises:
      ValueError, AssertionError: README.md has no such example.
    """
    text = README.read_text(encoding="utf-8")
    blocks = _FENCE.findall(text)
    (step,) = (code for kind, code in blocks if kind == "python" and code.startswith("# step.py\n"))
    (table,) = (code for kind, code in blocks if kind == "toml" and "xlapipe.workloads" in code)
    printed = [
        code.partition("\n")[2]
        for kind, code in blocks
        if kind == "console" and code.partition(" --")[0].partition("\n")[0] == _COMMAND
    ]
    fix = re.search(r"Add `(donate_argnums=0,)` to the `Workload`", text)
    assert fix is not None, "README.md says which line to add"
    failing, passing = printed
    return Example(step, fix[1], failing, passing, table)
