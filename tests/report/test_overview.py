"""The overview of `xlapipe show`: what it prints of real dumps, on one screen."""

import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.dumps import DIRECTORIES, ROOT, each_opened_once, name_of
from xlapipe.cli import main
from xlapipe.plans.phases import Phase, phases_of
from xlapipe.plans.purposes import Purpose
from xlapipe.report.overview.overview import Overview, common_path
from xlapipe.report.overview.overview_lines import MAX_LINES, overview_lines
from xlapipe.report.overview.source_text import SourceTexts
from xlapipe.report.subjects import open_subject
from xlapipe.time.prediction_settings import PredictionSettings

GOLDENS = ROOT / "hlo_dumps"
DUMPS = [
    GOLDENS / "qwen3-train" / f"h100_sxm-1x4-auto-tuned-jax{GOLDEN_JAXLIB}",
    pytest.param(
        GOLDENS / "resnet50-train" / f"h200-cublas-jax{GOLDEN_JAXLIB}", marks=pytest.mark.slow
    ),
    GOLDENS / "qwen3-decode" / f"h200-cublas-jax{GOLDEN_JAXLIB}",
    GOLDENS / "fsdp-mlp" / f"h200-1x2-cublas-jax{GOLDEN_JAXLIB}",
    *DIRECTORIES,
]


@pytest.fixture(scope="module", params=DUMPS, ids=name_of)
def overview(request: pytest.FixtureRequest) -> Overview:
    return Overview(open_subject(request.param))


@pytest.fixture(scope="module", autouse=True)
def shared_dumps() -> Iterator[None]:
    """Commands on one dump share its figures; those of `overview` are computed apart."""
    with each_opened_once():
        yield


@pytest.mark.parametrize("width", [80, 60, 120])
def test_it_is_one_screen(overview: Overview, width: int) -> None:
    lines = [line.plain for line in overview_lines(overview, "DIR", width=width)]
    assert len(lines) <= MAX_LINES
    # A name without parts may be longer than a narrow line.
    assert all(len(line) <= width for line in lines) or width == 60
    assert lines[-1].startswith("Next: xlapipe ")


def test_bytes_by_purpose_and_by_line_are_those_that_xla_allocates(overview: Overview) -> None:
    by_purpose = sum(row.counted_bytes for row in overview.by_purpose)
    assert by_purpose + overview.idle_bytes == overview.total_bytes
    for purpose in {row.purpose for row in overview.rows}:
        rows = [row for row in overview.rows if row.purpose is purpose]
        (of_purpose,) = [row for row in overview.by_purpose if row.purpose is purpose]
        assert sum(row.counted_bytes for row in rows) == of_purpose.counted_bytes
        assert sum(row.values for row in rows) == of_purpose.values


