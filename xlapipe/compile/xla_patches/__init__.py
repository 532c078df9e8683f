"""Changes made to XLA in the memory of the compiling child, so that a plan is that of the device.

No file is changed, and no other process: the child ends after its compile. A change is made only
where the library has the form that it expects; otherwise XLA stays as it is. `--without-xla-patch
NAME` leaves one out, and a dump's manifest lists those that were made.

cub-table (`cub_table.py`, by `loaded_library.py`)
  What: XLA's table of scratch sizes of CUB's sorts gets the sizes for the target and for the CUB of
    this jaxlib, and two checks that need a device return at once.
  Why: without sizes, XLA compiles its own sorts where it calls CUB on the device: another plan.
  Without it: the plan has XLA's own sorts, and lists them under missing memory.
  Not needed once: jaxlib's table has the version of CUB that jaxlib is built with, and XLA does not
    instantiate CUB's calls while it compiles without a device.

instruction-order (`client_order.py`)
  What: for a compile with an autotune lock, PJRT_Compile gets XLA's own module of the program with
    its instructions renumbered, where jax passes StableHLO.
  Why: for a device, XLA numbers instructions in post-order, and without one as they were made.
    Fusions then differ in names and in the order of outputs, so the lock has no result for them.
  Without it: a plan whose fusions the lock does not name is labelled partly tuned.
  Not needed once: XLA numbers instructions alike in both compiles, or jax passes HLO modules to
    compiles without a device.

stand-ins (`stand_ins.py`)
  What: on a machine without ROCm, libraries that report no device are loaded under the names of
    those with which jax's plugin for AMD GPUs is linked.
  Why: without them the plugin does not load, and no package index has them.
  Without it: compiles for AMD GPUs need ROCm's libraries.
  Not needed once: the plugin loads without ROCm, as that for CUDA does without CUDA's libraries.
"""

from enum import StrEnum


class XlaPatch(StrEnum):
    """The name of a change. The command line lists them, so this module imports nothing else."""

    CUB_TABLE = "cub-table"
    INSTRUCTION_ORDER = "instruction-order"
    STAND_INS = "stand-ins"
