"""A commit of the user's repository in a temporary git worktree, without touching their tree."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.errors import XlapipeError
from xlapipe.plans.wording import counted, listed

# Files of which a change means that the base's packages may be others.
_LOCKS = (
    *("requirements*.txt", "requirements/*", "pylock*.toml", "uv.lock", "poetry.lock", "pdm.lock"),
    *("Pipfile.lock", "pixi.lock", "conda-lock.yml", "environment.yml"),
)
# Set by git for its hooks; they would name another index or folder than those of the worktree.
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")


@dataclass(frozen=True)
class BaseCheckout:
    """A checked-out commit.

    Attributes:
      ref, commit: what the user named, and its full digest.
      top: root of the user's repository; `root`: that of the worktree.
      folder: the current folder's counterpart in the worktree.
      import_paths: folders of the worktree whose counterparts are installed in this environment.
      notes: what to know before reading a comparison with the current folder.
    """

    ref: str
    commit: str
    top: Path
    root: Path
    folder: Path
    import_paths: tuple[Path, ...]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """For people: `main (1a2b3c4d)`."""
        short = self.commit[:8]
        return short if self.commit.startswith(self.ref) else f"{self.ref} ({short})"


@contextmanager
def base_checkout(ref: str) -> Iterator[BaseCheckout]:
    """Checks out `ref` of the current folder's repository until the end of the block."""
    here = Path.cwd().resolve()
    top = Path(_git(here, "rev-parse", "--show-toplevel"))
    commit = _commit(top, ref)
    with scratch_folder("base-") as scratch:
        root = scratch / "worktree"
        try:
            # Hooks are the user's programs, e.g. to install packages.
            _git(
                top,
                *("-c", f"core.hooksPath={os.devnull}"),
                *("worktree", "add", "--quiet", "--detach", str(root), commit),
            )
            notes = tuple(_notes(top, commit, ref))
            folder = root / here.relative_to(top)
            if not folder.is_dir():
                raise XlapipeError(
                    f"--base {ref}: has no folder {here.relative_to(top)}, which is the current "
                    "one; fix: run in a folder that both commits have"
                )
            paths = tuple(_import_paths(top, root))
            yield BaseCheckout(ref, commit, top, root, folder, paths, notes)
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", "--force", str(root)],
                cwd=top,
                env=_environment(),
                capture_output=True,
                check=False,
            )


def _commit(top: Path, ref: str) -> str:
    try:
        return _git(
            top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"
        )
    except XlapipeError:
        pass
    if _git(top, "rev-parse", "--is-shallow-repository") == "true":
        raise XlapipeError(
            f"--base {ref}: this clone is shallow and lacks that commit; fix: git fetch --depth=1 "
            f"origin {ref}, or fetch-depth: 0 of actions/checkout"
        )
    raise XlapipeError(
        f"--base {ref}: is not a commit of this repository; fix: git fetch origin, and name a "
        "branch (origin/main), a tag or a commit"
    )


def _notes(top: Path, commit: str, ref: str) -> Iterator[str]:
    changed = _git(top, "status", "--porcelain", "--ignore-submodules=dirty").splitlines()
    if changed:
        yield (
            f"{counted(len(changed), 'file')} of the working tree "
            f"{'is' if len(changed) == 1 else 'are'} not committed "
            f"({listed([line[3:] for line in changed], 3)}), and part of what is compared; to "
            "leave them out: git stash --include-untracked"
        )
    behind = _git(top, "rev-list", "--count", f"HEAD..{commit}")
    if behind != "0" and _git(top, "rev-parse", "--is-shallow-repository") == "false":
        yield (
            f"{ref} has {counted(int(behind), 'commit')} that HEAD lacks, whose changes are shown "
            f"reversed; to leave them out: --base $(git merge-base HEAD {ref})"
        )
    if (top / ".gitmodules").exists():
        yield (
            f"submodules are not checked out in {ref}, so that workloads which import from them do "
            "not compile there; to compare them: `xlapipe dump` both commits, and diff"
        )
    locks = _git(top, "diff", "--name-only", commit, "--", *_LOCKS).splitlines()
    if locks:
        yield (
            f"{listed(locks, 3)} {'differs' if len(locks) == 1 else 'differ'}, and both sides are "
            "compiled with the packages of this environment, so that the table lacks what other "
            "packages change; to include it: `xlapipe dump` in an environment of each, and diff"
        )


def _import_paths(top: Path, root: Path) -> Iterator[Path]:
    """The worktree's counterparts of folders that this environment imports from the user's tree."""
    folders = [Path(entry) for entry in sys.path if entry]
    for installed in distributions():
        stated = json.loads(installed.read_text("direct_url.json") or "{}")
        if "dir_info" in stated:  # with --editable or without
            project = Path(unquote(urlsplit(stated["url"]).path))
            folders += [project / "src", project]
    for folder in dict.fromkeys(folders):
        if folder.is_relative_to(top) and not {"site-packages", "dist-packages"} & {*folder.parts}:
            counterpart = root / folder.relative_to(top)
            if counterpart.is_dir():
                yield counterpart


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise XlapipeError(
            "--base needs git, which is not installed; fix: install it, or compare two dumps with "
            "`xlapipe diff BEFORE AFTER`"
        ) from None
    if done.returncode == 0:
        return done.stdout.decode(errors="surrogateescape").strip("\n")
    message = done.stderr.decode(errors="replace").strip()
    if "not a git repository" in message:
        raise XlapipeError(
            f"{folder}: is not in a git repository, which --base takes a commit of; fix: run in "
            "the repository, or compare two dumps with `xlapipe diff BEFORE AFTER`"
        )
    last = message.splitlines()[-1] if message else f"exit code {done.returncode}"
    raise XlapipeError(f"git {arguments[0]} fails: {last:.300}; fix: see `git {arguments[0]}`")
