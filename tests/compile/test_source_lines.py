"""Steps through flax and optax: every screen states the user's lines, not the libraries'."""

import re
from collections.abc import Callable
from functools import cache

import pytest

import xlapipe
from tests.folders import STEPS
from tests.zoo.batch import compile_batch, programs_in
from xlapipe.compile.lowering.names import is_user_code, user_frame
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.inductor.open_path import open_path
from xlapipe.plans.peak import NO_SOURCE, peak_of
from xlapipe.report.pages import page_lines
from xlapipe.report.plan_figures import figures_of
from xlapipe.report.plan_page import plan_page
from xlapipe.report.xla_subject import XlaSubject

pytestmark = pytest.mark.jax

LIBRARY_STEPS = STEPS / "library_steps.py"
LINES = {
    match[1]: f"library_steps.py:{number}"
    for number, line in enumerate(LIBRARY_STEPS.read_text(encoding="utf-8").splitlines(), 1)
    if (match := re.search(r"  # line: (.+)", line))
}


DumpOf = Callable[[str], XlaFiles]


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> DumpOf:
    folder = tmp_path_factory.mktemp("library_steps")
    batch = compile_batch(programs_in(LIBRARY_STEPS), folder)

    @cache
    def read(name: str) -> XlaFiles:
        batch.captured(name)
        return open_path(folder / name / "canonical")

    return read


def sources(dump: XlaFiles) -> set[str]:
    """The source lines of all instructions, also of those inside fusions."""
    assert dump.plan.module is not None
    return {
        str(instruction.source)
        for computation in dump.plan.module.computations.values()
        for instruction in computation.instructions
        if instruction.source is not None
    }


def lines(*names: str) -> set[str]:
    return {LINES[name] for name in names}


@pytest.mark.slow
def test_every_instruction_of_nnx_has_a_line_of_the_users(of: DumpOf) -> None:
    assert sources(of("nnx_step")) == lines("nnx linear", "nnx norm", "nnx loss", "nnx update")


def test_every_instruction_of_linen_has_a_line_of_the_users(of: DumpOf) -> None:
    assert sources(of("linen_step")) == lines(
        *("linen dense", "linen norm", "linen loss", "linen update", "linen apply")
    )


def test_every_instruction_of_optax_has_a_line_of_the_users(of: DumpOf) -> None:
    assert sources(of("optax_step")) == lines("optax scale", "optax update", "optax apply")


@pytest.mark.parametrize(
    ("step", "largest"),
    [("nnx_step", "nnx norm"), ("linen_step", "linen norm"), ("optax_step", "optax apply")],
)
def test_the_peak_is_at_a_line_of_the_users(step: str, largest: str, of: DumpOf) -> None:
    rows = peak_of(of(step)).by_source
    assert rows[0].source == LINES[largest]
    assert {row.source for row in rows} <= {*LINES.values(), NO_SOURCE}


@pytest.mark.parametrize("step", ["nnx", "linen"])
def test_gemms_are_at_the_line_that_calls_the_layer(step: str, of: DumpOf) -> None:
    gemms = of(f"{step}_step").plan.gemms
    assert {str(gemm.source) for gemm in gemms} == lines(
        f"{step} {'linear' if step == 'nnx' else 'dense'}"
    )


@pytest.mark.parametrize("step", ["nnx_step", "linen_step", "optax_step"])
def test_no_screen_states_a_line_of_a_library(step: str, of: DumpOf) -> None:
    dump = XlaSubject(of(step))
    for text in ("\n".join(map(str, page_lines(plan_page(dump)))), repr(figures_of(dump))):
        assert "library_steps.py:" in text
        assert "-packages" not in text
        assert "<python>" not in text


@pytest.mark.parametrize("folder", ["/usr/src/app", "/srv/lib/steps"])
def test_a_traceback_names_the_users_file(folder: str) -> None:
    """The user's files may be below the folder in which Python is installed, such as /usr."""
    step = compile("import json\njson.loads('{')", f"{folder}/step.py", "exec")
    with pytest.raises(ValueError) as caught:
        exec(step)
    frame = user_frame(caught.value)
    assert frame is not None
    assert frame.startswith(f"{folder}/step.py:2 in <module>")


def test_files_of_xlapipe_are_not_the_users() -> None:
    assert is_user_code(__file__)
    assert not is_user_code(xlapipe.__file__)
