"""`xlapipe diff --base`: the action's script on ten kinds of change, and messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_pull_request import run, scripts
from xlapipe.cli import main
from xlapipe.differences.comparing.base_checkout import base_checkout
from xlapipe.errors import XlapipeError
from xlapipe.report.changed_workloads import broken_limits, parse_limits

GIT = (
    *("git", "-c", "user.name=a", "-c", "user.email=a@b.c"),
    *("-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main"),
)
HEAD = """import jax
import jax.numpy as jnp
from xlapipe import Workload
from xlapipe.expect import Donated

def of(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)
"""
RESIDUAL = """
def step(x, w):
    return x + jnp.tanh(x @ w)

half = jnp.bfloat16
w = Workload(name="NAME", fn=step, args=(of(4096, 64, dtype=half), of(64, 64, dtype=half)))
"""
REMAT = """
@jax.checkpoint
def layer(x, w):
    return jnp.sin(jnp.sin(jnp.sin(x @ w) @ w) @ w)

def loss(w, x):
    for _ in range(4):
        x = layer(x, w)
    return x.sum()

w = Workload(name="NAME", fn=jax.grad(loss), args=(of(64, 64), of(4096, 64)))
"""
CACHE = """
def step(cache, new, i):
    return cache.at[i].set(new), new.sum()

w = Workload(
    name="NAME",
    fn=step,
    args=(of(4096, 64), of(64), of(dtype=jnp.int32)),
    donate_argnums=0,
    expectations=[Donated("cache")],
)
"""
SHARDED = """
from jax.sharding import PartitionSpec as P

w = Workload(
    name="NAME",
    fn=lambda x, w: jnp.tanh(x @ w),
    args=(of(4096, 64), of(64, 64)),
    mesh={"data": 2},
    in_specs=(P("data"), P()),
    out_specs=P("data"),
)
"""
OPTAX = """
import optax
optimizer = optax.sgd(0.1)
weight = of(128, 128)
state = jax.eval_shape(optimizer.init, weight)

def step(w, state, x):
    gradient = jax.grad(lambda w: (x @ w).sum())(w)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(w, updates), state