def test_json_has_the_overview(overview: Overview, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(overview.opened.program.path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["overview"]
    assert figures["total_bytes"] == overview.total_bytes
    for rows in (figures["by_purpose"], figures["by_line"]):
        assert (
            sum(row["counted_bytes"] for row in rows) + figures["idle_bytes"]
            == overview.total_bytes
        )
    assert figures["by_line"][0]["name"] == overview.rows[0].name


def test_every_line_that_is_shown_can_be_named(overview: Overview, capsys) -> None:
    shown = [row for row in overview.rows[:3] if row.source is not None]
    for row in shown:
        assert main(["show", str(overview.opened.program.path), overview.named(row.source)]) == 0
        assert str(row.source) in capsys.readouterr().out.replace("\n", "").replace("    ", "")


def test_a_training_step_has_three_phases_and_their_values() -> None:
    opened = open_subject(DUMPS[0])
    phases = phases_of(opened.plan)
    order = phases.by_position
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE} == set(order)
    assert order.index(Phase.FORWARD) < order.index(Phase.BACKWARD)
    assert len(order) - order[::-1].index(Phase.UPDATE) > order.index(Phase.BACKWARD)
    rows = {(row.purpose, row.name): row for row in Overview(opened).rows}
    # Adam's moments have the bytes of the weights, twice.
    weights = rows[Purpose.WEIGHTS, "state['params']"]
    moments = rows[Purpose.OPTIMIZER, "state['optimizer'][0]"]
    assert moments.counted_bytes - 2 * weights.counted_bytes in range(8)
    assert any(row.purpose is Purpose.SAVED for row in rows.values())


def test_a_lower_bound_is_no_time_of_a_step() -> None:
    """Collectives among four GPUs whose links are unknown."""
    path = GOLDENS / "fsdp-mlp" / f"h100_sxm-1x4-auto-tuned-jax{GOLDEN_JAXLIB}"
    opened = open_subject(path, PredictionSettings(target="a6000"))
    lines = [line.plain for line in overview_lines(Overview(opened), "DIR", width=80)]
    (time,) = (line.strip() for line in lines if "Time:" in line)
    assert re.match(r"Time: at least [\d.]+ ms: a part is not counted \(--time\)", time)


def test_the_network_is_stated_with_the_time() -> None:
    path = GOLDENS / "fsdp-mlp" / f"h100_sxm-1x4-auto-tuned-jax{GOLDEN_JAXLIB}"
    opened = open_subject(path, PredictionSettings(target="h100_sxm"))
    lines = [line.plain for line in overview_lines(Overview(opened), "DIR", width=200)]
    (time,) = (line.strip() for line in lines if "Time:" in line)
    assert time.endswith("network hgx-400g (assumed)")


def test_arguments_of_which_a_gradient_is_returned_are_weights() -> None:
    overview = Overview(open_subject(GOLDENS / "torch-block" / f"h200-cublas-jax{GOLDEN_JAXLIB}"))
    purposes = {row.name: row.purpose for row in overview.rows}
    assert purposes["first"] is purposes["second"] is Purpose.WEIGHTS


def test_the_workspace_of_a_call_with_fused_slices_is_one() -> None:
    overview = Overview(
        open_subject(GOLDENS / "qwen3-train" / f"h200-1x8-cublas-jax{GOLDEN_JAXLIB}")
    )
    (row,) = [row for row in overview.rows if row.shapes[0][0] == "s8[33554432]"]
    assert row.purpose is Purpose.WORKSPACE


def test_a_copy_is_for_what_its_operand_is_for() -> None:
    overview = Overview(
        open_subject(GOLDENS / "qwen3-train" / f"h100_sxm-1x4-auto-tuned-jax{GOLDEN_JAXLIB}")
    )
    rows = [row for row in overview.rows if row.name.endswith("sharded/forward.py:61")]
    assert Purpose.SAVED in {row.purpose for row in rows}
    # The counter of the loop is copied, and read by the loop of the backward pass.
    assert Purpose.COPY not in {row.purpose for row in rows}


def test_no_integer_is_a_gradient(overview: Overview) -> None:
    gradients = [row for row in overview.rows if row.purpose is Purpose.GRADIENT]
    shapes = [shape for row in gradients for shape, _ in row.shapes]
    assert not [shape for shape in shapes if re.match(r"([su]\d+|pred)\[", shape)]


def test_a_program_without_gradients_has_no_phases() -> None:
    overview = Overview(open_subject(DUMPS[2]))
    assert not phases_of(overview.plan).trains
    purposes = {row.purpose for row in overview.by_purpose}
    assert Purpose.UPDATED in purposes
    assert not purposes & {Purpose.SAVED, Purpose.GRADIENT, Purpose.OPTIMIZER, Purpose.WEIGHTS}


def test_a_value_is_shown_with_its_maker_its_lifetime_and_its_chain(capsys) -> None:
    dump = DUMPS[0]
    plan = open_subject(dump).plan
    largest = max(
        (v for a in plan.allocations if a.parameter_number is None for v in a.values),
        key=lambda value: value.size_bytes,
    )
    live = next(item for item in plan.live_ranges.ranges if item.name == largest.name)
    assert main(["show", str(dump), largest.name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{largest.name}  {largest.shape.without_layout}")
    assert f"({largest.size_bytes:,} B)" in out
    assert f"from position {live.start:,} to {live.end:,}" in out
    assert plan.live_ranges.schedule[live.end] in out
    assert re.search(r"\n  traced at.*\n    models/qwen3/", out)


def test_an_argument_is_shown_with_its_leaves(capsys) -> None:
    assert main(["show", str(DUMPS[2]), "cache"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("cache  4 leaves, 16.0 MiB (16,777,216 B)")
    assert "cache[1]['v']" in out
    assert "4 of 4, 4 updated in place" in out


def test_an_unknown_name_is_answered_with_the_nearest_ones(capsys) -> None:
    assert main(["show", str(DUMPS[2]), "cache", "--json"]) == 2
    assert "fix: leave out one of them" in capsys.readouterr().err
    assert main(["show", str(DUMPS[2]), "cahce"]) == 2
    assert "name one such as cache" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "headings"),
    [
        ("--allocations", ["Allocations"]),
        ("--donation", ["Donation"]),
        ("--gemms", ["Matrix products: 31"]),
        ("--collectives", ["Collectives"]),
    ],
)
def test_an_option_shows_one_part(
    option: str, headings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(DUMPS[0]), option]) == 0
    body = capsys.readouterr().out.splitlines()[2:]
    assert [line for line in body if line and not line.startswith(" ")] == headings


def test_texts_are_read_only_below_the_folders_of_the_user(tmp_path: Path, monkeypatch) -> None:
    from xlapipe.plans import SourceLine

    folder = tmp_path / "project"
    (folder / "dumps").mkdir(parents=True)
    (folder / "step.py").write_text("first\n  second\n")
    (tmp_path / "secret.py").write_text("secret\n")
    monkeypatch.chdir(folder)
    texts = SourceTexts(folder / "dumps")
    assert texts.of(SourceLine("step.py", 2)) == "second"
    assert texts.of(SourceLine("step.py", 9)) == texts.of(None) == ""
    for file in ("../secret.py", str(tmp_path / "secret.py"), "<python>/step.py", "missing.py"):
        assert texts.of(SourceLine(file, 1)) == ""
    (folder / "link.py").symlink_to(tmp_path / "secret.py")
    assert texts.of(SourceLine("link.py", 1)) == ""
    (folder / "secret.txt").write_text("secret\n")
    assert texts.of(SourceLine("secret.txt", 1)) == ""
    elsewhere = tmp_path / "elsewhere/dump"
    elsewhere.mkdir(parents=True)
    texts = SourceTexts(elsewhere)
    assert texts.of(SourceLine("elsewhere/../secret.py", 1)) == ""
    assert texts.of(SourceLine("secret.py", 1)) == "", "beside the dump's folder, in no project"
    (tmp_path / "elsewhere/pyproject.toml").touch()
    (tmp_path / "elsewhere/own.py").write_text("own\n")
    assert SourceTexts(elsewhere).of(SourceLine("own.py", 1)) == "own"


def test_the_common_path_ends_at_a_key() -> None:
    assert common_path(["s['params']['a']", "s['params']['ab']"]) == "s['params']"
    assert common_path(["s.mu[0]", "s.mu[1]"]) == "s.mu"
    assert common_path(["x"]) == "x"


def test_a_folder_of_many_modules_lists_the_largest_first(tmp_path: Path, capsys) -> None:
    sizes = {}
    for number, name in enumerate(("step", "sharded")):
        folder = next(
            path
            for path in DIRECTORIES
            if path.parent.name == "jaxlib-0.11.2" and path.name == name
        )
        for path in folder.iterdir():
            after = path.name.partition(".")[2].partition(".")[2]
            (tmp_path / f"module_{number:04}.jit_{name}.{after}").write_bytes(path.read_bytes())
        sizes[name] = open_subject(folder).plan.totals.total_allocation_bytes
    largest, other = sorted(sizes, key=lambda name: -sizes[name])
    assert main(["show", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path}: 2 modules, largest first"
    assert f"jit_{largest}." in lines[1] and f"jit_{other}." in lines[2]
    assert lines[-1] == f"Next: xlapipe show {tmp_path} --module jit_{largest}"
    assert main(["show", str(tmp_path), "--module", other]) == 0
    assert f"jit_{other}." in capsys.readouterr().out.splitlines()[0]
    assert main(["show", str(tmp_path), "--module", "train"]) == 2
    assert f"name one of: jit_{min(sizes)}, jit_{max(sizes)}" in capsys.readouterr().err
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace(f"jit_{largest}", "jit_$(id)")))
    assert main(["show", str(tmp_path)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("--module 'jit_$(id)'"), "to be pasted"


def test_values_without_source_lines_are_listed_by_operation(tmp_path: Path, capsys) -> None:
    golden = GOLDENS / "qwen3-decode" / f"h200-cublas-jax{GOLDEN_JAXLIB}"
    packed = golden / "after_optimizations.hlo.pb.xz"  # its lines are in source_lines.json
    path = tmp_path / packed.stem
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    assert main(["show", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "by operation: no value has a source line" in printed
    assert "(no source line)" not in printed
    overview = Overview(open_subject(path))
    assert not overview.has_lines
    assert sum(row.counted_bytes for row in overview.rows) + overview.idle_bytes == (
        overview.total_bytes
    )
