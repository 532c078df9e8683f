"""One program as Inductor and as XLA compiled it, side by side."""

import json
from pathlib import Path

import pytest

from tests.inductor import written
from tests.inductor.test_wrapper import folder_of
from xlapipe.cli import main
from xlapipe.differences.compilers import CompilerComparison, compare_compilers
from xlapipe.differences.compilers.compiler_side import read_array
from xlapipe.differences.compilers.tensor_leaves import Match, TensorLeaf, match_leaves
from xlapipe.inductor.open_path import open_path
from xlapipe.inductor.reader import read_inductor


def leaf(name: str, *shape: int, dtype: str = "bfloat16") -> TensorLeaf:
    return TensorLeaf(name, dtype, shape, 2)


@pytest.fixture(scope="module")
def spectral(goldens: Path) -> Path:
    """XLA's dump of the program that `written.SPECTRAL` is."""
    return sorted((goldens / "spectral-diffusion").glob("h200-cublas-*"))[0]


@pytest.fixture
def comparison(tmp_path: Path, spectral: Path) -> CompilerComparison:
    path = tmp_path / "output_code.py"
    path.write_text(written.SPECTRAL)
    return compare_compilers(read_inductor(path), open_path(spectral))


def test_leaves_match_by_dtype_shape_and_order() -> None:
    ours = [leaf("a", 4, 8), leaf("w", 8, 4), leaf("b", 4, 8), leaf("m", 3, dtype="bool")]
    theirs = [leaf("x", 4, 8), leaf("y", 4, 8), leaf("k", 4, 8), leaf("n", 3, dtype="int8")]
    matched = match_leaves(ours, theirs)
    found = [(p.inductor and p.inductor.name, p.xla and p.xla.name, p.match) for p in matched.pairs]
    assert found == [
        ("a", "x", Match.SAME),
        ("w", "k", Match.TRANSPOSED),
        ("b", "y", Match.SAME),
        ("m", "n", Match.OTHER_DTYPE),
    ]
    assert matched.same_order
    assert not matched.same
    assert matched.matched == 2


def test_what_has_no_partner_is_listed() -> None:
    matched = match_leaves([leaf("a", 1), leaf("b", 2)], [leaf("y", 2), leaf("z", 3)])
    assert [pair.match for pair in matched.pairs] == [
        Match.ONLY_INDUCTOR,
        Match.SAME,
        Match.ONLY_XLA,
    ]


def test_another_order_is_said() -> None:
    matched = match_leaves([leaf("a", 1), leaf("b", 2)], [leaf("y", 2), leaf("x", 1)])
    assert matched.same
    assert not matched.same_order


def test_the_type_of_a_leaf_as_text() -> None:
    assert TensorLeaf("a", "int8", (2, 3), 6).type_text == "int8[2, 3]"
    assert TensorLeaf("a", None, (2,), 6).type_text == "?[2]"
    assert TensorLeaf("a", None, None, 6).type_text == "unknown"


@pytest.mark.parametrize(
    ("hlo", "torch"),
    [
        ("pred", "bool"),
        ("s8", "int8"),
        ("s16", "int16"),
        ("s32", "int32"),
        ("s64", "int64"),
        ("u8", "uint8"),
        ("f32", "float32"),
        ("f16", "float16"),
        ("c64", "complex64"),
    ],
)
def test_element_types_of_both_compilers(hlo: str, torch: str) -> None:
    assert read_array(f"{hlo}[2,?]{{1,0}}") == (torch, (2, "?"))


def test_arrays_of_both_compilers() -> None:
    assert read_array("s32[4]{0}") == read_array("i32[4]") == ("int32", (4,))
    assert read_array("f8e4m3fn[2,3]{1,0}") == ("float8_e4m3fn", (2, 3))
    assert read_array("?") is None


def test_the_same_program_matches(comparison: CompilerComparison) -> None:
    assert comparison.same_interface
    assert comparison.arguments.same_order
    assert [pair.xla.name for pair in comparison.arguments.pairs if pair.xla is not None] == [
        "x",
        "mass",
        "evals",
        "evecs",
        "time",
    ]
    # Inductor holds the output over its operand: 1,048,576 + 65,536 B.
    assert comparison.inductor.own_peak_bytes == 2048 * 256 * 2 + 128 * 256 * 2
    # XLA reserves both outputs and a workspace of cuBLASLt.
    assert comparison.xla.own_peak_bytes is not None
    assert comparison.xla.own_peak_bytes > comparison.inductor.own_peak_bytes
    assert comparison.inductor.argument_bytes == comparison.xla.argument_bytes == 1_577_728
    assert comparison.inductor.products == {"cublas": 2}
    assert sum(comparison.xla.products.values()) == 2


def test_another_program_is_not_claimed_to_be_the_same(tmp_path: Path, spectral: Path) -> None:
    path = tmp_path / "output_code.py"
    path.write_text(written.POOL_AND_PARTITION)
    comparison = compare_compilers(read_inductor(path), open_path(spectral))
    assert not comparison.same_interface
    assert comparison.arguments.matched == 0
    assert len(comparison.arguments.pairs) == 2 + 5


def test_the_graph_that_is_most_alike_is_compared(tmp_path: Path, spectral: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "inference0").mkdir()
    (folder / "inference0" / "output_code.py").write_text(written.SPECTRAL)
    comparison = compare_compilers(read_inductor(folder), open_path(spectral))
    assert comparison.inductor.name.endswith(": inference0")
    assert comparison.same_interface


def test_the_diff_command(
    tmp_path: Path, spectral: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "output_code.py"
    path.write_text(written.SPECTRAL)
    assert main(["diff", str(path), str(spectral)]) == 0
    printed = capsys.readouterr().out
    assert "all arguments and outputs match by dtype and shape" in printed
    assert "peak beyond arguments" in printed
    assert main(["diff", "--json", str(spectral), str(path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["same_interface"]
    assert figures["inductor"]["own_peak_bytes"] == 1_114_112
    path.write_text(written.FORWARD)
    assert main(["diff", str(path), str(spectral)]) == 1
    assert "not shown to be the same program" in capsys.readouterr().out
