"""Only `xlapipe.files` opens files that anybody may have made."""

import ast
from pathlib import Path

from tests.shared.dumps import ROOT

_OPENS = {"open", "read_bytes", "read_text", "write_bytes", "write_text"}
_UNPACKS = {"gzip", "lzma", "bz2", "zipfile", "tarfile"}
# Modules that open files of their own, by reason.
ALLOWED = {
    "the package's own data and modules": {
        "devices/targets/catalogue.py",
        "devices/targets/tpu_catalogue.py",
        "plans/usable_memory.py",
        "devices/targets/network.py",
        "dump/readers/hlo_proto/__init__.py",
        "search/choosing/forms.py",
        "time/collectives/collective_times.py",
        "time/predict/calibration.py",
        "time/predict/interval.py",
        "time/products/efficiency.py",
    },
    "files of installed packages, by importlib": {"differences/comparing/base_checkout.py"},
    "files of the child process, in a folder that only this user can write": {
        "compile/_fork_server.py",
        "compile/answered_tuning.py",
        "compile/capture.py",
        "compile/child.py",
        "compile/child_process.py",
        "compile/compile_cache.py",
        "compile/compile_program.py",
        "compile/failed_child.py",
        "compile/xla_log.py",
        "run/calibration/profiles.py",
        "run/calibration/time_programs.py",
        "run/run.py",
    },
    "the kernel's files, and libraries that are loaded": {
        "compile/xla_patches/stand_ins.py",
        "devices/environment/machine.py",
        "compile/xla_patches/loaded_library.py",
        "run/jax_distributed.py",
    },
    "standard streams that were closed": {"cli/output.py"},
}


def opening_calls(path: Path) -> list[int]:
    """Lines that open, read or write a file by its path."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id == "open":
            lines.append(node.lineno)
        if isinstance(function, ast.Attribute) and function.attr in _OPENS:
            module = function.value.id if isinstance(function.value, ast.Name) else ""
            if module not in ("os",):
                lines.append(node.lineno)
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id in _UNPACKS
            and function.attr in ("open", "decompress", "ZipFile")
        ):
            lines.append(node.lineno)
    return lines


def test_only_files_opens_files() -> None:
    allowed = set().union(*ALLOWED.values())
    package = ROOT / "xlapipe"
    opening = {
        str(path.relative_to(package)): lines
        for path in sorted(package.rglob("*.py"))
        if path.parent.name != "files" and (lines := opening_calls(path))
    }
    assert {name: lines for name, lines in opening.items() if name not in allowed} == {}
    assert allowed - opening.keys() == set(), "no longer needed"
