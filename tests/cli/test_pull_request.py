"""The comment on a pull request, the action that writes it, and the pre-commit hook."""

import hashlib
import html
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.sample_records import predicted
from xlapipe.cli import main
from xlapipe.report.changed_dumps import (
    _HEADINGS,
    MOST_CHARACTERS,
    _within_error,
    changed_markdown,
)

ROOT = Path(__file__).resolve().parents[2]
STEP = f"step/h200-cublas-jax{GOLDEN_JAXLIB}"


@pytest.fixture
def folders(tmp_path: Path, goldens: Path) -> tuple[Path, Path]:
    """Before: a step without donation. After: with donation, and a new dump."""
    before, after = tmp_path / "before", tmp_path / "after"
    shutil.copytree(goldens / f"qwen3-step/h200-cublas-jax{GOLDEN_JAXLIB}", before / STEP)
    shutil.copytree(goldens / f"qwen3-step-donated/h200-cublas-jax{GOLDEN_JAXLIB}", after / STEP)
    new = goldens / f"fsdp-mlp/h200-1x2-cublas-jax{GOLDEN_JAXLIB}"
    shutil.copytree(new, after / "new" / new.name)
    return before, after


def test_the_comment_lists_totals_donation_and_traffic(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "--markdown", *map(str, folders), "--link", "https://x.org/report"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("<!-- xlapipe plans -->\n**XLA plans:** 2 changed.")
    row = next(line for line in text.splitlines() if line.startswith(f"| `{STEP}`"))
    assert "0 of 0 → 1 of 1" in row
    assert "932,848,228 → " in row
    assert "(new)" in text
    assert "[Full report](https://x.org/report)" in text
    assert main(["diff", "--markdown", *map(str, folders), "--json"]) == 0
    new, step = json.loads(capsys.readouterr().out)
    assert new["before"] is None
    assert new["after"]["wire_bytes"] > 0
    assert step["after"]["total_bytes"] < step["before"]["total_bytes"]
    assert step["changes"]


def test_equal_folders_have_no_change(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "--markdown", str(folders[1]), str(folders[1])]) == 0
    assert "no plan changed" in capsys.readouterr().out
    assert main(["diff", "--markdown", str(folders[0]), str(folders[0] / "empty")]) == 2


def test_equal_plans_of_other_hlo_are_a_change(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fusions that changed, in a plan whose memory did not."""
    edited = tmp_path / "edited"
    shutil.copytree(folders[1], edited)
    hlo, manifest = edited / STEP / "hlo.txt", edited / STEP / "manifest.json"
    before = hashlib.sha256(hlo.read_bytes()).hexdigest()
    hlo.write_text(hlo.read_text().replace(" add(", " subtract(", 1))
    after = hashlib.sha256(hlo.read_bytes()).hexdigest()
    manifest.write_text(manifest.read_text().replace(before, after))
    assert main(["diff", "--markdown", str(folders[1]), str(edited)]) == 0
    text = capsys.readouterr().out
    assert "**XLA plans:** 1 changed." in text and "predicted time" in text
    assert main(["diff", "--markdown", str(folders[1]), str(edited), "--json"]) == 0
    (dump,) = json.loads(capsys.readouterr().out)
    assert dump["before"]["total_bytes"] == dump["after"]["total_bytes"]
    assert dump["after"]["step_seconds"] > 0


def test_an_estimate_is_slower_only_outside_its_range() -> None:
    """As if certain, since spreads of kernels, of which the error is made, are not known."""
    old = replace(predicted(10e-6, 8e-6, 13e-6), is_estimate=True)
    new = replace(old, step_seconds=12e-6)
    assert _within_error(old, new) and not _within_error(old, replace(new, step_seconds=14e-6))
    assert not _within_error(*(replace(it, is_estimate=False) for it in (old, new)))


def test_text_of_dumps_is_not_live_and_the_rest_is_cut() -> None:
    hostile = "@octocat https://x.org [a](b) `<img src=x>`"
    figures = {**dict.fromkeys(_HEADINGS, 1), "step_seconds": 1e-3, "broken": [hostile]}
    causes = {"bytes": [hostile], "time": []}
    dump = {"name": hostile, "before": figures, "after": figures, "changes": [hostile] * 3}
    dump |= {"verdict": hostile, "causes": causes}
    text = changed_markdown([dump])
    assert text.count(f"- `` {hostile} ``") == 3
    assert f"<summary><code>{html.escape(f'{hostile}: {hostile}')}</code></summary>" in text
    long = changed_markdown([dump] * 400, link="https://x.org/all")
    assert len(long) <= MOST_CHARACTERS
    assert "Cut at 60,000 characters; the full report has all." in long
    assert long.count("<details>") == long.count("</details>") > 0
    assert long.endswith("[Full report](https://x.org/all)\n")


def scripts() -> dict[str, str]:
    """The shell script of each step of the action, by its name."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: make setup")
    action: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return {step["name"]: step["run"] for step in action["runs"]["steps"] if "run" in step}


