"""The memory account adds up, item by item."""

from xlapipe.memory import account
from xlapipe.plan import AllocationKind, BufferAllocation, Plan

PLAN = Plan(
    (
        BufferAllocation(0, 1000, (AllocationKind.PARAMETER,), parameter_number=0),
        BufferAllocation(1, 512, (AllocationKind.PREALLOCATED_TEMP,)),
        BufferAllocation(2, 4, (AllocationKind.THREAD_LOCAL,)),
        BufferAllocation(3, 300, (AllocationKind.CONSTANT,)),
    )
)


def test_every_item_is_named() -> None:
    found = account(
        PLAN,
        before={"bytes_in_use": 100},
        loaded={"bytes_in_use": 612},
        after={"peak_bytes_in_use": 100 + 512 + 1024 + 512 + 7},
    )
    assert found is not None
    assert found.planned_bytes == 1816
    assert found.rounding_bytes == 24
    assert found.executable_bytes == 512
    assert found.not_on_device_bytes == 4
    assert found.constant_bytes == 300
    assert found.unexplained_bytes == 7
    assert found.measured_bytes == 512 + 1024 + 512 + 7
    assert found.measured_bytes == (
        found.planned_bytes
        + found.rounding_bytes
        + found.executable_bytes
        - found.not_on_device_bytes
        - found.constant_bytes
        + found.unexplained_bytes
    )
    assert found.unexplained_share == 7 / found.measured_bytes


def test_no_statistics_no_account() -> None:
    assert account(PLAN, before={}, loaded={}, after={}) is None
