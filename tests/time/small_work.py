"""What a kernel of a small HLO program does."""

from dataclasses import replace

from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.plans.thunks import Thunk
from xlapipe.time.cost import step_cost
from xlapipe.time.predict.kernel_work import work_of
from xlapipe.time.predict.work import KernelWork


def work_of_text(text: str, blocks: int = 0, per_block: int = 0) -> KernelWork:
    """The work of `f` in an HLO module, as an H200 runs it.

    Args:
      blocks: of its launch, of `per_block` threads each; 0 if unknown.
    """
    plan = plan_of_text(text)
    assert plan.module is not None
    cost = step_cost(plan, device_of_target("h200"))
    assert cost is not None
    thunk = None
    if blocks:
        thunk = Thunk("kKernel", 0, f"grid: [{blocks}, 1, 1] threads: [{per_block}, 1, 1]")
    return work_of(replace(cost.kernel_of["f"], thunk=thunk), plan.module)
