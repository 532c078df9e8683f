"""The seconds of one operation on a TPU's cores."""

from dataclasses import dataclass
from math import ceil

from xlapipe.devices.targets.device import Tpu
from xlapipe.plans import Computation, HloModule, Instruction, Plan, opcodes
from xlapipe.time.collectives.exchange import DATASHEET
from xlapipe.time.cost.flops import VECTOR, Flops, terms_of, type_of
from xlapipe.time.cost.kernel import Kernel
from xlapipe.time.predict.kernel_time import ASSUMED, PUBLISHED, KernelTime, TimePart
from xlapipe.time.predict.scheduled import rates

# Rows of a product that a matrix unit takes at once.
_ROWS = 8
# Each is a step of the unit for functions, and some operations around it.
_FUNCTIONS = frozenset(
    {"cbrt", "divide", "erf", "exponential", "exponential-minus-one", "log"}
    | {"log-plus-one", "logistic", "power", "remainder", "rsqrt", "sqrt", "tanh"}
)
_ANGLES = frozenset({"cosine", "sine", "tan"})
_COMPUTES = opcodes.ELEMENTWISE | opcodes.REDUCES


@dataclass(frozen=True)
class Operations:
    """What the matrix and vector units of a device do in one kernel.

    Attributes:
      flops: of products and convolutions, with the rows and columns that pad their tiles.
      unpadded_flops: without those.
      matrix_seconds: of the products at the full rate of their types.
      vector_operations: on elements.
    """

    flops: float = 0.0
    unpadded_flops: float = 0.0
    matrix_seconds: float = 0.0
    vector_operations: float = 0.0

    def __add__(self, other: "Operations") -> "Operations":
        return Operations(
            self.flops + other.flops,
            self.unpadded_flops + other.unpadded_flops,
            self.matrix_seconds + other.matrix_seconds,
            self.vector_operations + other.vector_operations,
        )


