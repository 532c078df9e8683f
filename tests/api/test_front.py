"""The Python front: plan, read, build, and calls of a loaded executable."""

import pydoc
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import xlapipe
from xlapipe import LoadedStep, StepPlan, Workload, XlapipeError
from xlapipe.api import loaded_step
from xlapipe.errors import DumpError
from xlapipe.expect import Donated
from xlapipe.plans.program import ArgumentLeaf
from xlapipe.run.built_executable import read_executable

pytestmark = pytest.mark.jax

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
    assert repr(donated) == f"<plan of step on h200, untuned: {donated.total_allocation_bytes:,} B>"
    html = donated._repr_html_()
    assert html.startswith("<p><b>step on h200</b>, untuned")
    assert "srcdoc=" in html
    assert "predicted time" in html
    assert "test_front.py" in html


def test_the_peak_is_by_source_line(donated: StepPlan) -> None:
    assert donated.peak.occupied_bytes >= 64 * 1024 * 2
    assert any("test_front.py" in str(row.source) for row in donated.peak.by_source)


def test_an_unchanged_step_comes_from_the_cache(
    donated: StepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("xlapipe.compile.child_process._wait_for_child", refuse)
    assert xlapipe.plan(step, CACHE, ROW, donate="cache").totals == donated.totals


def test_a_registered_workload_is_planned_by_its_name(cache_home: Path) -> None:
    """The plan of `xlapipe dump` on the command line; arguments follow the name."""
    by_name = xlapipe.plan("tests.steps.small_step:small_step")
    assert by_name.aliases("cache")
    with pytest.raises(XlapipeError, match="has its own arguments and options; fix: leave out"):
        xlapipe.plan("tests.steps.small_step:small_step", ROW)


def test_lines_of_a_notebook_are_those_of_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the numbers that Jupyter's kernel keeps; a cell that has another number is not cached."""
    file = "/tmp/ipykernel_31/1234567.py"
    cell: dict[str, Any] = {}
    exec(compile("def in_cell(x):\n    return (x + 1) * x\n", file, "exec"), cell)
    for number in (7, 8):
        shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={file: number}))
        ipython = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
        plan = xlapipe.plan(cell["in_cell"], ROW)
        assert {row.source for row in plan.peak.by_source} == {f"In[{number}]:2"}


def test_stages_of_jax_are_refused() -> None:
    """A program of this machine is another one; of what is compiled, jax does not keep the plan."""
    traced: Any = jax.jit(step).trace(CACHE, ROW)
    for stage in (traced, traced.lower().compile()):
        with pytest.raises(XlapipeError, match=r"a jax.stages.\w+, .*; fix: give the function"):
            xlapipe.plan(stage)
    with pytest.raises(XlapipeError, match="expected a function with its arguments"):
        xlapipe.plan(traced.lower())


def test_tables_are_rows_of_dictionaries(donated: StepPlan) -> None:
    rows = donated.table("donations")
    assert [(row["path"], row["outcome"]) for row in rows] == [("cache['k']", "aliased")]
    with pytest.raises(XlapipeError, match=r"no table 'values'; fix: choose one of .*allocations"):
        donated.table("values")
    peak = donated.table("peak")
    assert sum(row["counted_bytes"] for row in peak) == donated.peak.occupied_bytes
    lines = [row for row in donated.table("lines") if not row["written_later"]]
    assert sum(row["counted_bytes"] for row in lines) == donated.peak.occupied_bytes
    assert peak._repr_html_().count("<tr>") == 1 + len(peak)
    kernels = donated.table("time")
    seconds = [row["predicted_seconds"] for row in kernels]
    assert seconds == sorted(seconds, reverse=True)
    assert sum(seconds) == pytest.approx(donated.time.predicted_kernel_seconds)
    assert {row["name"] for row in donated.table("timeline")} == {row["name"] for row in kernels}
    assert '<td style="text-align:right">131,072</td>' in peak._repr_html_()


def test_read_gives_the_plan_that_was_compiled(donated: StepPlan) -> None:
    again = xlapipe.read(donated.opened.program.path)
    assert again.figures["allocations"] == donated.figures["allocations"]
    assert again.donated("cache")
    with pytest.raises(XlapipeError, match="fix: "):
        xlapipe.read(donated.opened.program.path / "missing")


