"""The table of versions in the documentation is that of requirements/."""

from tests.conftest import GOLDEN_JAXLIB
from tests.versions import PAGE, pinned, table, written
from xlapipe.compile.doctor import OLDEST_JAX
from xlapipe.time.predicted_locks.known_results import TRITON_COMMITS


def test_the_table_of_versions_is_written() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert table() in page
    assert written(page) == page
    assert written(page.replace("| jax ", "| old jax ")) == page


def test_the_goldens_jax_and_all_known_jaxlibs_are_pinned() -> None:
    versions = pinned()
    assert versions[0] == OLDEST_JAX
    assert {GOLDEN_JAXLIB, *TRITON_COMMITS} <= set(versions)
