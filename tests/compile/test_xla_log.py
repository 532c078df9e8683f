"""What XLA logs of the values that it computes again."""

from pathlib import Path

from xlapipe.compile.xla_log import rematerialised_bytes

LINE = "I1128 19:05:45.169190   18452 hlo_rematerialization.cc:33"
KERNEL = f"""{LINE}76] Rematerialized 0 instructions in module fusion.1; 0 net instructions added
{LINE}86] Peak memory usage of module now 2MiB (2097152 bytes), was 2MiB (2097152 bytes)
"""
STEP = f"""{LINE}76] Rematerialized 13 instructions in module jit_step; 21 net instructions added
{LINE}86] Peak memory usage of module now 352MiB (369098880 bytes), was 576MiB (603979904 bytes)
"""


def test_bytes_are_of_the_module_that_computes_values_again(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    assert rematerialised_bytes(log) is None
    log.write_text(KERNEL)
    assert rematerialised_bytes(log) is None
    log.write_text(KERNEL + STEP)
    assert rematerialised_bytes(log) == (603979904, 369098880)
