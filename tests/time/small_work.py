"""What a kernel of a small HLO program does."""

from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.time.cost import step_cost
from xlapipe.time.predict.kernel_work import work_of
from xlapipe.time.predict.work import KernelWork


def work_of_text(text: str) -> KernelWork:
    """The work of `f` in an HLO module, as an H200 runs it."""
    plan = plan_of_text(text)
    cost = step_cost(plan, device_of_target("h200"))
    assert cost is not None and plan.module is not None
    return work_of(cost.kernel_of["f"], plan.module)
