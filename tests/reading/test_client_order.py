"""Modules are numbered as XLA numbers them for a client of a device."""

from xlapipe.compiling.client_order import in_client_order
from xlapipe.read.hlo_proto import HloComputationProto, HloModuleProto, HloProto

UPPER = 2**32


def computation(number: int, rows: list[tuple[str, int, list[int], list[int]]]) -> HloComputationProto:
    """A computation whose root is its last instruction.

    Args:
      rows: name, number in the computation, operands' numbers and called computations.
    """
    result = HloComputationProto(name=f"computation_{number}", id=number)
    for name, own, operands, called in rows:
        result.instructions.add(
            name=name,
            id=number * UPPER + own,
            operand_ids=[number * UPPER + operand for operand in operands],
            called_computation_ids=called,
        )
    result.root_id = number * UPPER + rows[-1][1]
    return result


def module() -> HloProto:
    """The entry calls computation 2 before 1; the numbers of its instructions have gaps."""
    content = HloProto()
    content.hlo_module.name = "jit_step"
    content.hlo_module.entry_computation_id = 3
    content.hlo_module.computations.extend(
        [
            computation(1, [("sum", 5, [], [])]),
            computation(2, [("maximum", 4, [], [])]),
            computation(3, [("x", 7, [], []), ("second", 9, [7], [2]), ("first", 8, [7, 9], [1])]),
        ]
    )
    content.hlo_module.computations[2].instructions[2].control_predecessor_ids.append(3 * UPPER + 7)
    return content


def ordered() -> HloModuleProto:
    return HloModuleProto.FromString(in_client_order(module().SerializeToString()))


def test_computations_are_in_the_order_of_their_calls() -> None:
    result = ordered()
    assert [(it.id, it.name) for it in result.computations] == [
        (1, "computation_2"),
        (2, "computation_1"),
        (3, "computation_3"),
    ]
    assert result.entry_computation_id == 3
    assert [list(it.called_computation_ids) for it in result.computations[2].instructions] == [
        [],
        [1],
        [2],
    ]


def test_instructions_have_consecutive_numbers() -> None:
    entry = ordered().computations[2]
    assert [it.id - 3 * UPPER for it in entry.instructions] == [0, 1, 2]
    assert [[it - 3 * UPPER for it in one.operand_ids] for one in entry.instructions] == [
        [],
        [0],
        [0, 1],
    ]
    assert list(entry.instructions[2].control_predecessor_ids) == [3 * UPPER]
    assert entry.root_id == 3 * UPPER + 2


def test_names_and_unknown_fields_are_kept() -> None:
    content = module()
    content.hlo_module.MergeFromString(b"\xa2\x06\x03abc")  # field 100
    result = in_client_order(content.SerializeToString())
    assert HloModuleProto.FromString(result).name == "jit_step"
    assert b"\xa2\x06\x03abc" in result
