"""What each private part of jax must do; see `xlapipe/jax_private.py`.

Small, and without a device. It runs on every jax of requirements/: a part whose meaning changed in
a new jax fails here, the silent ones included.
"""

import inspect
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.interpreters import mlir, pxla
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import xlapipe
from tests.compile.triton_commit import triton_commit
from xlapipe import jax_private
from xlapipe.compile.lowering.names import user_frame
from xlapipe.compile.lowering.target_devices import TargetClient, target_in_place_of_cpu
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.devices.platforms import platform_named
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.jax_private import ReplacedAttribute, replaced
from xlapipe.time.predicted_locks.instructions import instruction_texts
from xlapipe.time.predicted_locks.known_results import TRITON_COMMITS

pytestmark = pytest.mark.jax

IS_0_10 = jax.__version__.startswith("0.10.")
X = jax.ShapeDtypeStruct((8, 8), "float32")
PLACES = {
    name: value
    for name, value in vars(jax_private).items()
    if isinstance(value, ReplacedAttribute) and (name != "abstract_device_from" or not IS_0_10)
} | {f"cuda_versions {place.owner.__name__}": place for place in jax_private.cuda_versions}


@pytest.fixture
def client() -> TargetClient:
    figures = platform_named("cuda").device_figures(target_named("h200").config_text)
    return TargetClient(figures, host_count=1, devices_per_host=1)


def test_what_commits_outputs_and_arguments_to_devices_is_known() -> None:
    mesh = jax.make_mesh((1,), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    traced = jax.jit(lambda x, y: (x, y), in_shardings=(sharding, None)).trace(X, X)
    assert jax_private.stated_in_shardings(traced) == [True, False]
    assert not jax_private.moves_to_memory(traced.jaxpr)
    moved = jax.jit(lambda x: jax.device_put(x, jax.memory.Space.Host)).trace(X)
    assert jax_private.moves_to_memory(moved.jaxpr)


@pytest.mark.parametrize("name", PLACES)
def test_a_replaced_attribute_exists_and_is_restored(name: str) -> None:
    place = PLACES[name]
    before = getattr(*place)
    with replaced(place, "other") as original:
        assert getattr(*place) == "other"
    assert getattr(*place) is original is before


def test_a_missing_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError), replaced(ReplacedAttribute(jax_private, "absent"), None):
        raise AssertionError("entered")


def test_frames_of_an_equation_are_the_users() -> None:
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) * 2)(X).jaxpr
    (frame, *_) = jax_private.user_frames(jaxpr.eqns[0].source_info.traceback)
    assert Path(frame.file_name) == Path(__file__)
    assert frame.start_line == line


def test_an_error_while_lowering_has_the_frames_of_the_trace() -> None:
    def refuse(context: Any, *operands: Any) -> Any:
        raise NotImplementedError("refused")

    primitive = Primitive("refused")
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, refuse)
    with pytest.raises(NotImplementedError) as caught:
        jax.jit(lambda x: primitive.bind(x) + 1).lower(X)
    assert isinstance(caught.value.__cause__, jax_private.TracedHere)
    assert (user_frame(caught.value) or "").startswith(f"{__file__}:")


def test_effects_of_references_axes_and_checks() -> None:
    def uses_reference(x: Any) -> Any:
        reference = jax.new_ref(x)
        reference[...] = x + 1
        return reference[...]

    effects = {
        effect for equation in jax.make_jaxpr(uses_reference)(X).eqns for effect in equation.effects
    }
    assert any(isinstance(effect, jax_private.reference_effects) for effect in effects)
    summed = jax.make_jaxpr(lambda x: jax.lax.psum(x, "i"), axis_env=[("i", 2)])(X)
    assert all(
        isinstance(effect, jax_private.harmless_effects)
        for equation in summed.eqns
        for effect in equation.effects
    )


def test_a_vmapped_trace_is_known_as_such() -> None:
    seen: dict[str, bool] = {}

    def step(x: Any, name: str) -> Any:
        seen[name] = jax_private.is_vmapped()
        return x

    jax.make_jaxpr(lambda x: step(x, "alone"))(X)
    jax.make_jaxpr(jax.vmap(lambda x: step(x, "mapped")))(X)
    jax.make_jaxpr(jax.vmap(jax.grad(lambda x: step(x, "gradient").sum())))(X)
    jax.make_jaxpr(jax.grad(lambda x: step(x, "no vmap").sum()))(X)
    assert seen == {"alone": False, "mapped": True, "gradient": True, "no vmap": False}


