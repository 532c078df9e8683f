"""Damaged JSON of a dump: every command ends with a plan or with one error, never a traceback."""

import copy
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.dumps import ROOT
from xlapipe.cli import main
from xlapipe.errors import XlapipeError
from xlapipe.time.predict.calibration import parse_calibration

DUMP = ROOT / f"hlo_dumps/spectral-diffusion/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"
CALIBRATIONS = ROOT / "xlapipe/time/predict/calibrations"
FILES = ("manifest.json", "time_record.json")
COMMANDS = (("show", "--time"), ("show", "--json"), ("check",), ("report", "--text"))
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, -0.5, 1e308, 2**63, 10**40, "", "2", "\x1b[2J", "\ud800",
    "../../etc/passwd", "a" * 5000, [], {}, [[]], {"": ""}, [None], ["a", 1], {"a": {"b": []}},
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def damaged(original: Any, chance: random.Random) -> Any:
    """`original` with one to three values replaced, removed, repeated or moved."""
    value = json.loads(json.dumps(original))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        path = chance.choice(list(places(value)))
        if not path:
            return copy.deepcopy(chance.choice(VALUES))
        parent = value
        for step in path[:-1]:
            parent = parent[step]
        action = chance.randrange(4)
        if action == 0:
            del parent[path[-1]]
        elif action == 1 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
        elif action == 2 and isinstance(parent, dict):
            parent[chance.choice(("", "\n", "name", "size_bytes"))] = parent.pop(path[-1])
        else:
            parent[path[-1]] = copy.deepcopy(chance.choice(VALUES))
    return value


def results(folder: Path, seeds: range, capsys: pytest.CaptureFixture[str]) -> Counter[str]:
    """How the commands ended, by file and exit code."""
    counts: Counter[str] = Counter()
    dump = Path(shutil.copytree(DUMP, folder / "dump"))
    originals = {name: (dump / name).read_text() for name in FILES}
    for seed in seeds:
        chance = random.Random(seed)
        name = chance.choice(FILES)
        content = json.dumps(damaged(json.loads(originals[name]), chance))
        (dump / name).write_text(content)
        code = main([*chance.choice(COMMANDS), str(dump)])
        printed = capsys.readouterr()
        assert code in (0, 1, 2), seed
        if code == 2:
            assert printed.err.startswith("xlapipe: error: "), seed
            assert printed.err.count("\n") == 1, (seed, printed.err)
        counts[f"{name}: exit code {code}"] += 1
        (dump / name).write_text(originals[name])
    return counts


def test_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = results(tmp_path, range(120), capsys)
    assert counts["manifest.json: exit code 2"] > 10
    assert counts["time_record.json: exit code 2"] > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(6))
def test_three_thousand(part: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = results(tmp_path, range(500 * (part + 1), 500 * (part + 2)), capsys)
    with capsys.disabled():
        print(dict(counts))
    assert sum(counts.values()) >= 500


def test_calibrations() -> None:
    """A line that is damaged is named; no other error leaves the reader."""
    path = sorted(CALIBRATIONS.glob("*.jsonl"))[0]
    lines = path.read_text().splitlines()[:40]
    refused = 0
    for seed in range(300):
        chance = random.Random(seed)
        number = chance.randrange(len(lines))
        changed = [*lines]
        changed[number] = json.dumps(damaged(json.loads(lines[number]), chance))
        try:
            parse_calibration("\n".join(changed), where="file")
        except XlapipeError as error:
            refused += 1
            assert "file" in str(error)
    assert refused > 100
