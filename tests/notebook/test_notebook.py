"""The notebook in examples, run by Jupyter's kernel as a user runs it."""

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="make test-notebook installs it")
nbclient = pytest.importorskip("nbclient", reason="make test-notebook installs it")
pytest.importorskip("pandas", reason="make test-notebook installs it")
pytest.importorskip("matplotlib", reason="make test-notebook installs it")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "training_step.ipynb"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    """The outputs of each cell, by its number; a cell that raises fails."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "clear the outputs, and save"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
        client = nbclient.NotebookClient(
            notebook, timeout=240, resources={"metadata": {"path": str(folder)}}
        )
        client.execute()
    return {
        cell.execution_count: cell.outputs for cell in notebook.cells if cell.cell_type == "code"
    }


def data(outputs: dict[int, list[Any]], number: int, kind: str) -> str:
    (output,) = outputs[number]
    content: str = output["data"][kind]
    return content


def test_a_plan_shows_totals_lines_of_cells_and_the_map(outputs: dict[int, list[Any]]) -> None:
    html = data(outputs, 3, "text/html")
    tables, frame, page = html.partition("<iframe srcdoc=")
    assert "<th>temporary</th>" in tables
    assert "<td" in tables and ">In[2]:3<" in tables, "the line of the cell"
    assert frame and "&lt;html" in page


def test_the_peak_is_a_dataframe_and_a_plot(outputs: dict[int, list[Any]]) -> None:
    table = data(outputs, 4, "text/html")
    assert 'class="dataframe"' in table and "f32[8192,2048]" in table
    assert len(data(outputs, 5, "image/png")) > 1000


def test_a_missing_donation_is_explained(outputs: dict[int, list[Any]]) -> None:
    (missing,), (after,) = outputs[6], outputs[7]
    assert missing["name"] == after["name"] == "stdout"
    assert "Aliased(name='state') does not hold: 16 leaves, 0 B aliased" in missing["text"]
    assert re.search("add .*'state'.* to donate_argnums", missing["text"])
    assert "In[2]:" in missing["text"], "the line of the cell"
    assert "16,777,216 B" in after["text"] and " B less" in after["text"]