def test_the_function_in_a_jit_is_what_it_traces() -> None:
    jitted = jax.jit(lambda x: x + 1)
    place = jax_private.jitted_function(jitted)
    assert place is not None
    with replaced(place, jnp.cos):
        assert "cosine" in jitted.lower(X).as_text()
    assert jax_private.jitted_function(lambda x: x) is None


def test_references_are_distinguished_from_arrays() -> None:
    assert jax_private.is_reference(jax.new_ref(jnp.zeros(3)))
    assert not jax_private.is_reference(jnp.zeros(3))
    lowered = jax.jit(lambda r: r[...]).lower(jax.new_ref(jnp.zeros(3)))
    (info,) = jax.tree.leaves(
        jax_private.lowering_of(lowered).compile_args["all_args_info"].in_avals
    )
    assert type(info).__name__ == "AbstractRef"


def test_every_lowering_goes_through_the_traced_stage() -> None:
    lowered: list[Any] = []
    original = getattr(*jax_private.lower_traced)

    def lower(self: Any, **options: Any) -> Any:
        lowered.append(self)
        return original(self, **options)

    with replaced(jax_private.lower_traced, lower):
        jax.jit(lambda x: x * 3).lower(X)
        jax.jit(lambda x: x * 4).trace(X).lower(lowering_platforms=("cuda",))
    assert len(lowered) == 2


def test_settings_have_the_values_of_this_thread() -> None:
    name = "jax_default_matmul_precision"
    before = jax_private.trace_context()
    with jax.default_matmul_precision("highest"):
        assert jax_private.setting_holders()[name].value == "highest"
        assert jax_private.trace_context() != before
    assert jax_private.trace_context() == before


def test_a_lowering_has_what_xla_is_given() -> None:
    jitted = jax.jit(
        lambda x: x @ x, donate_argnums=0, compiler_options={"xla_embed_ir_in_executable": True}
    )
    lowering = jax_private.lowering_of(jitted.lower(X))
    assert {"mut", "num_devices", "kept_var_idx", "ordered_effects", "all_args_info"} <= set(
        lowering.compile_args
    )
    assert list(lowering.const_args) == []
    assert jax_private.compiler_options(lowering) == {"xla_embed_ir_in_executable": True}
    assert jax_private.devices_of(lowering) is None or len(jax_private.devices_of(lowering)) == 1
    given: list[Any] = []
    with (
        replaced(jax_private.compile_or_get_cached, lambda *args: given.append(args) or 1 / 0),
        pytest.raises(ZeroDivisionError),
    ):
        assignment = None if jax_private.devices_of(lowering) else tuple(jax.devices("cpu"))
        lowering.compile(device_assignment=assignment)
    ((_, module, _, options, *_),) = given
    assert "dot_general" in str(module)
    assert options.executable_build_options.num_partitions == 1
    serialized = options.SerializeAsString()
    again = jax_private.CompileOptions.ParseFromString(serialized)
    assert again.num_replicas == options.num_replicas


def test_xla_compiles_a_module_for_a_device() -> None:
    devices = jax.devices("cpu")[:1]
    with mlir.make_ir_context():
        module = ir.Module.parse(
            mlir.module_to_bytecode(jax.jit(lambda x: x + 1).lower(X).compiler_ir())
        )
        options = pxla.create_compile_options(
            module, False, (False,), (False,), devices[0].client, np.array(devices), {}
        )
        executable = jax_private.backend_compile_and_load(
            devices[0].client, module, jax_private.DeviceList(tuple(devices)), options, []
        )
    assert executable.get_compiled_memory_stats().argument_size_in_bytes == 8 * 8 * 4


def test_attached_devices_have_a_topology() -> None:
    topology = jax_private.get_topology_for_devices(jax.devices("cpu"))
    assert topology.platform == "cpu"


def test_the_text_of_a_module_has_the_form_of_a_product() -> None:
    """Silent if the text changes: no instruction is then found by its fingerprint."""
    hlo = jax.jit(lambda x: x @ x).lower(X).compiler_ir("hlo")
    (text,) = (
        text
        for text in instruction_texts(jax_private.module_text(hlo.as_serialized_hlo_module_proto()))
        if " dot(" in text
    )
    assert text.startswith("f32[8,8]{1,0} dot(f32[8,8]{1,0}, f32[8,8]{1,0}), lhs_contr")


