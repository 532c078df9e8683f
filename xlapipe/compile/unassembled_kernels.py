"""Kernels that are not assembled: ptxas takes a third of a compile, and changes nothing in a plan.

XLA looks for ptxas in the folder that an option names. There a script writes empty files.
"""

import shlex
from pathlib import Path

from xlapipe.devices.environment.machine import Machine

# XLA also asks for its version, and for the newest version of PTX that it reads.
_SCRIPT = """#!/bin/sh
case "$*" in *--version* | *--input-as-string*) exec {ptxas} "$@" ;; esac
while [ $# -gt 1 ]; do
  if [ "$1" = -o ]; then : > "$2"; fi
  shift
done
"""


def without_assembler(folder: Path) -> Path:
    """`folder`, with CUDA's files for compiles whose kernels are not loaded."""
    machine, script = Machine.local(), folder / "bin" / "ptxas"
    ptxas, libdevice = machine.cuda_tool("ptxas"), machine.libdevice_folder()
    if ptxas is not None and libdevice is not None and not script.exists():
        script.parent.mkdir(parents=True)
        script.write_text(_SCRIPT.format(ptxas=shlex.quote(str(ptxas))), encoding="utf-8")
        script.chmod(0o755)
        (folder / "nvvm").symlink_to(libdevice.parent)
    return folder
