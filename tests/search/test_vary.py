"""`--vary`: the combinations that it makes, and the errors of invalid text."""

import pytest

from xlapipe.errors import WorkloadError, XlapipeError
from xlapipe.search.sweep import Axis, combinations


def axes(*texts: str) -> list[Axis]:
    return [Axis.parse(text) for text in texts]


def test_values_are_literals() -> None:
    assert Axis.parse("batch=1,8,64") == Axis("batch", (1, 8, 64))
    assert Axis.parse("size='0.6b','32b'") == Axis("size", ("0.6b", "32b"))
    assert Axis.parse("dims=(1, 2),(3, 4)") == Axis("dims", ((1, 2), (3, 4)))
    assert Axis.parse("layers=None, 2") == Axis("layers", (None, 2))


@pytest.mark.parametrize(
    "text",
    ["batch", "batch=", "=1", "batch=a", "b-c=1", "batch=1;2", "batch=f(1)", "a=" + "(" * 999],
)
def test_invalid_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(XlapipeError, match=r"--vary .*a parameter's name"):
        Axis.parse(text)


def test_a_name_without_values_is_refused() -> None:
    with pytest.raises(XlapipeError, match="no values after `batch=`"):
        Axis.parse("batch=")


def test_a_value_given_twice_is_refused() -> None:
    with pytest.raises(XlapipeError, match="holds a value twice"):
        Axis.parse("batch=8,1,8")
    with pytest.raises(XlapipeError, match="holds a value twice"):
        Axis.parse("flag=1,True")


def test_the_last_axis_varies_fastest_and_other_arguments_are_kept() -> None:
    points = combinations("m:step(size='32b')", axes("batch=1,8", "seq=2,4"))
    assert [point.values_text for point in points] == [
        "batch=1, seq=2",
        "batch=1, seq=4",
        "batch=8, seq=2",
        "batch=8, seq=4",
    ]
    assert str(points[2].reference) == "m:step(size='32b', batch=8, seq=2)"
    assert points[2].values == {"batch": 8, "seq": 2}


def test_without_an_axis_there_is_one_combination() -> None:
    (point,) = combinations("m:step", [])
    assert (point.values_text, str(point.reference)) == ("", "m:step")


@pytest.mark.parametrize(
    ("workload", "texts", "expected"),
    [
        ("m:step", ["batch=1", "batch=2"], "--vary batch: given twice"),
        ("m:step(batch=4)", ["batch=1"], "already gives batch=4"),
    ],
)
def test_invalid_combinations_of_axes_are_refused(
    workload: str, texts: list[str], expected: str
) -> None:
    with pytest.raises(XlapipeError, match=expected):
        combinations(workload, axes(*texts))


def test_the_error_of_an_unknown_workload_has_the_name_as_given() -> None:
    with pytest.raises(WorkloadError, match="unknown workload 'qwen3-trian'"):
        combinations("qwen3-trian", axes("batch=1"))


def test_numbers_are_ranked_by_size_and_other_values_in_the_order_given() -> None:
    numbers, names = Axis.parse("batch=64,1,8"), Axis.parse("size='large','small'")
    assert sorted(numbers.values, key=numbers.rank) == [1, 8, 64]
    assert sorted(names.values, key=names.rank) == ["large", "small"]