@pytest.mark.skipif(version("jaxlib") not in TRITON_COMMITS, reason="no results are used with it")
def test_xla_is_built_with_the_commit_of_triton_that_results_name() -> None:
    """Silent if it is another: XLA ignores results of Triton, and the plan states a lock."""
    assert triton_commit() == TRITON_COMMITS[version("jaxlib")]


def test_changes_are_made_to_xlas_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent if its code has another form: other sorts, and fusions that a lock does not name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLAPIPE_NO_CACHE", "1")
    step = jax.ShapeDtypeStruct((1 << 20,), "float32"), X
    plan = xlapipe.plan(lambda x, y: (jnp.sort(x), y @ y), *step)
    patches = {XlaPatch.CUB_TABLE}
    if version("jaxlib") in TRITON_COMMITS:
        patches.add(XlaPatch.INSTRUCTION_ORDER)
    assert set(plan.opened.dump.manifest.xla_patches) == patches


def test_a_sharding_of_xlas_is_a_spec_over_a_mesh() -> None:
    mesh = AbstractMesh((2, 4), ("a", "b"))
    spec = PartitionSpec("b", None, "a")
    sharding = NamedSharding(mesh, spec)._to_xla_hlo_sharding(3)
    for given in (sharding, sharding.to_proto()):
        (parsed,) = jax_private.parse_flatten_op_sharding(jax_private.tiled_sharding(given), mesh)
        assert tuple(parsed) == ("b", None, "a")


def test_triton_kernels_can_be_parsed() -> None:
    context = ir.Context()
    jax_private.register_triton_dialect(context)
    with context, ir.Location.unknown():
        text = "module { tt.func public @f(%x: !tt.ptr<f32>) { tt.return } }"
        assert "tt.func" in str(ir.Module.parse(text))


def test_code_that_asks_where_it_runs_is_answered_for_the_target(client: TargetClient) -> None:
    """Silent if one of the places is no longer what jax asks."""
    assert jax.default_backend() == "cpu"
    with target_in_place_of_cpu(client):
        assert jax.default_backend() == client.platform
        assert [device.device_kind for device in jax.devices()] == [client.figures.device_kind]
        assert jax.local_device_count() == 1
        assert jax.process_count() == 1
        assert jax.devices("cpu")[0].platform == "cpu"
    assert jax.devices()[0].platform == "cpu"


def test_answers_about_devices_that_jax_caches_are_known() -> None:
    jax.local_devices(), jax.process_count()
    assert jax_private.cached_device_answers
    assert all(callable(function.cache_clear) for function in jax_private.cached_device_answers)


@pytest.mark.parametrize(
    ("place", "step", "asked"),
    [
        (
            jax_private.cuda_versions[0],
            lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn"),
            "cudnn_get_version",
        ),
        (
            jax_private.cuda_versions[1],
            lambda q: jax.lax.linalg.eig(q[0, :64, 0].astype("float32"))[0],
            "cusolver_get_version",
        ),
    ],
)
def test_libraries_are_asked_for_their_versions(
    client: TargetClient, place: ReplacedAttribute, step: Any, asked: str
) -> None:
    """Silent if jax asks elsewhere: it lowers as without the library."""
    questions: list[str] = []

    class Versions:
        def __getattr__(self, name: str) -> Any:
            questions.append(name)
            return lambda: 91_900

    q = jax.ShapeDtypeStruct((2, 128, 4, 64), "bfloat16")
    with target_in_place_of_cpu(client), replaced(place, Versions()):
        jax.jit(step).trace(q).lower(lowering_platforms=("cuda",))
    assert asked in questions


@pytest.mark.skipif(IS_0_10, reason="jax 0.10 does not ask")
def test_the_kind_of_a_meshs_devices_is_asked_for() -> None:
    owner, name = jax_private.abstract_device_from
    assert getattr(owner, name)(jax.devices("cpu")[0]).platform == "cpu"
    asked: list[Any] = []
    with replaced(jax_private.abstract_device_from, asked.append):
        _ = jax.sharding.Mesh(jax.devices("cpu")[:1], "other axis").abstract_mesh
    assert asked


def test_processes_of_a_group_have_a_client() -> None:
    state = jax_private.distributed_state
    assert {"client", "service", "preemption_sync_manager"} <= set(vars(state)) | set(dir(state))
    assert state.client is None
