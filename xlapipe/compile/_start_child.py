"""Starts the compiling child: `python -P _start_child.py JOB.json PARENT`. Never imported.

PARENT is the process id of the parent, with which the child ends.

The interpreter may be of another environment, in which xlapipe is not installed, or another version
of it: this xlapipe is imported, and its folder is at the end of the path, after everything that is
installed.
"""

import gc
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import xlapipe  # noqa: F401

    sys.path.append(sys.path.pop(0))
    from xlapipe.devices.environment.process_end import die_with_parent, leave

    die_with_parent(int(sys.argv[2]))
    # Tracing makes many objects that live to the end. By Python's default of 700 (2,000 from 3.13
    # on), looking for cycles among them took 13 to 18 % of a compile's CPU time, and freed nothing.
    gc.set_threshold(100_000)
    from xlapipe.compile.xla_patches.stand_ins import load_named_stand_ins

    load_named_stand_ins()  # before jax, which imports the plugins' modules
    from xlapipe.compile.child import main

    # What the user's module left running, or has registered to run at the end, is not waited for.
    leave(main(Path(sys.argv[1])))
