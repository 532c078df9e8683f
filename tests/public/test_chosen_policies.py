"""The code that `xlapipe choose` prints for Equinox, pasted into the step, is what was compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.public.compiled_steps import PackagesMissingError, install_packages

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1200)]
STEPS = Path(__file__).parent / "choose_equinox.py"


def rows(folder: Path, packages: Path, workload: str, *options: str) -> list[dict[str, Any]]:
    """What `xlapipe choose --json` prints, in a folder, with the packages."""
    done = subprocess.run(
        [sys.executable, "-m", "xlapipe.cli", "choose", workload, "--json", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


@pytest.mark.parametrize(
    ("arguments", "printed", "before", "after"),
    [
        (
            "",
            "eqx.filter_value_and_grad(eqx.filter_checkpoint(…, policy=policy), …)",
            "eqx.filter_value_and_grad(loss)",
            "eqx.filter_value_and_grad(eqx.filter_checkpoint(loss, policy=policy))",
        ),
        (
            "scan=True",
            "scan over the body jax.checkpoint(body, policy=policy, prevent_cse=False)",
            "jax.lax.scan(body,",
            "jax.lax.scan(jax.checkpoint(body, policy=policy, prevent_cse=False),",
        ),
    ],
)
def test_the_pasted_code_compiles_to_the_promised_plan(
    arguments: str, printed: str, before: str, after: str, tmp_path: Path
) -> None:
    try:
        packages = install_packages()
    except PackagesMissingError as error:
        pytest.skip(f"the package index does not give the projects: {error}")
    source = STEPS.read_text(encoding="utf-8")
    assert source.count(before) == 1
    (tmp_path / STEPS.name).write_text(source, encoding="utf-8")
    options = ["--remat", "--compiles", "3"]
    found = rows(tmp_path, packages, f"{STEPS.stem}:workload({arguments})", *options)
    changed = [row for row in found if row["code"]]
    assert len(changed) == 2 and any("KEPT" in row["code"] for row in changed)
    for number, row in enumerate(changed):
        assert printed in row["code"]
        docstring, imports, rest = source.partition("\nimport equinox as eqx\n")
        pasted = f"{docstring}\n{row['code']}{imports}{rest}".replace(before, after)
        (tmp_path / f"pasted_{number}.py").write_text(pasted, encoding="utf-8")
        (again,) = rows(tmp_path, packages, f"pasted_{number}:workload({arguments})")
        for figure in ("total_bytes", "temp_bytes", "predicted_seconds"):
            assert again[figure] == row[figure], (row["change"], figure)
