"""The memory account: every item, and their sum."""

from tests.shared.hlo_objects import logical_buffer
from xlapipe.plans import AllocationKind, BufferAllocation, Plan
from xlapipe.plans.memory_spaces import HOST_COLOR
from xlapipe.run.run_result import reconcile

LIVE, PARAMETER = AllocationKind.MAYBE_LIVE_OUT, AllocationKind.PARAMETER
TABLE = (logical_buffer("tuple{}", 0, 16, "(f32[75]{0})"),)
PLAN = Plan(
    (
        BufferAllocation(0, 1000, (PARAMETER,), parameter_number=0),
        BufferAllocation(1, 2048, (PARAMETER, LIVE), parameter_number=1),
        BufferAllocation(2, 300, (LIVE,)),
        BufferAllocation(3, 16, (LIVE,), values=TABLE),
        BufferAllocation(4, 512, (AllocationKind.PREALLOCATED_TEMP,)),
        BufferAllocation(5, 4, (AllocationKind.THREAD_LOCAL,)),
        BufferAllocation(6, 100, (AllocationKind.CONSTANT,)),
        BufferAllocation(7, 4096, (LIVE,), color=HOST_COLOR),
    )
)


def test_every_item_is_computed() -> None:
    account = reconcile(
        PLAN,
        before={"bytes_in_use": 100},
        loaded={"bytes_in_use": 100 + 512},
        # Rounded 1024 + 2048, in chunks that are 768 larger.
        with_inputs={"bytes_in_use": 100 + 512 + 3072 + 768},
        # One more output of 512, in a chunk that is 256 larger.
        after={
            "bytes_in_use": 100 + 512 + 3840 + 512 + 256,
            "peak_bytes_in_use": 100 + 512 + 3840 + 512 + 256 + 256 + 512 + 7,
        },
    )
    assert account is not None
    assert account.planned_bytes == 3980
    assert account.not_on_device_bytes == 4
    assert account.constant_bytes == 100
    assert account.rounding_bytes == 24 + 212 + 240
    assert account.executable_bytes == 512
    assert account.input_chunk_bytes == 768
    assert account.output_chunk_bytes == 256
    assert account.unexplained_bytes == 7
    assert account.measured_bytes == (
        account.planned_bytes
        - account.not_on_device_bytes
        - account.constant_bytes
        + account.rounding_bytes
        + account.executable_bytes
        + account.input_chunk_bytes
        + account.output_chunk_bytes
        + account.unexplained_bytes
    )
    assert account.unexplained_share == 7 / account.measured_bytes


def test_without_statistics_there_is_no_account() -> None:
    assert reconcile(PLAN, before={}, loaded={}, with_inputs={}, after={}) is None
