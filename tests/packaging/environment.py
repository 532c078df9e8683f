"""An environment that holds one wheel and what the wheel requires, and nothing else.

Packages are linked from the environment that runs the tests, so that no package index is needed.
The checkout is not on its path.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def site_packages(self) -> Path:
        version = sysconfig.get_python_version()
        return self.folder / "lib" / f"python{version}" / "site-packages"

    def run(self, *command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        """Runs a command of the environment in `folder`, as a user's shell would."""
        path = os.pathsep.join([str(self.bin), os.environ["PATH"]])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=folder,
            env={**kept, "PATH": path},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )


def environment_with(wheel: Path, extra: str, folder: Path) -> Environment:
    """Installs `wheel` with pip, and links what it and its extra require.

    Args:
      extra: of the wheel, e.g. `cuda`.
    """
    environment = Environment(folder)
    venv.create(folder, symlinks=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(environment.bin / "python"), "install"]
    subprocess.run([*pip, "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    for name in _required(environment, extra):
        _link(name, environment.site_packages)
    return environment


def requirements(environment: Environment, extra: str) -> list[Requirement]:
    """What the installed wheel requires, with an extra."""
    (metadata,) = environment.site_packages.glob("xlapipe-*.dist-info/METADATA")
    lines = metadata.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    required = [
        Requirement(line.removeprefix("Requires-Dist: "))
        for line in lines
        if line.startswith("Requires-Dist: ")
    ]
    return [requirement for requirement in required if _applies(requirement, extra)]


def required_by(package: str, extra: str) -> list[Requirement]:
    """What a package of the environment that runs the tests requires, with an extra."""
    required = [Requirement(line) for line in distribution(package).requires or ()]
    return [requirement for requirement in required if _applies(requirement, extra)]


def _required(environment: Environment, extra: str) -> set[str]:
    """Names of all packages that the wheel requires, directly or through another package."""
    pending = requirements(environment, extra)
    seen: set[tuple[str, str]] = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra_of_it in {"", *requirement.extras}:
            if (name, extra_of_it) not in seen:
                seen.add((name, extra_of_it))
                pending += required_by(name, extra_of_it)
    return {name for name, _ in seen}


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _link(name: str, site_packages: Path) -> None:
    """Links a package's files and folders; packages such as `nvidia` share a folder."""
    installed = distribution(name)
    tops = {path.parts[0] for path in installed.files or () if ".." not in path.parts}
    for top in tops - {"__pycache__", "bin"}:
        link = site_packages / top
        if not link.exists():
            link.symlink_to(Path(str(installed.locate_file(top))).resolve())
