"""The memory account adds up, item by item."""

from xlapipe.plan import AllocationKind, BufferAllocation, LogicalBuffer, Plan
from xlapipe.running.memory_account import account

LIVE, PARAMETER = AllocationKind.MAYBE_LIVE_OUT, AllocationKind.PARAMETER
TABLE = (LogicalBuffer("tuple{}", 0, 16, "(f32[75]{0})"),)
PLAN = Plan(
    (
        BufferAllocation(0, 1000, (PARAMETER,), parameter_number=0),
        BufferAllocation(1, 2048, (PARAMETER, LIVE), parameter_number=1),
        BufferAllocation(2, 300, (LIVE,)),
        BufferAllocation(3, 16, (LIVE,), values=TABLE),
        BufferAllocation(4, 512, (AllocationKind.PREALLOCATED_TEMP,)),
        BufferAllocation(5, 4, (AllocationKind.THREAD_LOCAL,)),
        BufferAllocation(6, 100, (AllocationKind.CONSTANT,)),
    )
)


def test_every_item_is_named() -> None:
    found = account(
        PLAN,
        before={"bytes_in_use": 100},
        loaded={"bytes_in_use": 100 + 512},
        # 1024 + 2048, in chunks that are 768 larger.
        with_inputs={"bytes_in_use": 100 + 512 + 3072 + 768},
        # One more output of 512, in a chunk that is 256 larger.
        after={
            "bytes_in_use": 100 + 512 + 3840 + 512 + 256,
            "peak_bytes_in_use": 100 + 512 + 3840 + 512 + 256 + 256 + 512 + 7,
        },
    )
    assert found is not None
    assert found.planned_bytes == 3980
    assert found.not_on_device_bytes == 4
    assert found.constant_bytes == 100
    assert found.rounding_bytes == 24 + 212 + 240
    assert found.executable_bytes == 512
    assert found.input_chunk_bytes == 768
    assert found.output_chunk_bytes == 256
    assert found.unexplained_bytes == 7
    assert found.measured_bytes == (
        found.planned_bytes
        - found.not_on_device_bytes
        - found.constant_bytes
        + found.rounding_bytes
        + found.executable_bytes
        + found.input_chunk_bytes
        + found.output_chunk_bytes
        + found.unexplained_bytes
    )
    assert found.unexplained_share == 7 / found.measured_bytes


def test_no_statistics_no_account() -> None:
    assert account(PLAN, before={}, loaded={}, with_inputs={}, after={}) is None
