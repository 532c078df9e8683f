"""The Python front: plan, read, build, and calls of a loaded executable."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import xlapipe
from xlapipe import Workload, XlapipeError
from xlapipe.expect import Donated
from xlapipe.front.loaded_step import LoadedStep
from xlapipe.front.step_plan import StepPlan
from xlapipe.running.built_executable import read_executable

BF16 = jnp.bfloat16
CACHE = {"k": jax.ShapeDtypeStruct((64, 1024), BF16)}
ROW = jax.ShapeDtypeStruct((1024,), BF16)


def step(cache: dict[str, jax.Array], row: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    updated = cache["k"].at[3].set(row)
    return {"k": updated}, updated[3] * 2


@pytest.fixture(autouse=True, scope="module")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(home))
        yield home


@pytest.fixture(scope="module")
def donated(cache_home: Path) -> StepPlan:
    return xlapipe.plan(step, CACHE, ROW, donate="cache")


def test_a_plan_answers_and_shows_itself(donated: StepPlan) -> None:
    assert donated.donated("cache")
    assert donated.check(Donated("cache"))
    assert donated.totals.aliased_bytes == 64 * 1024 * 2
    assert repr(donated) == f"<plan of step on h200: {donated.total_allocation_bytes:,} B>"
    html = donated._repr_html_()
    assert html.startswith("<p>step on h200, untuned")
    assert "srcdoc=" in html
    assert "test_front.py" in html


def test_the_peak_is_by_source_line(donated: StepPlan) -> None:
    assert donated.peak.occupied_bytes >= 64 * 1024 * 2
    assert any("test_front.py" in str(row.source) for row in donated.peak.by_source)


def test_an_unchanged_step_comes_from_the_cache(
    donated: StepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("xlapipe.compiling.dump_cache.compile_dump", refuse)
    assert xlapipe.plan(step, CACHE, ROW, donate="cache").totals == donated.totals


def test_tables_are_lists_without_pandas(
    donated: StepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = donated.table("donations")
    assert [(row["path"], row["outcome"]) for row in rows] == [("cache['k']", "aliased")]
    with pytest.raises(XlapipeError, match=r"no table 'values'; fix: choose one of .*allocations"):
        donated.table("values")


def test_read_gives_the_plan_that_was_compiled(donated: StepPlan) -> None:
    again = xlapipe.read(donated.opened.path)
    assert again.figures["allocations"] == donated.figures["allocations"]
    assert again.donated("cache")
    with pytest.raises(XlapipeError, match="fix: "):
        xlapipe.read(donated.opened.path / "missing")


class _Executable:
    """Stands for the GPU: keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []

    def execute(self, arguments: list[Any]) -> list[Any]:
        self.calls.append(arguments)
        return arguments


class _Device:
    def put(self, array: Any) -> Any:
        return array


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedStep:
    workload = Workload(name="my-step", fn=step, args=(CACHE, ROW), donate_argnums=0)
    out = tmp_path_factory.mktemp("built") / "step"
    assert xlapipe.build(workload, out=out).donated("cache")
    return LoadedStep(read_executable(out), _Device(), _Executable())  # type: ignore[arg-type]


def test_a_built_step_is_called_with_its_trees(loaded: LoadedStep) -> None:
    k, row = np.ones((64, 1024), BF16), np.zeros(1024, BF16)
    outputs = loaded({"k": k}, row)
    assert [array.shape for array in outputs] == [(64, 1024), (1024,)]
    assert loaded.argument_paths == ("cache['k']", "row")
    assert loaded.output_paths == ("out[0]['k']", "out[1]")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (({"k": np.ones((64, 1024), BF16)},), r"takes 2 arguments \(cache, row\), found 1"),
        (({"v": np.ones((64, 1024), BF16)}, np.zeros(1024, BF16)), r"cache\['k'\], cache\['v'\]"),
        (({"k": np.ones((64, 1024), np.float32)}, np.zeros(1024, BF16)), r"is float32\[64, 1024\]"),
        (
            ({"k": np.ones((1024, 64), BF16)}, np.zeros(1024, BF16)),
            r"expected bfloat16\[64",
        ),
    ],
)
def test_other_arguments_are_refused(
    loaded: LoadedStep, args: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(XlapipeError, match=message):
        loaded(*args)


def test_the_package_has_the_front_and_nothing_hides_it() -> None:
    """A subpackage of the same name would replace a function when it is imported."""
    import xlapipe.cli

    for name in ("plan", "read", "build", "load", "fit", "largest"):
        assert callable(getattr(xlapipe, name)), name
    assert xlapipe.__version__ == "0.1.0"
