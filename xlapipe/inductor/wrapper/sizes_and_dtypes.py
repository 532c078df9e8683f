"""Sizes and dtypes of names in wrapper code, gathered before it is replayed.

`assert_size_stride` states sizes and strides without the dtype, and is after the call that
allocates. Dtypes come from allocations, from the examples of arguments, from the signatures of
Triton kernels, and from operators whose results have the dtype of an operand.
"""

import ast
from collections.abc import Mapping
from itertools import pairwise

from xlapipe.inductor.layouts import Layout, dtype_name
from xlapipe.inductor.operators import ALLOCATORS, VIEWS, base_name, is_extern
from xlapipe.inductor.wrapper.output_code import WrapperCode

# Operand (a number) or dtype of each result of fallback operators that have several results.
_RESULTS: Mapping[str, Mapping[int, int | str]] = {
    "convolution_backward": {0: 0, 1: 2, 2: 2},
    "_scaled_dot_product_cudnn_attention": {0: 0, 1: "float32", 6: "int64", 7: "int64"},
    "_scaled_dot_product_flash_attention": {0: 0, 1: "float32"},
    "_scaled_dot_product_efficient_attention": {0: 0, 1: "float32", 2: "int64", 3: "int64"},
    "_scaled_dot_product_cudnn_attention_backward": {0: 0, 1: 0, 2: 0},
    "_scaled_dot_product_flash_attention_backward": {0: 0, 1: 0, 2: 0},
    "_scaled_dot_product_efficient_attention_backward": {0: 0, 1: 0, 2: 0, 3: 0},
}
_ONE_DTYPE = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "convolution", "bias_addmm", "_convolution"}
)


class Gathered:
    """What the whole module states about its names.

    Args:
      layouts: from other files.

    Attributes:
      asserted: calls of `assert_size_stride(name, sizes, strides)` by name.
      elements: names of the results of a call that returns several, by their place.
      renamed: the name that a name is bound to next, by that name: `buf2 = buf1`.
    """

    def __init__(self, code: WrapperCode, layouts: Mapping[str, Layout]) -> None:
        self._code = code
        self.asserted: dict[str, ast.Call] = {}
        self.dtypes: dict[str, str] = {}
        self.elements: dict[str, dict[int, str]] = {}
        self.renamed: dict[str, str] = {}
        # Pairs of names that have one dtype.
        self._same: list[tuple[str, str]] = []
        self._calls: dict[str, ast.Call] = {}
        for name, layout in (*code.examples.items(), *layouts.items()):
            if isinstance(layout, Layout) and layout.dtype is not None:
                self.dtypes.setdefault(name, layout.dtype)
        for function in code.functions.values():
            for node in ast.walk(function):
                self._visit(node)
        self._spread()

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._assigned(name, value)
            case ast.Call(
                func=ast.Name(id="assert_size_stride"),
                args=[ast.Name(id=name), _, _, *_],
            ):
                self.asserted.setdefault(name, node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=kernel), attr="run")):
                self._launched(kernel, node)
            case ast.Call():
                self._called(node)

    def _spread(self) -> None:
        """Gives each name the dtype of those that it shares one with."""
        for name, places in self.elements.items():
            call = self._calls.get(name)
            for place, element in places.items():
                self._result(call, place, element)
        pending = True
        while pending:
            pending = False
            for one, other in self._same:
                for known, unknown in ((one, other), (other, one)):
                    if known in self.dtypes and unknown not in self.dtypes:
                        self.dtypes[unknown] = self.dtypes[known]
                        pending = True

    def _assigned(self, name: str, value: ast.expr) -> None:
        match value:
            case ast.Name(id=other):
                self._same.append((name, other))
                self.renamed.setdefault(other, name)
            case ast.Subscript(value=ast.Name(id=call), slice=ast.Constant(value=int(place))):
                self.elements.setdefault(call, {})[place] = name
            case ast.Call(func=function, args=arguments):
                operator = dotted(function)
                dtype = stated_dtype(value, 2 if operator in ALLOCATORS else None)
                if dtype is not None:
                    self.dtypes.setdefault(name, dtype)
                self._calls[name] = value
                first = name_of(arguments[0]) if arguments else None
                one_dtype = is_extern(operator) and base_name(operator) in _ONE_DTYPE
                if first is not None and (operator in VIEWS or one_dtype):
                    self._same.append((name, first))

    def _launched(self, kernel: str, call: ast.Call) -> None:
        definition = self._code.kernels.get(kernel)
        if definition is None:
            return
        for parameter, argument in zip(definition.parameters, call.args, strict=False):
            name, dtype = name_of(argument), definition.dtypes.get(parameter)
            # A pointer to 8-bit integers may represent another type of that size.
            if name is not None and dtype is not None:
                self.dtypes.setdefault(name, dtype)

    def _called(self, call: ast.Call) -> None:
        operator = dotted(call.func)
        if not is_extern(operator) or base_name(operator) not in _ONE_DTYPE:
            return
        out = (word.value for word in call.keywords if word.arg == "out")
        self._same.extend(pairwise(filter(None, map(name_of, (*call.args, *out)))))

    def _result(self, call: ast.Call | None, place: int, element: str) -> None:
        if call is None:
            return
        stated = _RESULTS.get(base_name(dotted(call.func)), {}).get(place)
        if isinstance(stated, str):
            self.dtypes.setdefault(element, stated)
        elif stated is not None and stated < len(call.args):
            operand = name_of(call.args[stated])
            if operand is not None:
                self._same.append((element, operand))


def stated_dtype(call: ast.Call, place: int | None = None) -> str | None:
    """The dtype that a call names: `out_dtype=torch.bfloat16`, or an argument at `place`."""
    nodes = [word.value for word in call.keywords if word.arg in ("dtype", "out_dtype")]
    if place is not None:
        nodes += call.args[place : place + 1]
    name = dotted(nodes[0]) if nodes else ""
    return dtype_name(name) if name.startswith("torch.") else None


def dotted(node: ast.expr) -> str:
    """`torch.ops.aten.mm.default` of such an expression; `` for another one."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))


def name_of(node: ast.expr) -> str | None:
    """The name of a tensor, itself or viewed."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Call(func=function, args=[first, *_]) if dotted(function) in VIEWS:
            return name_of(first)
    return None
