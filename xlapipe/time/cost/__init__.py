"""What a step must cost: bytes that its kernels touch, multiply-adds, and the time they need.

Pure functions of a Plan and a Device:

- `elements`: how many elements of its operands an instruction reads;
- `touched`: bytes that a kernel reads and writes, with in-place updates;
- `flops`: floating-point operations of matrix products and convolutions, by type;
- `schedule`: kernels in the order of execution, with trip counts and branches;
- `thunks`: the thunk and the command buffer of each kernel;
- `kernel`: one kernel, with all of it;
- `stated_cost`: what the author of a TPU's kernel states in its call;
- `residency`: which reads the L2 cache can serve;
- `step_cost`: all of it for one plan.
"""

from xlapipe.time.cost.kernel import Kernel, KernelCost
from xlapipe.time.cost.step_cost import StepCost, step_cost

__all__ = ["Kernel", "KernelCost", "StepCost", "step_cost"]
