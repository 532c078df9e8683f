"""What engines of cuDNN do for a convolution, by their knobs."""

import json

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.plans.hlo import Computation
from xlapipe.time.predict.convolutions import Engine, EngineWork, convolution_of, engine_work

# A convolution of windows of 3 x 3 with 64 channels, as XLA's config for cuDNN has it.
_TEXT = """HloModule small, is_scheduled=true
ENTRY main {{
  x = {x}{{3,2,1,0}} parameter(0)
  w = {w}{{3,2,1,0}} parameter(1)
  ROOT call = ({y}{{3,2,1,0}}, u8[{workspace}]{{0}}) custom-call(x, w), \
window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_o01i->b01f, \
custom_call_target="{target}", backend_config={config}
}}
"""


def scope_of(
    number: int,
    knobs: dict[str, str],
    *,
    x: str = "bf16[8,32,32,64]",
    w: str = "bf16[128,3,3,64]",
    y: str = "bf16[8,32,32,128]",
    workspace: int = 0,
    target: str = "__cudnn$convForward",
) -> Computation:
    algorithm = {
        "algo_id": str(number),
        "is_cudnn_frontend": False,
        "math_type": "DEFAULT_MATH",
        "tuning_knobs": knobs,
        "workspace_size": str(workspace),
    }
    config = json.dumps(
        {"cudnn_conv_backend_config": {"activation_mode": "kNone", "algorithm": algorithm}},
        separators=(",", ":"),
    )
    text = _TEXT.format(x=x, w=w, y=y, workspace=workspace, target=target, config=config)
    module = plan_of_text(text).module
    assert module is not None
    assert module.entry_computation is not None
    return module.entry_computation


def work_of(scope: Computation) -> EngineWork:
    call = scope.by_name["call"]
    convolution = convolution_of(call, scope)
    assert convolution is not None
    return engine_work(convolution, call)


def test_forward_pass_is_a_product_of_positions_and_channels() -> None:
    scope = scope_of(62, {"27": "1", "2": "0"})
    convolution = convolution_of(scope.by_name["call"], scope)
    assert convolution is not None
    assert (convolution.rows, convolution.columns, convolution.terms) == (8192, 128, 9 * 64)
    assert (convolution.groups, convolution.inputs, convolution.outputs) == (1, 64, 128)
    assert convolution.channels_last


def test_gradient_of_weights_sums_over_positions() -> None:
    scope = scope_of(
        *(65, {"27": "1", "2": "5"}),
        w="bf16[8,32,32,128]",
        y="bf16[128,3,3,64]",
        target="__cudnn$convBackwardFilter",
    )
    convolution = convolution_of(scope.by_name["call"], scope)
    assert convolution is not None
    assert (convolution.rows, convolution.columns, convolution.terms) == (128, 9 * 64, 8192)


def test_kernel_in_a_tuple_is_the_element_that_is_read() -> None:
    text = """HloModule small, is_scheduled=true
ENTRY main {
  x = bf16[8,32,32,64]{3,2,1,0} parameter(0)
  made = (f32[3,3,64,128]{3,2,1,0}, bf16[128,3,3,64]{3,2,1,0}) parameter(1)
  w = bf16[128,3,3,64]{3,2,1,0} get-tuple-element(made), index=1
  ROOT call = (bf16[8,32,32,128]{3,2,1,0}, u8[0]{0}) custom-call(x, w), \
window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, \
custom_call_target="__cudnn$convForward"
}
"""
    module = plan_of_text(text).module
    assert module is not None
    scope = module.entry_computation
    assert scope is not None
    plain = scope_of(62, {"27": "1", "2": "0"})
    of_tuple = convolution_of(scope.by_name["call"], scope)
    assert of_tuple == convolution_of(plain.by_name["call"], plain)


@pytest.mark.parametrize(
    ("number", "knobs", "engine"),
    [
        (62, {"13": "1", "18": "0", "2": "0", "25": "0", "27": "8", "28": "1"}, Engine.HOPPER),
        (22, {"13": "1", "14": "3", "18": "1", "2": "5", "23": "0"}, Engine.AMPERE),
        (45, {"14": "4", "2": "0", "5": "3"}, Engine.CUTLASS),
        (48, {"13": "1", "14": "0", "2": "2", "22": "0", "6": "1"}, Engine.REGISTERS),
        (70, {"18": "0", "2": "12"}, Engine.VECTORS),
        (58, {"25": "1"}, Engine.PRODUCT),
        (3, {"11": "2"}, Engine.FOURIER),
        (28, {"2": "4", "3": "0"}, Engine.SIMPLE),
        (0, {}, Engine.DIRECT),
    ],
)
def test_knobs_say_which_engine_it_is(number: int, knobs: dict[str, str], engine: Engine) -> None:
    assert work_of(scope_of(number, knobs)).engine is engine


def test_tiles_at_the_edges_of_a_result_count_whole() -> None:
    work = work_of(scope_of(62, {"27": "1", "2": "3"}))
    assert work.blocks == 8192 / 256
    assert work.block_flops == 2 * 256 * 128 * 9 * 64
    narrow = scope_of(62, {"27": "1", "2": "3"}, w="bf16[96,3,3,64]", y="bf16[8,32,32,96]")
    assert work_of(narrow).blocks == work.blocks