K, ROW_OF_ONES = np.zeros((64, 1024), BF16), np.ones(1024, BF16)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workload = Workload(name="my-step", fn=step, args=(CACHE, ROW), donate_argnums=0)
    out = tmp_path_factory.mktemp("built") / "step"
    assert xlapipe.build(workload, out=out).donated("cache")
    return out


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[jax.Array]]:
    """The arguments of each call of the step, which runs on the CPU instead of a GPU."""
    calls: list[list[jax.Array]] = []
    (cpu, *_) = jax.devices("cpu")

    def execute(arguments: list[jax.Array]) -> list[jax.Array]:
        calls.append(arguments)
        cache, row = step({"k": arguments[0]}, arguments[1])
        return [cache["k"], row]

    ready: Future[Any] = Future()
    ready.set_result(
        SimpleNamespace(place=lambda leaf, value: jax.device_put(value, cpu), execute=execute)
    )
    monkeypatch.setattr(loaded_step, "start_loading", lambda built: (cpu, ready))
    return calls


def test_a_built_step_is_called_with_its_trees(built: Path, calls: list[list[jax.Array]]) -> None:
    loaded = xlapipe.load(built)
    assert repr(loaded).startswith("<my-step on ")
    assert loaded.arguments == {
        "cache['k']": ((64, 1024), "bfloat16"),
        "row": ((1024,), "bfloat16"),
    }
    assert [*loaded.outputs] == ["out[0]['k']", "out[1]"]
    assert loaded.needed_bytes >= K.nbytes + 2 * ROW_OF_ONES.nbytes
    cache, row = loaded({"k": K}, ROW_OF_ONES)
    assert (np.asarray(row) == 2).all()
    assert np.asarray(cache).sum(dtype=np.float32) == 1024


def test_outputs_are_arguments_of_the_next_call(built: Path, calls: list[list[jax.Array]]) -> None:
    """Without a copy to the host: the second call gets the buffer that the first one returned."""
    loaded = xlapipe.load(built, wait=False)
    row = loaded.put("row", ROW_OF_ONES)
    outputs = loaded.call_named({"cache['k']": K, "row": row})
    loaded({"k": outputs["out[0]['k']"]}, row)
    (first, second) = calls
    passed_on = outputs["out[0]['k']"]
    assert second[0].unsafe_buffer_pointer() == passed_on.unsafe_buffer_pointer()
    assert second[1].unsafe_buffer_pointer() == first[1].unsafe_buffer_pointer()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (({"k": K},), r"takes 2 arguments \(cache, row\), found 1"),
        (({"v": K}, ROW_OF_ONES), r"cache\['k'\], cache\['v'\]"),
        (({"k": K.astype(np.float32)}, ROW_OF_ONES), r"is float32\[64, 1024\]"),
        (({"k": K.T}, ROW_OF_ONES), r"expected bfloat16\[64"),
    ],
)
def test_other_arguments_are_refused(
    built: Path, calls: list[list[jax.Array]], args: tuple[Any, ...], message: str
) -> None:
    loaded = xlapipe.load(built)
    with pytest.raises(XlapipeError, match=message):
        loaded(*args)
    with pytest.raises(XlapipeError, match="no argument 'other'; fix: give a path of"):
        loaded.put("other", K)
    assert calls == []


Leaves = tuple[ArgumentLeaf, ...]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda leaves: (*leaves, leaves[0]), r"lists cache\['k'\] more than once"),
        (
            lambda leaves: (replace(leaves[0], parameter_number=1), leaves[1]),
            "positions of the program's arrays are not 0 to 1",
        ),
    ],
)
def test_a_manifest_whose_leaves_are_not_in_order_is_refused(
    built: Path, change: Callable[[Leaves], Leaves], expected: str
) -> None:
    executable = read_executable(built)
    manifest = replace(executable.manifest, arguments=change(executable.manifest.arguments))
    with pytest.raises(DumpError, match=expected):
        LoadedStep(replace(executable, manifest=manifest), None, Future())


def test_the_package_has_the_front_and_nothing_hides_it() -> None:
    """A subpackage of the same name would replace a function when it is imported."""
    import xlapipe.cli

    for name in ("plan", "read", "build", "load", "fit", "largest"):
        assert callable(getattr(xlapipe, name)), name
    assert xlapipe.__version__ == "0.1.0"
    assert set(xlapipe.__all__) < set(dir(xlapipe))
    help_text = pydoc.plain(pydoc.render_doc(xlapipe))
    before_contents = help_text[: help_text.index("PACKAGE CONTENTS")]
    for name in ("plan", "read", "build", "load", "largest"):
        assert f"xlapipe.{name}(" in before_contents and f"\n    {name}(" in help_text
