"""What Pallas kernels for Triton do, counted in their jaxprs.

Some programs of each grid are followed, since what they do may depend on `program_id`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any

import numpy as np
from jax.extend.core import Literal, jaxprs_in_params

from xlapipe.compile.lowering.followed_program import (
    Count,
    DeviceArray,
    FollowedProgram,
    add_counts,
)
from xlapipe.compile.lowering.jaxprs import (
    KERNELS,
    calls_with_constants,
    equations,
    pallas_calls,
    size_bytes,
)
from xlapipe.plans.kernel_code import KernelCode, StatedCost

_LOADS = {"get", "masked_load"}
# A loop or product has all elements of its operands and results at once; other operations are
# computed for one element after another, and so are reductions of what nothing else needs.
_WHOLE = {"dot_general", "while", "scan", "cond"}
_REDUCTIONS, _SCANS = ("reduce_", "arg"), "cum"
_BITS_OF_A_REGISTER = 32
_WARPS, _STAGES = 4, 3  # jax's own
_THREADS_OF_A_WARP = 32
_MOVED = ("loaded_bytes", "stored_bytes", "updated_bytes")
_OF_A_PROGRAM = ("steps", "ordered_steps", "longest_steps", "sequence", "reductions")
# A jaxpr that another version of jax writes in another way must not end a compile.
_OF_ANOTHER_FORM = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
# Programs of a grid that are followed, evenly spread.
_FOLLOWED = 32
# The same of a kernel for TPUs, and the step between them, as a share of the grid.
_COUNTED, _GOLDEN = 256, 0.6180339887


def kernel_codes(closed_jaxpr: Any) -> tuple[KernelCode, ...]:
    """The code of each of a traced program's Pallas kernels for Triton, once.

    Kernels of one name and sizes whose code differs, e.g. in constants of a layer, cannot be
    distinguished: each has the least that any of them moves and multiplies, and the mean of their
    other work.
    """
    codes: dict[tuple[Any, ...], list[KernelCode]] = {}
    for code in _codes(closed_jaxpr.jaxpr):
        same = codes.setdefault((code.kernel, code.operand_bytes, code.result_bytes), [])
        if code not in same:
            same.append(code)
    return tuple(map(_together, codes.values()))


def _together(codes: list[KernelCode]) -> KernelCode:
    """One code for several of one name and sizes."""
    first = codes[0]
    if len(codes) == 1:
        return first

    def least(name: str) -> tuple[int, ...]:
        return tuple(map(min, zip(*(getattr(code, name) for code in codes), strict=True)))

    def mean(name: str) -> float:
        return round(sum(float(getattr(code, name)) for code in codes) / len(codes), 2)

    opcodes = {opcode for code in codes for opcode in code.operations}
    totals = {opcode: sum(code.operations.get(opcode, 0) for code in codes) for opcode in opcodes}
    types = set.intersection(*(set(code.flops) for code in codes))
    moved: dict[str, Any] = {name: least(name) for name in _MOVED}
    of_a_program: dict[str, Any] = {name: mean(name) for name in _OF_A_PROGRAM}
    return replace(
        first,
        **moved,
        **of_a_program,
        operations={name: total // len(codes) for name, total in sorted(totals.items())},
        flops={name: min(code.flops[name] for code in codes) for name in sorted(types)},
        undecided=max(code.undecided for code in codes),
    )


def _codes(jaxpr: Any) -> Iterator[KernelCode]:
    for equation in pallas_calls(jaxpr):
        compiler = equation.params["compiler_params"] or _triton_params()
        # The others are not for Triton.
        if hasattr(compiler, "num_warps") and not equation.params["interpret"]:
            try:
                yield _code(equation, compiler)
            except _OF_ANOTHER_FORM:
                continue  # its code stays unknown, which the prediction states


def _triton_params() -> Any:
    from jax.experimental.pallas.triton import CompilerParams  # slow, and most steps have no kernel

    return CompilerParams()


def _code(equation: Any, compiler: Any) -> KernelCode:
    kernel, mapping = equation.params["jaxpr"], equation.params["grid_mapping"]
    operands = [size_bytes(v.aval) for v in equation.invars[mapping.num_dynamic_grid_bounds :]]
    results = [size_bytes(variable.aval) for variable in equation.outvars]
    arrays = [DeviceArray(position) for position in range(len(operands) + len(results))]
    arguments = [*arrays, *[None] * (len(kernel.invars) - len(arrays))]
    grid = [size if isinstance(size, int) else 1 for size in mapping.grid]
    programs = max(1, prod(grid))
    followed = min(programs, _FOLLOWED) if _decides(kernel) else 1
    warps = compiler.num_warps or _WARPS
    total: Count = Counter({("undecided", ""): mapping.num_dynamic_grid_bounds * programs})
    longest = 0.0
    for number in range(followed):
        count: Count = Counter()
        place = (2 * number + 1) * programs // (2 * followed)
        ids = [int(index) for index in np.unravel_index(place, grid)]
        FollowedProgram(ids, grid, warps * _THREADS_OF_A_WARP, count).run(kernel, arguments)
        longest = max(longest, count["steps", ""])
        for position, block in enumerate(kernel.invars[: len(arrays)]):
            # What a program loads again is in its L1 cache.
            if ("loaded", position) in count:
                count["loaded", position] = min(count["loaded", position], size_bytes(block.aval))
        add_counts(total, count, programs / followed)

    def of(what: str) -> dict[Any, int]:
        return {key: round(number) for (kind, key), number in total.items() if kind == what}

    def of_one(what: str) -> float:
        return round(total[what, ""] / programs, 2)

    loaded, stored, updated = of("loaded"), of("stored"), of("updated")
    return KernelCode(
        kernel=kernel.debug_info.func_name,
        operand_bytes=tuple(operands),
        result_bytes=tuple(results),
        loaded_bytes=tuple(loaded.get(position, 0) for position in range(len(arrays))),
        stored_bytes=tuple(stored.get(position, 0) for position in range(len(arrays))),
        updated_bytes=tuple(updated.get(position, 0) for position in range(len(arrays))),
        scattered_updates=round(total["scattered", ""]),
        programs=programs,
        warps=warps,
        stages=compiler.num_stages or _STAGES,
        operations=of("operations"),
        flops=of("flops"),
        steps=of_one("steps"),
        ordered_steps=of_one("ordered"),
        longest_steps=longest,
        sequence=of_one("sequence"),
        reductions=of_one("reductions"),
        live_words=live_words(kernel),
        undecided=ceil(of_one("undecided")),
    )


def _decides(jaxpr: Any) -> bool:
    """Whether what a program does may depend on its place in the grid."""
    return any(equation.primitive.name in ("while", "cond") for equation in equations(jaxpr))


def live_words(jaxpr: Any) -> int:
    """The most 32-bit words of arrays that are live at once, also in loops and branches.

    A product that is only added to a sum takes no registers beside the sum's.
    """
    last: dict[Any, int] = {}
    users: dict[Any, list[Any]] = {}
    for index, equation in enumerate(jaxpr.eqns):
        for variable in _variables(equation.invars):
            last[variable] = index
            users.setdefault(variable, []).append(equation)
    for variable in _variables(jaxpr.outvars):
        last[variable] = len(jaxpr.eqns)
        users.setdefault(variable, []).append(None)
    words = {variable: _words(variable.aval) for variable in jaxpr.invars}
    live = most = sum(words.values())
    for index, equation in enumerate(jaxpr.eqns):
        operands = set(_variables(equation.invars))
        live -= sum(words.get(variable, 0) for variable in operands if last[variable] == index)
        # A loop holds those of its operands that are needed after it.
        shared = sum(words.get(variable, 0) for variable in operands if last[variable] > index)
        inside = max(map(live_words, jaxprs_in_params(equation.params)), default=0)
        most = max(most, live - shared + inside)
        for variable in equation.outvars:
            words[variable] = _words(variable.aval) if _held(equation, users, variable) else 0
            live += words[variable]
        most = max(most, live)
    return most


def _held(equation: Any, users: dict[Any, list[Any]], variable: Any) -> bool:
    """Whether all elements of a result are there at once."""
    later = users.get(variable, [])
    if equation.primitive.name == "dot_general" and len(later) == 1 and later[0] is not None:
        return bool(later[0].primitive.name != "add")
    if not later or _is_whole(equation) or equation.primitive.name in _LOADS:
        return bool(later)
    if any(user is None or _is_whole(user) for user in later):
        return True
    reduced = any(user.primitive.name.startswith(_REDUCTIONS) for user in later)
    return reduced and len(later) > 1


def _is_whole(equation: Any) -> bool:
    name = equation.primitive.name
    return name in _WHOLE or name.startswith(_SCANS)


def _variables(atoms: Any) -> Iterator[Any]:
    return (atom for atom in atoms if not isinstance(atom, Literal))


def _words(aval: Any) -> int:
    """Registers of a value; none of references, numbers and conditions."""
    shape: tuple[int, ...] = getattr(aval, "shape", ())
    dtype = getattr(aval, "dtype", None)
    if hasattr(aval, "inner_aval") or not shape or dtype is None or dtype == np.bool_:
        return 0
    return -(-prod(shape) * int(dtype.itemsize) * 8 // _BITS_OF_A_REGISTER)


def stated_costs(closed_jaxpr: Any, kernel_bytes: Mapping[str, int]) -> tuple[StatedCost, ...]:
    """The stated costs of a traced program's Pallas kernels, and those counted in kernels for TPUs.

    Kernels of one name and size of results whose estimates differ have none; of those that are
    counted, it is the mean. `kernel_bytes`, the workload's by name of a kernel, replace estimates.
    """
    costs: dict[tuple[str, int | None], list[StatedCost]] = {}
    for cost in _estimates(closed_jaxpr):
        if cost.kernel not in kernel_bytes:
            costs.setdefault((cost.kernel, cost.result_bytes), []).append(cost)
    stated = [StatedCost(name, None, size) for name, size in kernel_bytes.items()]
    means = map(_of_all, costs.values())
    return (*(cost for cost in means if cost is not None), *stated)


def _of_all(costs: list[StatedCost]) -> StatedCost | None:
    first = costs[0]
    if all(cost == first for cost in costs):
        return first
    if not all(cost.products for cost in costs):
        return None
    products: Counter[tuple[str, int, int, int]] = Counter()
    for cost in costs:
        products.update({product[:4]: product[4] for product in cost.products})
    return replace(
        first,
        flops=sum(cost.flops or 0 for cost in costs) // len(costs),
        products=tuple((*key, count // len(costs)) for key, count in products.items()),
        vector_operations=sum(cost.vector_operations for cost in costs) // len(costs),
        functions=sum(cost.functions for cost in costs) // len(costs),
    )


def _estimates(closed_jaxpr: Any) -> Iterator[StatedCost]:
    for equation in pallas_calls(closed_jaxpr.jaxpr, KERNELS):
        if (stated := _stated(equation)) is not None:
            yield stated
    counted: dict[tuple[Any, ...], StatedCost] = {}
    for equation, values in calls_with_constants(closed_jaxpr.jaxpr, closed_jaxpr.consts):
        compiler = equation.params["compiler_params"]
        if _stated(equation) is None and hasattr(compiler, "dimension_semantics"):
            constants = (value.tobytes() for value in values if value is not None)
            kernel, mapping = equation.params["jaxpr"], equation.params["grid_mapping"]
            key = (kernel.debug_info.func_name, str(kernel.in_avals), mapping.grid, *constants)
            try:
                if key not in counted:
                    counted[key] = _counted(equation, values)
            except _OF_ANOTHER_FORM:
                continue  # its cost stays unknown, which the estimate states
            yield counted[key]


def _stated(equation: Any) -> StatedCost | None:
    """What the author states; None also of what cannot be."""
    estimate = equation.params.get("cost_estimate")
    if estimate is None:
        return None
    stated = StatedCost(
        equation.params["jaxpr"].debug_info.func_name,
        sum(size_bytes(variable.aval) for variable in equation.outvars),
        int(estimate.bytes_accessed),
        int(estimate.flops),
    )
    return stated if stated.is_possible else None


def _counted(equation: Any, values: Sequence[Any]) -> StatedCost:
    """What a kernel for TPUs multiplies, counted in its code; what it decides by constants too."""
    kernel, mapping = equation.params["jaxpr"], equation.params["grid_mapping"]
    dynamic = mapping.num_dynamic_grid_bounds
    operands, results = equation.invars[dynamic:], equation.outvars
    arrays = [DeviceArray(at, value) for at, value in enumerate(values[dynamic:])]
    arrays += [DeviceArray(len(operands) + at) for at in range(len(results))]
    arguments = [*arrays, *[None] * (len(kernel.invars) - len(arrays))]
    # What jax.vmap adds to a grid, the kernel does not see.
    sizes = [size if isinstance(size, int) else 1 for size in mapping.grid]
    grid = [size for axis, size in enumerate(sizes) if axis not in mapping.vmapped_dims]

    texts: dict[int, str] = {}

    def counted(ids: Sequence[int | None]) -> Count:
        count: Count = Counter()
        FollowedProgram(ids, grid, 1, count, texts).run(kernel, arguments)
        return count

    # Along other axes of the grid, all programs do the same.
    middle = [size // 2 for size in grid]
    decided = counted(middle)["undecided", ""] if _decides(kernel) else 0
    deciding = [
        axis
        for axis in range(len(grid))
        if _decides(kernel)
        and counted([*middle[:axis], None, *middle[axis + 1 :]])["undecided", ""] > decided
    ]
    places = max(1, prod(grid[axis] for axis in deciding))
    followed = min(places, _COUNTED)
    total: Count = Counter()
    for number in range(followed):
        # Evenly spread, with no period that a dimension of the grid could have.
        place = int(places * ((number + 0.5) * _GOLDEN % 1)) if followed < places else number
        ids = [0] * len(grid)
        for axis in reversed(deciding):
            place, ids[axis] = divmod(place, grid[axis])
        add_counts(total, counted(ids), max(1, prod(sizes)) / followed)
    of_elements = {key: round(n) for (kind, key), n in total.items() if kind == "operations"}
    cheap = {key: number for key, number in of_elements.items() if key in ("other", "convert")}
    return StatedCost(
        kernel.debug_info.func_name,
        sum(size_bytes(variable.aval) for variable in results),
        sum(size_bytes(variable.aval) for variable in (*operands, *results)),
        round(sum(number for (kind, _), number in total.items() if kind == "flops")),
        products=tuple(
            (*key, round(number)) for (kind, key), number in total.items() if kind == "products"
        ),
        vector_operations=sum(cheap.values()),
        functions=sum(number for key, number in of_elements.items() if key not in cheap),
    )
