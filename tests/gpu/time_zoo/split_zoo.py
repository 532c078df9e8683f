"""Writes `halves.json`: which programs of the zoo a fit may see, decided by their names alone.

Within each family, programs are ordered by the SHA-256 of their names; every second one is for
evaluation only.
"""

import hashlib
import itertools
import json
from pathlib import Path

from programs import zoo_programs


def main() -> None:
    halves: dict[str, list[str]] = {"development": [], "evaluation": []}
    position = 0
    for _, names in itertools.groupby(zoo_programs(), key=lambda name: name.partition("/")[0]):
        for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
            halves["evaluation" if position % 2 else "development"].append(name)
            position += 1
    text = json.dumps({half: sorted(names) for half, names in halves.items()}, indent=1) + "\n"
    Path(__file__).with_name("halves.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
