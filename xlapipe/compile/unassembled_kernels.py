"""Kernels without machine code, which takes long, and changes nothing in a plan.

XLA looks for ptxas in the folder that an option names. There a script writes empty files. Where the
module's name is known, another option names its PTX, and XLA does not run LLVM.
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


_PTX_OPTION = "xla_gpu_ptx_file"


def without_assembler(folder: Path, folder_option: str, module: str = "") -> dict[str, str]:
    """XLA's options for compiles whose kernels are not loaded; the folder gets CUDA's files.

    `module` is the module's name in a dump, with its number; empty if it is not known.
    """
    machine, script = Machine.local(), folder / "bin" / "ptxas"
    ptxas, libdevice = machine.cuda_tool("ptxas"), machine.libdevice_folder()
    if ptxas is not None and libdevice is not None and not script.exists():
        script.parent.mkdir(parents=True)
        script.write_text(_SCRIPT.format(ptxas=shlex.quote(str(ptxas))), encoding="utf-8")
        script.chmod(0o755)
        (folder / "nvvm").symlink_to(libdevice.parent)
    if not module or not script.exists():
        return {folder_option: str(folder)}
    ptx = folder / f"{module}.ptx"
    ptx.write_text("// none\n", encoding="utf-8")
    return {folder_option: str(folder), _PTX_OPTION: str(ptx)}
