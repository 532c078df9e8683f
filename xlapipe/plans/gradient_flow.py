"""Whether a value depends on a gradient, across fusions, calls, loops and conditionals.

What an optimizer returns does: new weights and new moments. Data, keys, running statistics and
buffers of samples are read and returned by the same step, and do not.
"""

from collections import deque
from collections.abc import Iterator

from xlapipe.plans.dataflow import Path, Value, dataflow_of
from xlapipe.plans.once import once_per_object
from xlapipe.plans.phases import is_backward, is_recomputed
from xlapipe.plans.plan import Plan

_Key = tuple[str, str, Path]


class GradientFlow:
    """Searches from values to operations of the backward pass.

    Args:
      plan: with HLO.
    """

    def __init__(self, plan: Plan) -> None:
        assert plan.module is not None
        self._dataflow = dataflow_of(plan.module)
        self._known: dict[_Key, bool] = {}

    def reaches(self, value: Value) -> bool:
        """Whether an operation of the backward pass makes a value, or something it is made of."""
        reached_from: dict[_Key, _Key | None] = {value.key: None}
        pending = deque([value])
        while pending:
            current = pending.popleft()
            names = current.instruction.op_name or ""
            is_gradient = is_backward(names) and not is_recomputed(names)
            # The barrier of `jax.checkpoint` has this name too, and so has what XLA fuses with it.
            is_gradient &= not names.endswith("optimization_barrier")
            if self._known.get(current.key, is_gradient):
                key: _Key | None = current.key
                while key is not None:
                    self._known[key] = True
                    key = reached_from[key]
                return True
            if current.key not in self._known:
                for operand in self._read(current):
                    if operand.key not in reached_from:
                        reached_from[operand.key] = current.key
                        pending.append(operand)
        self._known.update(dict.fromkeys(reached_from, False))
        return False

    def _read(self, value: Value) -> Iterator[Value]:
        """What a value is another name of or, if an instruction makes it, its operands."""
        if value.instruction.opcode == "fusion":
            yield from self._dataflow.roots(value)
            return
        if value.instruction.opcode == "parameter":
            for scope, caller, _ in self._dataflow.callers(value.computation):
                if caller.opcode == "while":  # what a trip returns is what the next one gets
                    yield Value(scope, caller, value.path)
            passed = self._dataflow.passed_by_caller(value, into_loops=True)
            yield from [passed] if passed is not None else ()
            return
        nearer = list(self._dataflow.one_step_nearer(value))
        yield from nearer or self._dataflow.operands(value._replace(path=()))


gradient_flow = once_per_object(GradientFlow)
