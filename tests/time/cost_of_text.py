"""Costs of small modules in text, for the tests of `xlapipe.time.cost`."""

from pathlib import Path

from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import Device
from xlapipe.time.cost import KernelCost, StepCost, step_cost

# One byte takes a microsecond, and so does one operation.

SLOW = Device(
    name="slow",
    row=None,
    cores=132,
    bandwidth=10**6,
    l2_bytes=0,
    vector_flops=1e6,
    peak_flops={"bf16": 1e6, "tf32": 5e5, "f8": 2e6},
    link_bandwidth=10**5,
)


def cost_of(text: str, memory: dict[str, int] | None = None, l2_bytes: int = 0) -> StepCost:
    speeds = Device(
        name="slow",
        row=None,
        cores=132,
        bandwidth=SLOW.bandwidth,
        l2_bytes=l2_bytes,
        vector_flops=SLOW.vector_flops,
        peak_flops=SLOW.peak_flops,
        link_bandwidth=SLOW.link_bandwidth,
    )
    cost = step_cost(plan_of_text(text, memory), speeds)
    assert cost is not None
    return cost


def kernel(cost: StepCost, name: str) -> KernelCost:
    return next(kernel for kernel in cost.kernels if kernel.name == name)


def module(entry: str, *computations: str) -> str:
    return "HloModule m, is_scheduled=true\n\n" + "\n".join(
        (*computations, "ENTRY %main (p: f32[]) -> f32[] {", entry.strip("\n"), "}", "")
    )


ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


TEXTS = Path(__file__).with_name("texts")
LOOP = (TEXTS / "cost_loop_hlo.txt").read_text(encoding="utf-8")


def loop_entry(config: str) -> str:
    return f"""
  %start = (s32[], f32[100]{{0}}) parameter(0)
  ROOT %w = (s32[], f32[100]{{0}}) while(%start), condition=%condition, body=%body{config}
"""
