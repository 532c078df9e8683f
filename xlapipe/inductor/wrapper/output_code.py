"""`output_code.py`: the module that Inductor writes, parsed with `ast` and never run.

It holds kernels as strings, functions (`call`, and the partitions and subgraphs that it calls), and
`rand_strided` examples of the arguments.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xlapipe.inductor.layouts import Layout, dtype_name
from xlapipe.inductor.text_lines import CUT, TextLines
from xlapipe.inductor.wrapper.triton_source import TritonKernel

_ORIGINS = re.compile(r"# .*Original ATen: \[(.*?)\]")
_SOURCE_NODES = re.compile(r"# .*Source Nodes?: \[(.*?)\]")
_FRAGMENT = re.compile(r"#\s+%(\w+) .*call_function\[")
_MAPPING = re.compile(r"#   (\w+) => ([\w, ]+)$")
_CONSTANT = re.compile(
    r"(\w+) = None  # device\(type='(?P<device>\w+)'[^)]*\) torch\.(?P<dtype>\w+) "
    r"\((?P<shape>[\d, ]*)\) \((?P<strides>[\d, ]*)\)"
)
_ON_DEVICE = re.compile(
    r"empty_strided_(?!cpu)\w+\(|device(?:_str)?='(?!cpu|meta)|triton_\w+\.run\("
)
_ON_HOST = re.compile(r"empty_strided_cpu\(|device='cpu'|cpp_fused")
# What torch writes with `cpp_wrapper`: a module that compiles the C++ source in a string.
_CPP_WRAPPER = re.compile(r"CppWrapperCodeCache|cpp_wrapper_src\b")


@dataclass(frozen=True, slots=True)
class Origin:
    """The comment above a statement: operators and names of nodes that it was made from."""

    operators: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class WrapperCode:
    """One module.

    Attributes:
      text: its lines; line numbers of the syntax tree count from its first line.
      functions: by name, methods of `Runner` among them.
      kernels: Triton kernels by the name that the wrapper calls.
      other_kernels: names of C++ and CUTLASS kernels.
      examples: layouts of arguments, and values of the arguments that are numbers.
      names: every name that the module defines.
      node_mapping: FX nodes by the names of nodes in comments.
    """

    text: TextLines
    functions: Mapping[str, ast.FunctionDef]
    kernels: Mapping[str, TritonKernel]
    other_kernels: Mapping[str, str]
    examples: Mapping[str, Layout | int]
    constants: Mapping[str, Layout]
    names: frozenset[str]
    origins: Mapping[int, Origin] = field(default_factory=dict)
    node_mapping: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def on_host(self) -> bool:
        """Whether it is a CPU graph: it allocates on the host and names no accelerator."""
        lines = self.text.lines
        if any(_ON_DEVICE.search(line) for line in lines):
            return False
        return any(_ON_HOST.search(line) for line in lines)

    def number(self, node: ast.AST) -> int:
        """Number in the file of the line that a statement begins in."""
        return self.text.number(getattr(node, "lineno", 1) - 1)

    def origin(self, node: ast.AST) -> Origin:
        """Text of the comment above a statement; the comment of its kernel's launch."""
        line = getattr(node, "lineno", 0)
        for above in range(line - 1, max(line - 4, 0), -1):
            if above in self.origins:
                return self.origins[above]
        return Origin()


def read_wrapper(text: TextLines) -> WrapperCode:
    """Reads a module."""
    if is_cpp_wrapper(text):
        fix = "fix: dump with torch._inductor.config.cpp_wrapper = False, or give its IR"
        text.fail(0, "wrapper code in Python", "a module that compiles a C++ wrapper", fix)
    tree = text.python()
    defined = tuple(_defined(tree.body))
    functions = {name: function for name, function in defined if function is not None}
    if "call" not in functions:
        text.fail(len(text.lines), "a function `call(args)`", "none in the wrapper code", CUT)
    kernels, others = _kernels(text, tree)
    return WrapperCode(
        text=text,
        functions=functions,
        kernels=kernels,
        other_kernels=others,
        examples=dict(_examples(tree, functions)),
        constants=dict(_constants(text.lines)),
        names=frozenset(name for name, _ in defined),
        origins=_origins(text.lines),
        node_mapping=_mapping(text.lines),
    )


def is_cpp_wrapper(text: TextLines) -> bool:
    """Whether the module holds a C++ wrapper, which is not read."""
    return any(_CPP_WRAPPER.search(line) for line in text.lines[:60])


