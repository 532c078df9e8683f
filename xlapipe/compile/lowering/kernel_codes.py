"""What Pallas kernels for Triton do, counted in their jaxprs.

Some programs of each grid are followed, since what they do may depend on `program_id`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
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
from xlapipe.compile.lowering.jaxprs import KERNELS, equations, pallas_calls, size_bytes
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
    """The stated costs of a traced program's Pallas kernels.

    Kernels of one name and size of results whose estimates differ have none.

    Args:
      kernel_bytes: the workload's bytes by name of the kernel; they replace estimates.
    """
    costs: dict[tuple[str, int | None], set[StatedCost]] = {}
    for cost in _estimates(closed_jaxpr.jaxpr):
        if cost.kernel not in kernel_bytes:
            costs.setdefault((cost.kernel, cost.result_bytes), set()).add(cost)
    stated = [StatedCost(name, None, size) for name, size in kernel_bytes.items()]
    return (*(cost for (cost, *others) in costs.values() if not others), *stated)


def _estimates(jaxpr: Any) -> Iterator[StatedCost]:
    for equation in pallas_calls(jaxpr, KERNELS):
        estimate = equation.params.get("cost_estimate")
        if estimate is not None:
            yield StatedCost(
                equation.params["jaxpr"].debug_info.func_name,
                sum(size_bytes(variable.aval) for variable in equation.outvars),
                int(estimate.bytes_accessed),
                int(estimate.flops),
            )