w = Workload(name="NAME", fn=step, args=(weight, state, of(8, 128)))
"""
LOOP = "    for _ in range(4):\n        x = layer(x, w)\n    return x"
# The module of each workload before, and what is replaced in it by what.
CHANGES = {
    "batch": (RESIDUAL, "of(4096", "of(8192"),
    "donation": (CACHE, "    donate_argnums=0,\n", ""),
    "moved": (RESIDUAL, "\ndef step", "\n# A comment.\n\n\ndef step"),
    "optimizer": (OPTAX, "optax.sgd(0.1)", "optax.adam(0.1)"),
    "refactored": (
        *(REMAT, f"{LOOP}.sum()"),
        f"    return repeated(x, w).sum()\n\ndef repeated(x, w):\n{LOOP}",
    ),
    "remat": (REMAT, "@jax.checkpoint\n", ""),
    "residual": (RESIDUAL, "return x + ", "return x.astype(jnp.float32) + "),
    "rewritten": (
        *(CACHE, "cache.at[i].set(new)"),
        "jnp.where((jnp.arange(4096) == i)[:, None], new, cache)",
    ),
    "sharding": (SHARDED, 'out_specs=P("data")', "out_specs=P()"),
}
UNCHANGED = {"moved", "refactored"}


def git(folder: Path, *arguments: str) -> str:
    return run([*GIT, *arguments], folder).strip()


def committed(folder: Path, message: str) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)
    return git(folder, "rev-parse", "HEAD")


def write_project(folder: Path, *, after: bool) -> None:
    names = {name: name for name in CHANGES}
    names |= {"added": "moved", "new-name": "batch"} if after else {"old-name": "batch"}
    lines = [f'{name} = "{module}_step:w"' for name, module in names.items()]
    table = "\n".join(["[tool.xlapipe.workloads]", *lines, ""])
    (folder / "pyproject.toml").write_text(table)
    (folder / "requirements.txt").write_text(f"jax==0.1{1 + after}\n")
    for name, (text, old, new) in CHANGES.items():
        assert text.count(old) == 1, name
        changed = text.replace(old, new) if after else text
        (folder / f"{name}_step.py").write_text(HEAD + changed.replace("NAME", name))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "scratch").mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.jax
def test_the_action_gives_each_change_its_verdict(repository: Path, tmp_path: Path) -> None:
    write_project(repository, after=False)
    base = committed(repository, "before")
    write_project(repository, after=True)
    committed(repository, "after")
    printed = run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", scripts()["Compare plans"]],
        repository,
        ACTION_PATH="",
        BASE=base,
        DUMPS="",
        FAIL_ON="time=5%,memory=20%,donation",
        LINK="https://x.org/report",
        TARGET="h100_sxm",
        WORKLOADS="",
        RUNNER_TEMP=str(tmp_path),
        GITHUB_STEP_SUMMARY=str(tmp_path / "summary"),
        GITHUB_OUTPUT=str(tmp_path / "output"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert not printed
    full = tmp_path / "xlapipe-plans"
    compared = json.loads((full / "changes.json").read_text())
    changed = {dump["name"]: dump for dump in compared["changed"]}
    assert changed.keys() == {*CHANGES, "added", "new-name", "old-name"} - UNCHANGED
    assert compared["workloads"] == len(CHANGES) + 3
    verdicts = [changed[name]["verdict"] for name in ("added", "new-name", "old-name")]
    assert verdicts == ["new", "new", "removed"]
    (locks,) = compared["notes"]
    assert locks.startswith("requirements.txt differs, and both sides are compiled with the")

    def grew(name: str, key: str) -> float:
        dump = changed[name]
        return dump["after"][key] / dump["before"][key]  # type: ignore[no-any-return]

    assert grew("batch", "total_bytes") > 1.9
    assert grew("batch", "argument_bytes") > 1.9
    assert changed["donation"]["lost_donations"] == ["cache"]
    assert changed["donation"]["after"]["broken"] == ["Donated(name='cache')"]
    assert changed["rewritten"]["lost_donations"] == ["cache"]
    assert grew("optimizer", "argument_bytes") > 2.5
    assert grew("remat", "temp_bytes") > 1.5
    assert grew("residual", "total_bytes") > 1.2
    assert grew("sharding", "total_bytes") > 1.2
    assert changed["sharding"]["after"]["wire_bytes"] > changed["sharding"]["before"]["wire_bytes"]
    assert all(3 >= len(changed[name]["causes"]["bytes"]) > 0 for name in ("batch", "residual"))
    broken = {line.partition(":")[0] for line in compared["broken"]}
    assert {"batch", "donation", "rewritten", "optimizer", "remat"} <= broken
    assert not broken & (UNCHANGED | {"added", "new-name"})

    # The table has the figures of `diff`, of the dumps that are kept.
    sides = [str(full / side / "remat") for side in ("before", "after")]
    difference = json.loads(run(["xlapipe", "diff", *sides, "--json"], repository, rc=1))
    remat = changed["remat"]
    for side, of in (("before", "a"), ("after", "b")):
        totals = difference[of]["totals"]
        assert remat[side]["total_bytes"] == totals["total_allocation_bytes"]
        step = difference["time"][0][of]
        assert remat[side]["step_seconds"] == step["predicted_seconds"]
    assert (full / "remat.html").read_text().startswith("<!doctype html>")

    summary = (tmp_path / "summary").read_text()
    assert summary.startswith("<!-- xlapipe plans -->\n**XLA plans:** 10 of 12 workloads changed")
    assert "code=1" in (tmp_path / "output").read_text().splitlines()
    assert "[Full report](https://x.org/report)" in summary
    assert git(repository, "worktree", "list").count("\n") == 0
    assert not git(repository, "status", "--porcelain", "--untracked-files=no")


def test_each_trap_has_a_message(repository: Path, tmp_path: Path) -> None:
    (repository / "step.py").write_text("")
    first = committed(repository, "first")
    (repository / "requirements.txt").write_text("jax\n")
    committed(repository, "second")
    (repository / "step.py").write_text("w = 1\n")
    with base_checkout(first[:8]) as base:
        assert (base.folder / "step.py").read_text() == ""
        assert base.name == first[:8]
        uncommitted, locks = base.notes
    assert not base.root.exists() and not (repository / ".git/worktrees").exists()
    assert "1 file of the working tree is not committed (step.py)" in uncommitted
    assert "requirements.txt differs" in locks and "an environment of each" in locks
    with pytest.raises(KeyboardInterrupt), base_checkout(first) as base:
        raise KeyboardInterrupt
    assert not base.root.exists() and not (repository / ".git/worktrees").exists()

    git(repository, "checkout", "-q", "--force", first)
    with base_checkout("main") as base:
        assert "main has 1 commit that HEAD lacks" in base.notes[0]
    with pytest.raises(XlapipeError, match=r"is not a commit.*fix: git fetch origin"):
        base_checkout("no-such").__enter__()
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", "shallow")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path / "shallow")
        with pytest.raises(XlapipeError, match=r"clone is shallow.*fix: git fetch --depth=1"):
            base_checkout("main~1").__enter__()
        patch.chdir(tmp_path / "scratch")
        with pytest.raises(XlapipeError, match=r"not in a git repository.*fix: run in the repo"):
            base_checkout("main").__enter__()
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(XlapipeError, match="needs git, which is not installed; fix: install"):
            base_checkout("main").__enter__()


def test_what_the_environment_imports_from_the_tree_comes_from_the_base(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (repository / "src", repository / ".venv/lib/site-packages", tmp_path / "other"):
        folder.mkdir(parents=True)
        (folder / "module.py").touch()
        monkeypatch.syspath_prepend(folder)
    with base_checkout(committed(repository, "first")) as base:
        assert base.import_paths == (base.root / "src",)


@pytest.mark.jax
def test_a_base_that_does_not_import_is_said(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "step.py").write_text("import no_such_package\n")
    base = committed(repository, "before")
    text = RESIDUAL.replace("NAME", "residual")
    (repository / "step.py").write_text(HEAD + text)
    assert main(["diff", "--base", base, "step:w"]) == 0
    printed = capsys.readouterr().out
    assert "step:w: new" in printed
    assert f"{base[:8]} does not compile step:w" in printed and "no_such_package" in printed


def figures(total: int, seconds: float, **others: Any) -> dict[str, Any]:
    return {"total_bytes": total, "step_seconds": seconds, "wire_bytes": 0, "broken": []} | others


def test_limits_name_what_broke_and_errors_never_do() -> None:
    dump: dict[str, Any] = {
        "name": "w",
        "before": figures(100, 1.0, recompiles=0),
        "after": figures(102, 1.1, recompiles=1, broken=["Donated('cache')"]),
        "time_within_error": False,
        "lost_donations": ["cache"],
        "causes": {"bytes": ["+2 B  temp"], "time": ["least time +0.1 s (longer): step.py:3"]},
    }
    every = parse_limits("time=3%,memory=1,donation,recompiles,expectations,collectives=0%")
    lines = broken_limits(every, [dump])
    assert len(lines) == 5
    assert lines[0].startswith("w: time +10.0%, more than 3 %; first cause: least time +0.1 s")
    assert "step.py:3" in lines[0]
    assert broken_limits(parse_limits("time=20%,memory=2%"), [dump]) == []
    within = {**dump, "time_within_error": True}
    assert broken_limits(parse_limits("time=3%"), [within]) == []
    assert broken_limits(every, [{**dump, "before": None}]) == []
    for wrong in ("speed=3%", "donation=3", "time", "time=x"):
        with pytest.raises(XlapipeError, match=f"--fail-on {wrong}.*fix: write e.g. time=3%"):
            parse_limits(wrong)