def _kernels(text: TextLines, tree: ast.Module) -> tuple[dict[str, TritonKernel], dict[str, str]]:
    kernels: dict[str, TritonKernel] = {}
    others: dict[str, str] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id="async_compile"), attr=how), args=arguments
                ),
            ):
                # The name and the source; up to torch 2.0 the source alone.
                texts = [item.value for item in arguments[:2] if isinstance(item, ast.Constant)]
                if how == "triton" and texts and isinstance(texts[-1], str):
                    kernels[name] = _triton(text, statement, name, texts[-1])
                else:
                    others[name] = how
    return kernels, others


def _triton(text: TextLines, statement: ast.Assign, name: str, source: str) -> TritonKernel:
    """A kernel, with the comment above it."""
    origins: tuple[str, ...] = ()
    fragment: list[str] = []
    for index in range(statement.lineno - 2, -1, -1):
        line = text.lines[index]
        if not line.startswith("#"):
            break
        if (match := _ORIGINS.match(line)) is not None:
            origins = _listed(match[1])
        if (match := _FRAGMENT.match(line)) is not None:
            fragment.append(match[1])
    number = text.number(statement.lineno - 1)
    return TritonKernel(name, source, number, origins, tuple(reversed(fragment)))


def _origins(lines: Sequence[str]) -> dict[int, Origin]:
    """Comments inside functions, by line from 1."""
    origins = {}
    for index, line in enumerate(lines, 1):
        if "Original ATen: [" in line and line.lstrip().startswith("#"):
            operators, nodes = _ORIGINS.search(line), _SOURCE_NODES.search(line)
            origins[index] = Origin(
                _listed(operators[1]) if operators is not None else (),
                _listed(nodes[1]) if nodes is not None else (),
            )
    return origins


def _mapping(lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`#   linear_1 => addmm_1, view_5`, in the comments above kernels."""
    operators_of: dict[str, tuple[str, ...]] = {}
    for line in lines:
        match = _MAPPING.match(line) if line.startswith("#   ") else None
        if match is not None:
            operators_of[match[1]] = (*operators_of.get(match[1], ()), *_listed(match[2]))
    return operators_of


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _examples(
    tree: ast.Module, functions: Mapping[str, ast.FunctionDef]
) -> Iterator[tuple[str, Layout | int]]:
    """What `get_args`, `benchmark_compiled_module` or the module as a program would pass."""
    bodies = [statement.body for statement in tree.body if isinstance(statement, ast.If)]
    names = ("benchmark_compiled_module", "get_args")
    bodies += [functions[name].body for name in names if name in functions]
    for body in bodies:
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=target)], value=value):
                    example = _example(value)
                    if example is not None:
                        yield target, example


def _example(value: ast.expr) -> Layout | int | None:
    match value:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Call(func=ast.Name(id="rand_strided"), args=[shape, strides, *_], keywords=words):
            sizes, steps = literal_sizes(shape), literal_sizes(strides)
            named = {word.arg: word.value for word in words}
            dtype, device = named.get("dtype"), named.get("device")
            if sizes is None or steps is None or len(sizes) != len(steps):
                return None
            name = dtype_name(ast.unparse(dtype)) if dtype is not None else None
            where = device.value if isinstance(device, ast.Constant) else "cuda"
            return Layout(name, sizes, steps, str(where))
    return None


def literal_sizes(node: ast.expr) -> tuple[int, ...] | None:
    """`(2048, 4096)` as numbers; None for anything else."""
    if not isinstance(node, (ast.Tuple, ast.List)):
        return None
    values = [item.value for item in node.elts if isinstance(item, ast.Constant)]
    if len(values) != len(node.elts) or not all(type(value) is int for value in values):
        return None
    return tuple(value for value in values if isinstance(value, int))


def _constants(lines: Sequence[str]) -> Iterator[tuple[str, Layout]]:
    for line in lines:
        match = _CONSTANT.match(line)
        if match is not None:
            shape, strides = (
                tuple(map(int, _listed(part))) for part in match.group("shape", "strides")
            )
            if len(shape) == len(strides):
                yield match[1], Layout(dtype_name(match["dtype"]), shape, strides, match["device"])


def _defined(
    statements: Sequence[ast.stmt],
) -> Iterator[tuple[str, ast.FunctionDef | None]]:
    """Names that a module's own statements bind, and the functions among them and in classes."""
    for statement in statements:
        match statement:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    yield alias.asname or alias.name.partition(".")[0], None
            case ast.Assign(targets=targets):
                yield from ((target.id, None) for target in targets if isinstance(target, ast.Name))
            case ast.FunctionDef(name=name):
                yield name, statement
            case ast.ClassDef(name=name, body=body):
                yield name, None
                yield from ((name, inner) for name, inner in _defined(body) if inner is not None)
