"""Writes the table of versions in docs/versions.md from what the repository pins and records.

python -m tests.versions
"""

import json
import re
from collections.abc import Iterator

from tests.conftest import GOLDEN_JAXLIB, ROOT
from xlapipe.time.predicted_locks.known_results import TABLES, TRITON_COMMITS

PAGE = ROOT / "docs/versions.md"
_PINS = re.compile(r"jax-([\d.]+)\.txt")
_TABLE = re.compile(r"(?<=<!-- python -m tests.versions -->\n)(\|.*\n)*")


def table() -> str:
    """The table in Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    yield "version", "what is tried with it", "autotune results for predicted tuning"
    yield "---", "---", "---"
    for version in pinned():
        is_golden = version == GOLDEN_JAXLIB
        use = "goldens, all tests" if is_golden else f"`.ci/contract {version}` in CI"
        yield f"jax {version}", use, _results(version)
        libtpu = ROOT / f"requirements/jax-{version}-tpu.txt"
        if libtpu.exists():
            pin = libtpu.read_text(encoding="utf-8").split("libtpu==")[1].strip()
            yield f"libtpu {pin}", f"`make test-tpu JAX={version}`", "none needed"
    for version in _torch_versions():
        yield f"torch {version}", "dumps of Inductor, in `tests/inductor/data`", "not read"


def pinned() -> list[str]:
    """The versions of jax in requirements/, the oldest first."""
    names = (path.name for path in (ROOT / "requirements").iterdir())
    versions = [match[1] for match in map(_PINS.fullmatch, names) if match is not None]
    return sorted(versions, key=lambda text: [int(part) for part in text.split(".")])


def jaxlibs_of_tables() -> dict[str, tuple[str, ...]]:
    """The jaxlibs whose results the package has, by target."""
    jaxlibs: dict[str, tuple[str, ...]] = {}
    for path in sorted(TABLES.glob("*.jsonl")):
        with path.open() as table:
            about = json.loads(next(table))["about"]
        jaxlibs[about["target"]] = (*jaxlibs.get(about["target"], ()), about["versions"]["jaxlib"])
    return jaxlibs


def _results(version: str) -> str:
    tables = jaxlibs_of_tables()
    own = ", ".join(target for target, jaxlibs in tables.items() if version in jaxlibs)
    other = ", ".join(target for target, jaxlibs in tables.items() if version not in jaxlibs)
    if version not in TRITON_COMMITS:
        return "none: plans are untuned"
    texts = (own and f"its own: {own}", other and f"of another jaxlib: {other}")
    return "; ".join(filter(None, texts))


def _torch_versions() -> list[str]:
    folders = (ROOT / "tests/inductor/data").glob("torch-*")
    return sorted({folder.name.split("-")[1] for folder in folders})


def written(page: str) -> str:
    """The page with the table of now."""
    return _TABLE.sub(lambda _: table(), page, count=1)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
