"""Instructions are numbered as XLA numbers them for a client of a device."""

from xlapipe.compile.xla_patches.client_order import in_client_order, layout_options
from xlapipe.dump.readers.hlo_proto import HloModuleProto, HloProto

UPPER = 3 * 2**32


def module() -> HloProto:
    """The numbers of the entry's instructions have gaps, and another order than post-order."""
    content = HloProto()
    content.hlo_module.name = "jit_step"
    content.hlo_module.entry_computation_id = 3
    entry = content.hlo_module.computations.add(name="main", id=3, root_id=UPPER + 8)
    entry.instructions.add(name="x", id=UPPER + 7)
    entry.instructions.add(name="second", id=UPPER + 9, operand_ids=[UPPER + 7])
    entry.instructions.add(
        name="first",
        id=UPPER + 8,
        operand_ids=[UPPER + 7, UPPER + 9],
        control_predecessor_ids=[UPPER + 9],
        called_computation_ids=[1],
    )
    return content


def test_instructions_have_consecutive_numbers() -> None:
    result = HloModuleProto.FromString(in_client_order(module().SerializeToString()))
    (entry,) = result.computations
    first = entry.instructions[2]
    assert [(it.name, it.id - UPPER) for it in entry.instructions] == [
        ("x", 0),
        ("second", 1),
        ("first", 2),
    ]
    assert [it - UPPER for it in first.operand_ids] == [0, 1]
    assert [it - UPPER for it in first.control_predecessor_ids] == [1]
    assert entry.root_id == UPPER + 2
    assert (entry.id, list(first.called_computation_ids)) == (3, [1])


def test_everything_else_is_kept() -> None:
    content = module()
    content.hlo_module.MergeFromString(b"\xa2\x06\x03abc")  # field 100, which is not in the schema
    result = in_client_order(content.SerializeToString())
    assert HloModuleProto.FromString(result).name == "jit_step"
    assert b"\xa2\x06\x03abc" in result


def test_layouts_are_fields_of_the_compile_options() -> None:
    content = module().hlo_module
    content.host_program_shape.parameters.add(element_type=21).layout.element_size_in_bits = 4
    content.host_program_shape.result.element_type = 4
    argument = content.host_program_shape.parameters[0].SerializeToString()
    result = content.host_program_shape.result.SerializeToString()
    assert layout_options(content.SerializeToString()) == b"".join(
        (b"\x0a", bytes([len(argument)]), argument)  # argument_layouts
    ) + b"".join((b"\x1a", bytes([len(result) + 2]), b"\x12", bytes([len(result)]), result))
