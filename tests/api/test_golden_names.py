"""Each test has its own golden."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.dump.fuzz_readers import renew_digests
from xlapipe.api.testing.goldens import Goldens
from xlapipe.api.testing.session import name_of_test
from xlapipe.dump.dump import open_dump
from xlapipe.errors import XlapipeError

TESTS = (
    *("test_ä", "test_ö", "test_a", "test_A", "test_a[]", "test_a[a]", "TestX.test_a", "x.test_a"),
    *(f"test_p[{text}]" for text in ("a/b", "a-b", "a b", "A-B", "a_b", "a.b", "a.b.", "-a.b")),
    *(f"test_q[{text}]" for text in ("+1", "-1", "*1", "1", "1]", "[1", "long" * 60, "long" * 61)),
)


def test_no_two_tests_have_one_golden() -> None:
    """Goldens of `test_ä` and `test_ö`, or of the ids `a/b` and `a b`, overwrote each other."""
    names = [
        name_of_test(Path(file), test)
        for file in ("test_step.py", "test-step.py", "Test_step.py")
        for test in TESTS
    ]
    assert len({name.casefold() for name in names}) == len(names) == 3 * len(TESTS)
    assert max(map(len, names)) < 200
    assert name_of_test(Path("test_step.py"), "test_p[a-b]") == "test_step-test_p-a-b"


def test_tests_that_give_one_name_do_not_overwrite_a_golden(tmp_path: Path) -> None:
    made: dict[str, str] = {}
    (folder,) = (ROOT / "examples/plain_jax/hlo_dumps/decode").iterdir()
    dump = open_dump(folder)
    copied = Path(shutil.copytree(folder, tmp_path / "other"))
    (copied / "plan.txt").write_text((folder / "plan.txt").read_text() + "another line\n")
    renew_digests(copied)
    other = open_dump(copied)

    def goldens() -> Goldens:
        return Goldens(tmp_path, tmp_path, True, "pytest", lambda path, changes: None, made)

    assert goldens().matches(dump).holds
    assert goldens().matches(dump).holds, "two tests may have the same plan"
    with pytest.raises(XlapipeError, match=r"share the golden decode/.*fix: give each another"):
        goldens().matches(other)