def run(command: list[str], cwd: Path, rc: int = 0, **environment: str) -> str:
    tools = Path(sys.executable).parent
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == rc, done.stderr
    return done.stdout


def test_the_action_compares_with_the_base_commit(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    shutil.copytree(folders[0], repository / "hlo_dumps")
    run([*git, "init", "-q"], repository)
    run([*git, "add", "-A", "-f"], repository)
    run([*git, "commit", "-qm", "before"], repository)
    base = run(["git", "rev-parse", "HEAD"], repository).strip()
    shutil.rmtree(repository / "hlo_dumps")
    shutil.copytree(folders[1], repository / "hlo_dumps")

    files = {name: tmp_path / name for name in ("summary", "output")}
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
    run(
        [*bash, scripts()["Compare plans"]],
        repository,
        BASE=base,
        DUMPS="hlo_dumps",
        LINK="",
        RUNNER_TEMP=str(tmp_path),
        GITHUB_STEP_SUMMARY=str(files["summary"]),
        GITHUB_SERVER_URL="https://github.com",
        GITHUB_REPOSITORY="a/b",
        GITHUB_RUN_ID="9",
        GITHUB_OUTPUT=str(files["output"]),
    )
    assert "2 changed" in files["summary"].read_text()
    assert "[Full report](https://github.com/a/b/actions/runs/9)" in files["summary"].read_text()
    assert len(json.loads((tmp_path / "xlapipe-plans/changes.json").read_text())) == 2
    markdown = Path(files["output"].read_text().splitlines()[0].removeprefix("markdown="))
    assert markdown.read_text() == files["summary"].read_text()

    # The action's own comment of an earlier run is replaced, found by its author and first line.
    calls = tmp_path / "calls"
    marker = "<!-- xlapipe plans -->\\n"
    comments = [
        {"id": 76, "user": {"login": "mallory"}, "body": marker},
        {"id": 77, "user": {"login": "github-actions[bot]"}, "body": marker},
    ]
    (tmp_path / "comments.json").write_text(json.dumps(comments))
    gh = tmp_path / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text(
        f'#!/bin/bash\necho "$@" >> {calls}\n'
        f'case "$*" in *--jq*) jq -r "${{@: -1}}" {tmp_path}/comments.json;; esac\n'
    )
    gh.chmod(0o755)
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    run(
        [*bash, f"PATH={gh.parent}:$PATH\n" + scripts()["Comment"]],
        repository,
        GH_TOKEN="t",
        AUTHOR="github-actions[bot]",
        NUMBER="5",
        MARKDOWN=str(markdown),
        GITHUB_REPOSITORY="a/b",
    )
    last = calls.read_text().splitlines()[-1]
    assert last == f"api --method PATCH repos/a/b/issues/comments/77 -F body=@{markdown}"


def test_the_hook_checks_the_folders_of_changed_manifests(folders: tuple[Path, Path]) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: make setup")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    command = f"{hook['entry']} {STEP}/manifest.json"
    printed = run(["bash", "-c", command], folders[1])
    assert STEP in printed
