"""What a user can say to jax of a step reaches XLA."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src import config, pjit

from tests.conftest import ROOT
from tests.zoo.carried import CARRIED
from xlapipe import Workload
from xlapipe.compile.lowering import arguments
from xlapipe.compile.lowering.in_process import lower_in_test
from xlapipe.compile.lowering.lower import lower
from xlapipe.compile.lowering.xla_input import current_settings, refuse_other_options
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.errors import WorkloadError

X = jax.ShapeDtypeStruct((8, 8), jnp.float32)
CONFIG = target_named("h200").config_text

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def totals(
    tmp_path_factory: pytest.TempPathFactory, jaxlib_version: str, golden_jaxlib: str
) -> Mapping[str, Mapping[str, Any]]:
    """The totals of each case, by jax alone and by xlapipe, which compile at the same time."""
    if jaxlib_version != golden_jaxlib:
        pytest.skip(f"the cases are written for jax {golden_jaxlib}")
    folder = tmp_path_factory.mktemp("carried")
    (folder / "config.txtpb").write_text(CONFIG)
    script = Path(__file__).with_name("carried_child.py")
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("JAX_")},
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
        "PYTHONPATH": str(ROOT),
    }
    children = {}
    for who in ("jax", "xlapipe"):
        (folder / who).mkdir()
        command = [sys.executable, str(script), who, str(folder / "config.txtpb"), folder / who]
        with (folder / f"{who}.log").open("w") as log:
            children[who] = subprocess.Popen(command, stdout=log, stderr=log, env=variables)
    for who, child in children.items():
        assert child.wait(280) == 0, (folder / f"{who}.log").read_text()[-2000:]
    return {who: json.loads((folder / who / "totals.json").read_text()) for who in children}


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in CARRIED])
def test_totals_equal_those_of_jax_alone(
    name: str, totals: Mapping[str, Mapping[str, Any]]
) -> None:
    by_jax, by_xlapipe = totals["jax"][name], totals["xlapipe"][name]
    assert isinstance(by_jax, dict), by_jax
    assert by_xlapipe == by_jax


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("compiler_options", "workload_options"),
        ("debug_infs", "donate_argnums"),
        ("optimization_level", "weak_type"),
        ("in_shardings_explicit", "set_mesh"),
    ],
)
def test_pairs_that_say_the_same_have_the_same_temp(
    name: str, other: str, totals: Mapping[str, Mapping[str, Any]]
) -> None:
    assert totals["xlapipe"][name]["temp"] == totals["xlapipe"][other]["temp"]


@pytest.mark.slow
def test_what_is_said_changes_the_plan(totals: Mapping[str, Mapping[str, Any]]) -> None:
    temp = {name: case["temp"] for name, case in totals["jax"].items()}
    assert temp["compiler_options"] != temp["optimization_level"]
    assert temp["matmul_precision"] != temp["dtype_promotion"]
    opcodes = {name: case["opcodes"] for name, case in totals["jax"].items()}
    assert opcodes["prng_impl"] != opcodes["threefry"] != opcodes["seed_offset"]
    assert totals["jax"]["enable_x64"] != totals["jax"]["config_x64"]


def test_every_parameter_of_jit_is_known() -> None:
    """A parameter that a later jax adds needs a row in the table."""
    known = {"fun_sourceinfo", "fun_signature", "user_specified_in_shardings"}
    known |= {
        f"{place}_{part}"
        for place in ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
        for part in ("treedef", "leaves")
    }
    known |= {"static_argnums", "static_argnames", "donate_argnums", "donate_argnames"}
    known |= {"device", "backend", "keep_unused", "inline", "use_resource_env"}
    assert set(pjit.PjitInfo._fields) == {*known, "compiler_options_kvs"}


# Settings that are not on or off, with another value than jax's own.
OTHER_VALUES = {
    "jax_default_prng_impl": "rbg",
    "jax_default_matmul_precision": "highest",
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_legacy_prng_key": "warn",
    "jax_optimization_level": "O1",
    "jax_memory_fitting_level": "O1",
    "jax_random_seed_offset": 7,
}
STATES = {
    name: state
    for name, state in config.config._value_holders.items()
    if isinstance(state, config.State)
    and (isinstance(state.value, bool) or name in OTHER_VALUES)
    # With it, jax refuses to trace.
    and name != "jax_no_tracing"
}


@pytest.mark.parametrize("name", STATES)
def test_a_setting_of_one_thread_is_in_force_while_the_step_is_traced(name: str) -> None:
    """Each setting of jax that is on or off, and some others, set as its context does."""
    state: Any = STATES[name]
    seen: dict[str, Any] = {}

    def step(x: jax.Array) -> jax.Array:
        seen.update(current_settings())
        return x

    with state(OTHER_VALUES.get(name, state.value is False)):
        expected = state.value
        try:
            lower_in_test(Workload(name="step", fn=step, args=(X,)), CONFIG)
        except WorkloadError:
            assert name == "jax_disable_jit"  # which is refused
            return
    assert seen[name] == expected


def test_other_compile_options_than_those_of_jax_are_refused() -> None:
    program = lower(Workload(name="step", fn=jnp.sin, args=(X,)), CONFIG)
    from jax._src import compiler

    options = compiler.get_compile_options(num_replicas=1, num_partitions=2)
    with pytest.raises(
        WorkloadError, match=r"option build\.\w+ is .*, expected .* as jax gives it"
    ):
        refuse_other_options("step", program.compile_options, options)


def test_a_setting_that_is_lost_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from xlapipe.compile.lowering import lower as module

    monkeypatch.setattr(
        module, "current_settings", lambda: {**current_settings(), "jax_enable_x64": True}
    )
    with pytest.raises(WorkloadError, match=r"jax_enable_x64 is False .* expected True"):
        lower(Workload(name="step", fn=jnp.sin, args=(X,)), CONFIG)


def test_a_leaf_that_is_passed_differently_is_refused_with_its_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arguments._Place, "_dtype", lambda self, path, leaf: jnp.dtype("float16"))
    with pytest.raises(WorkloadError, match=r"argument x\['w'\] is passed as .*float16.*float32"):
        lower(Workload(name="step", fn=lambda x: x["w"], args=({"w": X},)), CONFIG)