def test_channels_that_are_no_multiple_of_16_bytes_take_further_kernels() -> None:
    aligned = work_of(scope_of(62, {"27": "1", "2": "0"}))
    x, w = "bf16[8,32,32,3]", "bf16[128,3,3,3]"
    padded = work_of(scope_of(62, {"27": "1", "2": "0"}, x=x, w=w, workspace=1 << 20))
    assert aligned.further_kernels == 0
    assert padded.further_kernels > 3
    assert padded.workspace_bytes == 1 << 20
    # Without a workspace, there is no place for a copy.
    assert work_of(scope_of(62, {"27": "1", "2": "0"}, x=x, w=w)).further_kernels == 0


def test_channels_alone_have_no_tiles() -> None:
    work = work_of(scope_of(5, {}, w="bf16[64,3,3,1]", y="bf16[8,32,32,64]"))
    assert work.engine is Engine.OF_CHANNELS
    assert work.blocks == 0
    assert work.serial_seconds > 0


def test_gradients_of_weights_of_channels_alone_add_parts_or_take_tiles_in_turn() -> None:
    target, shapes = "__cudnn$convBackwardFilter", {"w": "bf16[8,32,32,64]", "y": "bf16[64,3,3,1]"}
    parts = work_of(scope_of(16, {}, target=target, workspace=1 << 20, **shapes))
    in_turn = work_of(scope_of(19, {"2": "0"}, target=target, **shapes))
    assert (parts.engine, in_turn.engine) == (Engine.OF_CHANNELS, Engine.OF_CHANNELS_IN_TILES)
    # Of 8,192 positions, each takes 3 ns; 64 channels fit on the multiprocessors at once.
    assert in_turn.serial_seconds == pytest.approx(8192 * 3e-9)
    assert parts.serial_seconds == pytest.approx(3.5e-6 + 8192 * 64 * (1.1e-12 + 9 * 0.12e-12))
    assert (parts.further_kernels, in_turn.further_kernels) == (1, 0)


def test_without_an_algorithm_the_engine_with_the_shortest_rounds_is_assumed() -> None:
    assumed = work_of(scope_of(-1, {}))
    assert (assumed.engine, assumed.as_tuned) == (Engine.HOPPER, True)
    assert not work_of(scope_of(62, {"27": "1"})).as_tuned
    alone = scope_of(-1, {}, w="bf16[64,3,3,1]", y="bf16[8,32,32,64]")
    assert work_of(alone).engine is Engine.OF_CHANNELS


def test_block_waits_for_its_terms_whatever_its_tile() -> None:
    # A block without shared memory reads one term after another: 45 ns each of 16 bits.
    work = work_of(scope_of(36, {"6": "1", "22": "1", "2": "2"}))
    assert work.engine is Engine.REGISTERS
    assert work.block_wait_seconds == pytest.approx(9 * 64 * 45e-9)


def test_groups_of_cutlass_run_one_after_another() -> None:
    knobs = {"5": "1", "14": "3", "2": "5"}
    one = work_of(scope_of(10, knobs, w="bf16[64,3,3,64]", y="bf16[8,32,32,64]"))
    four = work_of(scope_of(10, knobs, w="bf16[64,3,3,16]", y="bf16[8,32,32,64]"))
    assert one.engine is Engine.CUTLASS
    # 128 tiles of 64 rows fill one round for each group, though a tile has room for all of them.
    assert (one.blocks, four.blocks) == (128, 4 * 132)
    assert four.further_kernels > one.further_kernels
    assert four.workspace_share < one.workspace_share == 1


def test_groups_of_long_sums_run_beside_each_other() -> None:
    # 16 positions: 8,192 of 8 channels, of windows of 9 elements and of 1,024.
    knobs = {"5": "3", "14": "5", "2": "1"}
    short = work_of(scope_of(27, knobs, w="bf16[64,3,3,16]", y="bf16[8,32,32,64]"))
    large = {"x": "bf16[2,32,32,64]", "w": "bf16[64,32,32,16]", "y": "bf16[2,32,32,64]"}
    long = work_of(scope_of(27, knobs, **large))
    assert short.engine is long.engine is Engine.CUTLASS
    assert short.at_once < 1.5
    # 16 blocks for each group, which is far less than there is room for.
    assert long.at_once == 4
    assert long.blocks == 4 * 132 * long.at_once
    # Without knobs, no tuner has chosen the engine, which has a kernel for each group too.
    given = work_of(scope_of(11, {}, **large))
    assert given.engine is Engine.SIMPLE
    assert given.at_once == 4
    assert given.further_kernels == 3
    tuned = work_of(scope_of(11, {"2": "4", "3": "0"}, **large))
    assert tuned.at_once == 1


def test_hopper_blocks_wait_for_what_they_read_and_divide_sums_evenly() -> None:
    # Tiles of 128 by 64 of float32: 192 elements of 4 bytes for each term, at 17 TB/s together.
    knobs = {"27": "1", "2": "1"}
    f32 = {"x": "f32[8,32,32,64]", "w": "f32[64,3,3,64]", "y": "f32[8,32,32,64]"}
    forward = work_of(scope_of(62, knobs, **f32))
    assert forward.engine is Engine.HOPPER
    assert forward.block_wait_seconds == pytest.approx(576 * 192 * 4 * 132 / 17e12)
    assert forward.round_seconds == 2.3e-6