class OperationTimes:
    """The seconds of the kernels of one plan."""

    def __init__(self, plan: Plan, module: HloModule, device: Tpu) -> None:
        self._module = module
        self._device = device
        self._flops = Flops(plan, module)

    def of(self, kernel: Kernel) -> KernelTime:
        """The time of one launch: the longest of its parts, and what the first and last block of
        the arrays add to it.
        """
        cost, device = kernel.cost, self._device
        operations = self.operations(kernel)
        rate = rates.BANDWIDTH_SHARE * device.bandwidth
        memory = TimePart(
            kernel.touched.read_bytes / rate + kernel.touched.written_bytes / rate,
            f"{cost.touched_bytes / 1e6:,.2f} MB of HBM at {rate / 1e12:.2f} TB/s",
        )
        share = rates.KERNEL_SHARE if cost.stated else rates.PEAK_SHARE
        matrix = TimePart(operations.matrix_seconds / share, _matrix_text(operations, share))
        vector = TimePart(
            operations.vector_operations / device.vector_flops,
            f"{operations.vector_operations:,.0f} operations on elements at "
            f"{device.vector_flops / 1e12:.1f} T/s",
        )
        longest, *others = sorted((memory, matrix, vector), key=lambda part: -part.seconds)
        parts = [longest] if longest.seconds else []
        if memory.seconds:
            parts.append(TimePart(rates.START_SECONDS, "first bytes from HBM"))
            blocks = max(1, ceil(cost.touched_bytes / rates.BLOCK_BYTES))
            first = (memory if longest is not memory else others[0]).seconds / blocks
            if first:
                parts.append(TimePart(first, f"first of {blocks:,} blocks"))
        assumed = longest is vector or (longest is matrix and cost.stated)
        basis = ASSUMED if assumed else PUBLISHED
        if longest is matrix and not cost.stated and device.row not in _MEASURED:
            basis = DATASHEET
        return KernelTime(sum(part.seconds for part in parts), tuple(parts), 1.0, basis, 0.0)

    def operations(self, kernel: Kernel) -> Operations:
        site, device = kernel.site, self._device
        stated = kernel.stated
        if stated is not None and stated.products:  # counted in a Pallas kernel
            work = stated.vector_operations + stated.functions * rates.FUNCTION_OPERATIONS
            return sum(
                (
                    self._padded(element, rows, terms, columns, times)
                    for element, rows, terms, columns, times in stated.products
                ),
                Operations(vector_operations=work),
            )
        if kernel.cost.stated:  # by the author
            flops = float(sum((kernel.cost.flops or {}).values()))
            return Operations(flops, flops, flops / device.matrix_flops)
        total = Operations(vector_operations=self._on_elements(site.inner, site.scope))
        for product, scope in self._flops.contracting(site.inner, site.scope):
            if product.contraction is not None:
                total += self._product(product, scope)
        return total

    def _product(self, product: Instruction, scope: Computation) -> Operations:
        """The operations of a product, whose tiles are padded to the size of a matrix unit."""
        terms, elements = max(1, terms_of(product, scope)), product.shape.elements
        first, second = (scope.by_name[name].shape.elements for name in product.operands[:2])
        # With B batches, operands of B M K and B K N elements, and a result of B M N.
        is_product = (product.op_name or "").endswith("dot_general")
        batches = max(1, first * second // (elements * terms**2)) if is_product else 1
        columns = max(1, second // (batches * terms))
        rows = max(1, elements // (batches * columns))
        return self._padded(
            type_of(product, scope), rows, terms, columns, elements / (rows * columns)
        )

    def _padded(
        self, element_type: str, rows: int, terms: int, columns: int, times: float
    ) -> Operations:
        """The operations of so many products of one form, with what pads the tiles."""
        side = self._device.matrix_side
        padded = _up(terms, side) * min(
            _up(columns, side) * _up(rows, _ROWS), _up(rows, side) * _up(columns, _ROWS)
        )
        unpadded = 2.0 * rows * terms * columns * times
        flops = unpadded * max(1.0, padded / (terms * rows * columns))
        return Operations(flops, unpadded, flops / self._rate(element_type))

    def _rate(self, element_type: str) -> float:
        """Operations per second of the matrix units on operands of a type."""
        device = self._device
        if element_type == VECTOR:
            return device.vector_flops
        peak, bfloat16 = device.peak_of(element_type), device.peak_flops["bf16"]
        # At jax's default precision, a product of float32 on a TPU is one product of bfloat16.
        known = peak if peak and element_type[:2] in ("s8", "u8", "f8", "bf") else bfloat16
        return device.matrix_flops * known / bfloat16

    def _on_elements(self, instruction: Instruction, scope: Computation) -> float:
        """Operations on elements, those of fused computations included."""
        if instruction.opcode in opcodes.HAS_BODY:
            bodies = (self._module.computations[name] for name in instruction.called_computations)
            return sum(
                self._on_elements(inner, body) for body in bodies for inner in body.instructions
            )
        if instruction.opcode not in _COMPUTES:
            return 0.0
        elements = instruction.shape.elements
        if instruction.opcode in opcodes.REDUCES:
            operand = scope.by_name.get(instruction.operands[0])
            elements = operand.shape.elements if operand is not None else elements
        weight = rates.FUNCTION_OPERATIONS if instruction.opcode in _FUNCTIONS else 1.0
        weight = rates.ANGLE_OPERATIONS if instruction.opcode in _ANGLES else weight
        return elements * weight


# With published products; the others have the same share of their peak.
_MEASURED = frozenset({"v5e", "v6e", "tpu7x"})


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _matrix_text(operations: Operations, share: float) -> str:
    seconds = operations.matrix_seconds / share
    rate = operations.flops / seconds / 1e12 if seconds else 0.0
    text = f"{operations.flops:,.0f} operations at {rate:,.0f} TFLOP/s"
    more = operations.flops / operations.unpadded_flops - 1 if operations.unpadded_flops else 0.0
    return f"{text}, {more:.0%} more than needed since tiles are padded" if more > 0.01 else text
