"""Pallas kernels: what their code says and their author states, their locations, their errors."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax._src.lib.mlir import ir
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import core as mosaic
from jax.experimental.pallas import triton
from jax.sharding import AbstractMesh

from models.qwen3.kernels.hopper_products import prompt_swiglu
from tests.folders import STEPS
from tests.steps import stated_steps
from tests.steps.stated_steps import ACCESSED_BYTES, TRIPS
from tests.steps.stated_steps import WIDTH as STATED_WIDTH
from xlapipe.cli import main
from xlapipe.compile.lowering import module_kernels as kernel_ir
from xlapipe.compile.lowering.kernel_codes import kernel_codes, stated_costs
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import compile_dump
from xlapipe.dump.manifest import Manifest
from xlapipe.errors import WorkloadError
from xlapipe.plans.kernel_code import KernelCode, StatedCost
from xlapipe.registry import find_workload
from xlapipe.report.time_figures import step_time
from xlapipe.report.time_lines import time_section
from xlapipe.report.xla_subject import XlaSubject

ESTIMATE = StatedCost("pick", 4 * STATED_WIDTH, ACCESSED_BYTES, STATED_WIDTH)
pytestmark = pytest.mark.jax

ROWS, WIDTH, SIDE = 256, 1024, 64


def code_of(
    kernel: Callable[..., None],
    args: tuple[Any, ...],
    result: Any,
    grid: tuple[int, ...] = (),
    in_specs: Any = None,
    out_specs: Any = None,
    **params: Any,
) -> KernelCode:
    given = {} if in_specs is None else {"in_specs": in_specs, "out_specs": out_specs}
    call = pl.pallas_call(
        kernel,
        out_shape=result,
        grid=grid,
        compiler_params=triton.CompilerParams(num_warps=2, num_stages=3),
        **given,
        **params,
    )
    (code,) = kernel_codes(jax.make_jaxpr(call)(*args))
    return code


def struct(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_a_product_in_steps_over_its_terms() -> None:
    def product(x: Any, y: Any, z: Any) -> None:
        def part(step: Any, total: Any) -> Any:
            at = pl.ds(step * 32, 32)
            return total + jnp.dot(x[:, at], y[at, :], preferred_element_type=jnp.float32)

        total = lax.fori_loop(0, WIDTH // 32, part, jnp.zeros((SIDE, SIDE)))
        z[...] = total.astype(z.dtype)

    code = code_of(
        product,
        (struct(ROWS, WIDTH, dtype=jnp.bfloat16), struct(WIDTH, ROWS, dtype=jnp.bfloat16)),
        struct(ROWS, ROWS, dtype=jnp.bfloat16),
        (ROWS // SIDE, ROWS // SIDE),
        [
            pl.BlockSpec((SIDE, WIDTH), lambda i, j: (i, 0)),
            pl.BlockSpec((WIDTH, SIDE), lambda i, j: (0, j)),
        ],
        pl.BlockSpec((SIDE, SIDE), lambda i, j: (i, j)),
    )
    assert (code.kernel, code.programs, code.warps, code.stages) == ("product", 16, 2, 3)
    assert code.flops == {"bf16": 2 * ROWS * ROWS * WIDTH}
    each = 16 * SIDE * WIDTH * 2  # bytes of an operand, by all programs
    assert code.loaded_bytes == (each, each, 0)
    assert code.stored_bytes == (0, 0, 2 * ROWS * ROWS)
    assert (code.steps, code.longest_steps) == (WIDTH // 32, WIDTH // 32)
    # The sum, to which products are added as they are computed, and a step of both operands.
    assert code.live_words == SIDE * SIDE + 2 * SIDE * 32 // 2
    assert (code.operations, code.undecided) == ({"convert": ROWS * ROWS}, 0)


def test_trips_that_depend_on_the_program() -> None:
    def partial_sum(x: Any, y: Any) -> None:
        def part(step: Any, total: Any) -> Any:
            return total + x[pl.ds(step * SIDE, SIDE)]

        y[...] = lax.fori_loop(0, pl.program_id(0) + 1, part, jnp.zeros((SIDE,)))

    code = code_of(
        partial_sum,
        (struct(WIDTH),),
        struct(WIDTH),
        (WIDTH // SIDE,),
        [pl.BlockSpec((WIDTH,), lambda i: (0,))],
        pl.BlockSpec((SIDE,), lambda i: (i,)),
    )
    programs = WIDTH // SIDE
    assert code.longest_steps == programs
    assert code.steps == (programs + 1) / 2
    assert code.loaded_bytes[0] == 4 * SIDE * programs * (programs + 1) // 2
    assert code.operations == {"other": SIDE * programs * (programs + 1) // 2}


def test_what_a_program_loads_again_is_in_its_cache() -> None:
    def repeated(x: Any, y: Any) -> None:
        y[...] = lax.fori_loop(0, 10, lambda _, total: total + x[...], jnp.zeros((SIDE,)))

    code = code_of(repeated, (struct(SIDE),), struct(SIDE))
    assert code.loaded_bytes == (4 * SIDE, 0)
    assert code.steps == 10


def test_a_branch_by_the_place_in_the_grid_and_one_by_data() -> None:
    def first(x: Any, y: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            y[...] = jnp.exp(x[...])

    def positive(x: Any, y: Any) -> None:
        @pl.when(x[0] > 0)
        def _() -> None:
            y[...] = jnp.exp(x[...])

    block = pl.BlockSpec((SIDE,), lambda i: (i,))
    args = (struct(WIDTH),), struct(WIDTH), (WIDTH // SIDE,), [block], block
    code = code_of(first, *args)
    assert (code.operations, code.undecided) == ({"exponential": SIDE}, 0)
    code = code_of(positive, *args)
    assert (code.operations, code.undecided) == ({"exponential": WIDTH}, 1)


def test_trips_by_data_are_undecided() -> None:
    def until(x: Any, count: Any, y: Any) -> None:
        y[...] = lax.fori_loop(0, count[0], lambda _, z: z * 2, x[...])

    code = code_of(until, (struct(SIDE), struct(1, dtype=jnp.int32)), struct(SIDE))
    assert (code.operations, code.undecided) == ({"other": SIDE}, 1)


def test_rows_at_loaded_indices_and_updates() -> None:
    def picked(index: Any, table: Any, row: Any) -> None:
        row[...] = table[index[0], :]

    code = code_of(
        picked, (struct(1, dtype=jnp.int32), struct(ROWS, WIDTH)), struct(WIDTH), in_specs=None
    )
    assert code.loaded_bytes == (4, 4 * WIDTH, 0)
    assert code.stored_bytes == (0, 0, 4 * WIDTH)

    def added(x: Any, start: Any, total: Any) -> None:
        triton.atomic_add(total, (slice(None),), x[...])

    code = code_of(
        added,
        (struct(SIDE), struct(SIDE)),
        struct(SIDE),
        input_output_aliases={1: 0},
    )
    assert code.updated_bytes == (0, 0, 4 * SIDE)
    assert code.loaded_bytes == (4 * SIDE, 0, 4 * SIDE)


def test_operations_on_elements_hold_no_registers_and_reductions_do() -> None:
    def gated(x: Any, y: Any) -> None:
        wide = x[...]
        y[...] = wide * jax.nn.sigmoid(wide) * jnp.tanh(wide)

    def normed(x: Any, y: Any) -> None:
        share = jnp.exp(x[...])
        y[...] = share / share.sum()

    assert code_of(gated, (struct(WIDTH),), struct(WIDTH)).live_words == WIDTH
    code = code_of(normed, (struct(WIDTH),), struct(WIDTH))
    assert (code.live_words, code.reductions) == (WIDTH, 1)
    assert code.sequence == 3


def test_kernels_of_one_name_and_sizes_whose_code_differs_have_the_mean() -> None:
    def call(factor: float) -> Callable[..., Any]:
        def scaled(x: Any, y: Any) -> None:
            y[...] = jnp.sin(x[...]) if factor > 1 else x[...]

        return pl.pallas_call(
            scaled, out_shape=struct(SIDE), compiler_params=triton.CompilerParams()
        )

    one = jax.make_jaxpr(lambda x: call(2.0)(call(2.0)(x)))(struct(SIDE))
    two = jax.make_jaxpr(lambda x: call(2.0)(call(0.5)(x)))(struct(SIDE))
    (sines,) = kernel_codes(one)
    (both,) = kernel_codes(two)
    threads = 32 * 4
    assert sines.operations == {"sine": threads}
    assert both.operations == {"sine": threads // 2}
    assert both.sequence == 0.5
    assert (both.loaded_bytes, both.stored_bytes) == (sines.loaded_bytes, sines.stored_bytes)


def test_stripping_removes_locations_but_no_operations() -> None:
    def step(x: jax.Array, weight: jax.Array) -> jax.Array:
        return prompt_swiglu(x, weight, programs=1)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((128, 64), (256, 64))]
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        lowered = jax.jit(step).trace(*shapes).lower(lowering_platforms=("cuda",))
    module = lowered._lowering.stablehlo()

    def kernel() -> tuple[bytes, bytes]:
        (call,) = (
            operation
            for operation in kernel_ir.operations(module.operation)
            if operation.name == "stablehlo.custom_call"
        )
        config = ir.DictAttr(call.attributes["mhlo.backend_config"])
        attributes = {
            item.name: ir.StringAttr(item.attr).value_bytes
            for item in config
            if "use" not in item.name and "skip" not in item.name
        }
        return attributes["module"], attributes["kernel_hash"]

    def operations(bytecode: bytes) -> list[str]:
        """Names of the operations, as the runtime reads them."""
        with module.context, ir.Location.unknown():
            module.context.allow_unregistered_dialects = True
            parsed = ir.Module.parse(bytecode)
            read = mosaic._run_serde_pass(parsed, serialize=False)
            return [operation.name for operation in kernel_ir.operations(read.operation)]

    before, _ = kernel()
    name = b"hopper_products.py"
    assert name in before
    kernel_ir.stripped_bytecode(module)
    after, digest = kernel()
    assert name not in after
    assert digest == hashlib.sha256(after).digest()
    assert operations(after) == operations(before)


def refusal(name: str, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> str:
    patch.chdir(STEPS)
    assert main(["check", f"kernel_steps:{name}", "--tuning", "none"]) == 2
    return capfd.readouterr().err


def line_of(text: str) -> str:
    lines = (STEPS / "kernel_steps.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"kernel_steps.py:{number}"


@pytest.mark.parametrize("name", ["whole_k", "in_a_loop_on_two_devices"])
def test_a_kernel_with_too_much_shared_memory_is_named(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refusal(name, capfd, monkeypatch)
    place = line_of("return pl.pallas_call(")
    assert "requested 262144, available: 232448" in error
    assert re.search(rf"the step's Pallas kernels: .*product_128 at {place}", error)
    assert "fix: give the kernel smaller blocks (BlockSpec)" in error


def test_a_kernel_that_jax_cannot_lower_has_the_line_of_its_body(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refusal("unknown_primitive", capfd, monkeypatch)
    assert "Unimplemented primitive in Pallas Triton lowering: sort" in error
    assert f"at {STEPS / line_of('jnp.sort(')} in sorting: out[...] = jnp.sort(a[...])" in error


def test_kernels_are_listed_where_llvm_ends_the_process(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refusal("three_warps", capfd, monkeypatch)
    assert "LLVM Fatal Error while compiling Triton kernel" in error
    line = line_of("return odd_warps(x)")
    assert f"the step's Pallas kernels: odd_warps at {line}; fix: " in error


@pytest.fixture(scope="module", params=[True, False])
def opened(request: pytest.FixtureRequest) -> XlaSubject:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        reference = find_workload(f"stated_steps:workload(stated={request.param})")
        (job,) = jobs_of([reference], CompileSettings(target="h200"))
        return XlaSubject(compile_dump(job, None).dump)


def test_floors_and_predictions_take_what_is_stated(opened: XlaSubject) -> None:
    assert opened.dump is not None
    manifest = opened.dump.manifest
    assert Manifest.from_json(manifest.to_json(), where="manifest") == manifest
    stated = bool(manifest.stated_costs)
    assert manifest.stated_costs == ((ESTIMATE,) if stated else ())
    assert manifest.stated_trips == (TRIPS if stated else None)
    cost, prediction = opened.step_cost, opened.prediction
    assert cost is not None
    assert prediction is not None
    (kernel,) = [item for item in cost.kernels if item.kind == "pick"]
    assert kernel.stated == stated
    assert (kernel.code is None) == stated
    # Its code says the same: one row of the table.
    assert kernel.touched_bytes == ACCESSED_BYTES
    sine = next(item for item in prediction.kernels if item.name == "wrapped_sine")
    assert sine.launches == (TRIPS if stated else 1)
    text = "\n".join(time_section(step_time(opened)).lines)
    assert "read their operands whole" not in text
    assert (f"{TRIPS} are counted, as stated" in text) == stated


def test_the_workload_replaces_estimates_and_differing_ones_are_left_out() -> None:
    step = stated_steps.workload()
    jaxpr = jax.make_jaxpr(step.fn)(*step.args)
    assert stated_costs(jaxpr, {}) == (ESTIMATE,)
    assert stated_costs(jaxpr, {"pick": 9}) == (StatedCost("pick", None, 9),)
    twice = jax.make_jaxpr(
        lambda *args: (step.fn(*args), stated_steps.workload(stated=False).fn(*args))
    )(*step.args)
    assert stated_costs(twice, {}) == (ESTIMATE,)


@pytest.mark.parametrize(
    ("given", "problem"),
    [({"kernel_bytes": {"pick": -1}}, "kernel_bytes of 'pick' is -1"), ({"loop_trips": 0}, "is 0")],
)
def test_other_values_are_refused(given: dict[str, object], problem: str) -> None:
    with pytest.raises(WorkloadError, match=rf"{problem}.*positive integer.*fix:"):
        stated_steps.Workload(name="pick", fn=len, args=(), **given)  # type: ignore[arg-type]
