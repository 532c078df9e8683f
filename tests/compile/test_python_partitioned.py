"""cuDNN attention and callbacks over a mesh, which jax lowers only with devices."""

import pytest

from tests.folders import STEPS
from tests.steps import partitioned_steps as steps
from xlapipe import plan
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import compile_dump
from xlapipe.compile.tuning import Tuned
from xlapipe.dump.dump import Dump
from xlapipe.errors import XlapipeError

pytestmark = pytest.mark.jax


def compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> Dump:
    monkeypatch.chdir(STEPS)
    (job,) = jobs_of(
        [f"partitioned_steps:{name}"], CompileSettings(tuning=Tuned.NONE, use_cache=False)
    )
    return compile_dump(job, None).dump


def attention(dump: Dump) -> list[str]:
    """The shapes of the results of cuDNN's calls."""
    return sorted(
        instruction.shape.without_layout
        for instruction in dump.plan.instructions.values()
        if (instruction.custom_call_target or "").startswith("__cudnn$fmha")
    )


def test_a_mesh_divides_attention_as_shard_map_does(monkeypatch: pytest.MonkeyPatch) -> None:
    by_mesh, by_hand = (compiled(name, monkeypatch) for name in ("by_batch", "in_shard_map"))
    assert attention(by_mesh) == attention(by_hand)
    assert len(attention(by_mesh)) == 2  # forward and backward
    assert all("[2,4,256,64]" in shape for shape in attention(by_mesh))
    assert by_mesh.plan.collectives == by_hand.plan.collectives == ()


def test_attention_over_batch_and_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    (shape,) = attention(compiled("by_batch_and_heads", monkeypatch))
    assert "bf16[4,2,256,64]" in shape


def test_a_step_that_the_tests_process_lowers_is_refused_with_what_works() -> None:
    arrays = (steps.ARRAY,) * 3
    specs = {"in_specs": steps.P("d"), "out_specs": steps.P("d")}
    with pytest.raises(XlapipeError, match=r"fix: call it inside jax\.shard_map over all axes"):
        plan(steps.attend, *arrays, mesh={"d": 4}, **specs)
    mapped = steps.in_shard_map()
    assert plan(mapped.fn, *arrays, mesh={"d": 4}, **specs).temp_bytes < 4 * 2**20


def test_a_callback_over_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    dump = compiled("callback", monkeypatch)
    gathered, reduced = (c.kind for c in dump.plan.collectives or ())
    assert gathered == "all-gather"
    assert reduced in ("all-reduce", "reduce-scatter")  # of jaxlib 0.11, of others
