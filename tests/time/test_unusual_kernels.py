"""Kernels that are damaged, empty or renamed: predicted all the same."""

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.dump.readers.contraction import contraction_of_proto, contraction_of_text
from xlapipe.dump.readers.hlo_proto import HloInstructionProto
from xlapipe.plans.hlo import Contraction
from xlapipe.time.cost.kernel import KernelCost
from xlapipe.time.predict.element_operations import ThreadWork
from xlapipe.time.predict.followed_threads import followed
from xlapipe.time.predict.fusion import Fusion
from xlapipe.time.predict.gpu import HOPPER
from xlapipe.time.predict.product_work import is_untuned

_ADD = """HloModule small, is_scheduled=true
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""


def _threads(*lines: str, tiled: bool = False) -> ThreadWork:
    """What the threads of a fusion with such a body do."""
    shapes = [line.split()[2] for line in lines if " parameter(" in line]
    result = next(line for line in lines if line.startswith("ROOT")).split()[3]
    given = "\n".join(f"  p{i} = {shape} parameter({i})" for i, shape in enumerate(shapes))
    names, body = ", ".join(f"p{i}" for i in range(len(shapes))), "\n  ".join(lines)
    module = plan_of_text(
        f"{_ADD}fused {{\n  {body}\n}}\nENTRY main {{\n{given}\n"
        f"  ROOT f = {result} fusion({names}), kind=kLoop, calls=fused\n}}\n"
    ).module
    assert module is not None
    main = module.entry_computation
    assert main is not None
    cost = KernelCost(name="f", kind="kLoop", op_name=None, source=None)
    fusion = Fusion(main.by_name["f"], main, module, cost, 0, 0, HOPPER)
    return followed(fusion, tiled=tiled, elements_of_a_thread=1)


@pytest.mark.parametrize(
    "line",
    [
        "f32[0,8]{1,0} slice(p), slice={[0:0], [0:8]}",
        "f32[0]{0} concatenate(e, e), dimensions={0}",
        "f32[0]{0} negate(e)",
        "f32[] reduce(e, z), dimensions={0}, to_apply=add",
    ],
)
@pytest.mark.parametrize("tiled", [True, False])
def test_empty_arrays_are_no_error(line: str, tiled: bool) -> None:
    given = (
        "p = f32[8,8]{1,0} parameter(0)",
        "e = f32[0]{0} parameter(1)",
        "z = f32[] parameter(2)",
    )
    assert all(number >= 0 for number in _threads(*given, f"ROOT r = {line}", tiled=tiled))


_GATHER = {
    "offset_dims": "{1,2}",
    "collapsed_slice_dims": "{1}",
    "operand_batching_dims": "{}",
    "start_index_map": "{1}",
}


@pytest.mark.parametrize(
    ("opcode", "attributes", "fields", "dims", "starts"),
    [
        ("slice", {"slice": "{[0:64], [4:100:2]}"}, "slice_dimensions", (1, 2), (0, 4)),
        ("pad", {"padding": "0_0x-1_0_3"}, "padding_config", (0, 3), (0, -1)),
        ("reduce-window", {"window": "{size=1x16 pad=0_0x15_0}"}, "window", (1, 16), (0, 15)),
        ("gather", _GATHER, "gather_dimension_numbers", (-1, 0, 2), (1,)),
        ("broadcast", {"dimensions": "{0,2}"}, "dimensions", (0, 2), ()),
        ("iota", {"iota_dimension": "1"}, "dimensions", (1,), ()),
    ],
)
def test_text_and_proto_state_the_same_dimensions(
    opcode: str,
    attributes: dict[str, str],
    fields: str,
    dims: tuple[int, ...],
    starts: tuple[int, ...],
) -> None:
    proto = HloInstructionProto(opcode=opcode)
    if fields == "slice_dimensions":
        for stride, start in zip(dims, starts, strict=True):
            proto.slice_dimensions.add(stride=stride, start=start)
    elif fields == "padding_config":
        for number, low in zip(dims, starts, strict=True):
            proto.padding_config.dimensions.add(interior_padding=number, edge_padding_low=low)
    elif fields == "window":
        for number, low in zip(dims, starts, strict=True):
            proto.window.dimensions.add(size=number, padding_low=low)
    elif fields == "gather_dimension_numbers":
        proto.gather_dimension_numbers.offset_dims.extend([1, 2])
        proto.gather_dimension_numbers.collapsed_slice_dims.append(1)
        proto.gather_dimension_numbers.start_index_map.extend(starts)
    else:
        proto.dimensions.extend(dims)
    stated = Contraction(dims, None, starts)
    assert contraction_of_text(attributes) == contraction_of_proto(proto) == stated


@pytest.mark.parametrize(
    ("tiles", "shape", "untuned"),
    [
        ("1,8,16 1,16,8", "f32[4,64,64]", True),
        ("1,8,16 1,64,32", "f32[4,64,64]", True),
        ("1,8,16 1,64,64", "f32[4,64,64]", False),
        ("1,64,32", "f32[4,64,64]", False),
        ("", "f32[4,64,64]", False),
        # Whatever tiles the other products have, no tuner takes a small one for a large result.
        ("1,8,16 1,128,8", "f32[4,1024,1024]", True),
        ("1,8,16 1,128,8", "f32[4,9,262144]", False),
        ("1,8,16 1,128,8", "f32[4,64,64]", False),
    ],
)
def test_a_plan_is_untuned_if_all_of_its_products_have_default_tiles(
    tiles: str, shape: str, untuned: bool
) -> None:
    shape = f"{shape}{{2,1,0}}"
    quoted = ['","'.join(sizes.split(",")) for sizes in tiles.split()]
    fusions = "".join(
        f"  f{number} = {shape} fusion(p0), kind=kCustom, calls=fused, "
        'backend_config={"fusion_backend_config":{"block_level_fusion_config":{"num_stages":1,'
        f'"num_tiles_per_pid":0,"num_warps":"2","output_tiles":[{{"sizes":["{sizes}"]}}]}},'
        '"kind":"__triton_nested_gemm_fusion"}}\n'
        for number, sizes in enumerate(quoted)
    )
    module = plan_of_text(
        f"HloModule small, is_scheduled=true\nfused {{\n  ROOT q0 = {shape} parameter(0)\n}}\n"
        f"ENTRY main {{\n  p0 = {shape} parameter(0)\n{fusions}"
        f"  ROOT t = ({shape}) tuple(p0)\n}}\n"
    ).module
    assert module is not None
    assert is_untuned(module, HOPPER) == untuned
