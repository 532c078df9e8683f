"""What is known of mutants from earlier runs, as long as it still holds."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tests.mutants.child_sessions import Outcome
from tests.mutants.mutations import Mutant


class Results:
    """Outcomes by mutant, appended to a file as they come.

    A killed mutant stays killed while its module is the same; a survivor is run again when anything
    in xlapipe or tests has changed.
    """

    def __init__(self, root: Path, file: Path, *, fresh: bool) -> None:
        self._root = root
        self._everything = digest_of_tree(root)
        self._modules: dict[str, str] = {}
        self._survivors: set[str] = set()
        self._outcomes: dict[tuple[str, str], Outcome] = {}
        self._killers: dict[str, dict[str, int]] = {}
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not fresh:
            for line in file.read_text().splitlines():
                record = json.loads(line)
                outcome = Outcome(**record["outcome"])
                if outcome.killed_by is not None or record["tree"] == self._everything:
                    self._outcomes[record["mutant"], record["module"]] = outcome
                self._count(record["mutant"], outcome)
                if outcome.killed_by is None:
                    self._survivors.add(record["mutant"])
        self._file = file.open("w" if fresh else "a", buffering=1)

    def outcome(self, mutant: Mutant) -> Outcome | None:
        """What the tests said about it, or None if it must run."""
        return self._outcomes.get((mutant.key, self._module(mutant.path)))

    def add(self, mutant: Mutant, outcome: Outcome) -> None:
        """Keeps an outcome, also for the next run."""
        module = self._module(mutant.path)
        self._outcomes[mutant.key, module] = outcome
        self._count(mutant.key, outcome)
        record = {"mutant": mutant.key, "module": module, "tree": self._everything}
        print(json.dumps(record | {"outcome": asdict(outcome)}), file=self._file)

    def survived_before(self, mutant: Mutant) -> bool:
        """Whether it survived a run of another tree; such mutants take longest."""
        return mutant.key in self._survivors

    def likely_tests(self, mutant: Mutant, most: int) -> list[str]:
        """Tests that killed other mutants of the function, then of the module, best first."""
        tests: dict[str, None] = {}
        for place in (mutant.key.partition(": ")[0], mutant.path):
            counts = self._killers.get(place, {})
            best = sorted(counts, key=lambda test: -counts[test])
            tests |= dict.fromkeys(best[:most])
        return list(tests)

    def _count(self, key: str, outcome: Outcome) -> None:
        if outcome.killed_by is not None:
            place = key.partition(": ")[0]
            for name in (place, place.partition("::")[0]):
                counts = self._killers.setdefault(name, {})
                counts[outcome.killed_by] = counts.get(outcome.killed_by, 0) + 1

    def _module(self, path: str) -> str:
        if path not in self._modules:
            self._modules[path] = _digest(self._root, [self._root / path])
        return self._modules[path]


def digest_of_tree(root: Path) -> str:
    """Of all of xlapipe and its tests, data of the tests not included."""
    return _digest(root, [*sorted((root / "xlapipe").rglob("*.py")), *_test_files(root)])


def reading_tests(root: Path) -> list[Path]:
    """Test files of the rooms of xlapipe and of the models that compile nothing."""
    rooms = [path.name for path in (root / "xlapipe").iterdir() if path.is_dir()]
    files = [path for room in (*rooms, "models") for path in root.glob(f"tests/{room}/test_*.py")]
    return sorted(path for path in files if "pytest.mark.jax" not in path.read_text("utf-8"))


def _test_files(root: Path) -> list[Path]:
    folders = {path.parent for path in reading_tests(root)} | {root / "tests/shared"}
    helpers = {path for folder in folders for path in folder.glob("*.py")}
    return [root / "tests/conftest.py", *sorted(helpers)]


def _digest(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
