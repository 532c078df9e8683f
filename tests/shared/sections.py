"""Expected lines in a file: for each case a line with its name, then its lines, indented."""

from pathlib import Path


def sections(file: Path) -> list[tuple[str, list[str]]]:
    """The name and the lines of each case."""
    cases: list[tuple[str, list[str]]] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            cases[-1][1].append(line[2:])
        else:
            cases.append((line, []))
    return cases
