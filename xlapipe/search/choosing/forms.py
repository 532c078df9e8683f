"""Other forms of a step than its own: the code to write, and which sizes are compiled."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from math import gcd, prod
from pathlib import Path
from typing import NamedTuple

from xlapipe.compile import lowering
from xlapipe.compile.lowering.forward_graph import FormSite, ForwardGraph
from xlapipe.compile.lowering.policy_change import (
    CAST,
    LOOP,
    LOSS,
    MICROBATCHES,
    VMAP,
    PolicyChange,
)
from xlapipe.errors import XlapipeError
from xlapipe.files.contents import read_plain
from xlapipe.plans.program import Program
from xlapipe.report.units import rounded
from xlapipe.search.candidate import StepChange
from xlapipe.time.recomputed import relative

_PASTED = Path(lowering.__path__[0]) / "pasted"
# Values that are a smaller share of temp do not make the peak.
_LEAST_SHARE = 0.1
_MOST_SITES = 2
# Blocks, of which each has at least so many bytes: smaller ones leave a device idle.
_BLOCKS = (8, 32, 128)
_LEAST_BYTES = 2**20
_LEAST_ITEMS = 16
_TILE = 128
_LEAST_CALLS = 3


class _OfBatch(NamedTuple):
    """A form of a gradient.

    Attributes:
      name: as in the sentence that it is not tried.
      default, batch: in its code, the number of parts and the positions of the batch.
      over_mesh: in its code, how the batch is split, and how it is over a mesh.
      written: how it is called.
      counts: numbers of parts, of 2 examples or more each: a part of one is not proved.
    """

    name: str
    module: str
    default: str
    batch: str
    over_mesh: Mapping[str, str]
    written: str
    text: str
    counts: Sequence[int]


_OF_BATCH = {
    LOSS: _OfBatch(
        "loss in blocks",
        "loss_in_blocks",
        "blocks=4",
        "batch=(1, 2)",
        {
            "parts, size // parts, -1, *": "size // parts, parts, -1, *",
            "jnp.moveaxis(array, axis, 0)": "jnp.moveaxis(array, axis + 1, 0)",
        },
        "{}(loss_in_blocks(…))",
        "loss in {} blocks",
        (4, 16),
    ),
    MICROBATCHES: _OfBatch(
        "microbatches",
        "microbatches",
        "microbatches=4",
        "batch=(1,)",
        {
            "array.reshape(microbatches, -1, *array.shape[1:])": (
                "jnp.moveaxis(array.reshape(-1, microbatches, *array.shape[1:]), 1, 0)"
            )
        },
        "accumulated({}(…))",
        "{} microbatches",
        (2, 4, 8),
    ),
}


def form_changes(program: Program, graph: ForwardGraph) -> Iterator[StepChange]:
    """The forms that can lower the memory of a step.

    Over a mesh, each part of a batch takes every nth example, so that a device's stay on it. What
    a vmap maps may be sharded in other ways.
    """
    devices, large = _large(program, graph)
    allowed = [site for site in large if not site.refused]
    largest_first = sorted(allowed, key=lambda site: -site.largest_bytes)
    for site in [site for site in largest_first if site.kind == VMAP][:_MOST_SITES]:
        if devices == 1:
            yield from _vmap_changes(site)
    for site in allowed:
        if site.kind in _OF_BATCH:
            yield from _batch_changes(site, devices)
    for site in allowed:
        if site.kind == CAST:
            yield _cast_change(site)
    if devices == 1:
        yield from _loop_changes(graph)


def refused_forms(program: Program, graph: ForwardGraph) -> Iterator[str]:
    """Why calls that are large have no other form."""
    devices, large = _large(program, graph)
    texts: dict[tuple[str, str], list[str]] = {}
    for site in large:
        name, refused = "vmap in blocks", site.refused
        if site.kind in _OF_BATCH:
            name = _OF_BATCH[site.kind].name
        elif devices > 1 and site.kind == VMAP:
            refused = "over a mesh, what it maps may be sharded"
        if refused:
            refused = " at ".join(map(relative, refused.split(" at ")))
            texts.setdefault((relative(site.source), refused), []).append(name)
    for (where, refused), names in texts.items():
        yield f"No {' and no '.join(names)} ({where}): {refused}."


def _large(program: Program, graph: ForwardGraph) -> tuple[int, list[FormSite]]:
    """The devices, and sites of which each has a large value, or one of unknown size.

    Microbatches make all values with the batch smaller, not the largest alone.
    """
    devices = prod((program.facts.mesh or {}).values())
    least_bytes = _LEAST_SHARE * program.plan.totals.temp_bytes

    def is_large(site: FormSite) -> bool:
        least = _LEAST_BYTES if site.kind == MICROBATCHES else max(least_bytes, _LEAST_BYTES)
        of_unknown = site.refused and not site.largest_bytes
        return bool(of_unknown) or site.largest_bytes >= devices * least

    return devices, [site for site in graph.forms if is_large(site)]


def _cast_change(site: FormSite) -> StepChange:
    where, size = relative(site.source), rounded(site.largest_bytes)
    code = (
        f"# {where}: convert what is written to {site.dtype}, and not the array that it is\n"
        f"# written into, which is converted back: {size} less to make, with equal bits\n"
    )
    text = f"update in {site.dtype} in place of {size} that are converted back ({where})"
    return StepChange(text, code, policy=PolicyChange(kind=CAST, lines=(site.source,)))


def _loop_changes(graph: ForwardGraph) -> Iterator[StepChange]:
    """Python loops over equal blocks, each as one scan."""
    loops = {
        own.loop.header_source: own for own in graph.repeated if own.loop and own.outer is None
    }
    for header, function in loops.items():
        assert function.loop is not None
        written = _scan_of(header) if function.loop.calls >= _LEAST_CALLS else None
        if written is None:
            continue
        where = relative(header)
        code = f"{_text('scanned')}\n\n# {where}: write `{written}` for the loop\n"
        text = f"scan over {function.loop.calls} × {function.name} in place of the loop ({where})"
        policy = PolicyChange(kind=LOOP, source=code, lines=(header,), statements={header: written})
        yield StepChange(text, code, policy=policy)


def _scan_of(header: str) -> str | None:
    """What is written for a loop of one assignment, which makes a value of itself and the item."""
    path, _, line = header.rpartition(":")
    try:
        module = ast.parse(read_plain(Path(path)))
    except (XlapipeError, SyntaxError):
        return None  # e.g. a cell of a notebook
    loops = (node for node in ast.walk(module) if isinstance(node, ast.For))
    loop = next((node for node in loops if node.lineno == int(line)), None)
    if loop is None or loop.orelse or len(loop.body) != 1:
        return None
    (statement,) = loop.body
    if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
        return None
    carry, item = ast.unparse(statement.targets[0]), ast.unparse(loop.target)
    if not carry.isidentifier():
        return None
    body = f"lambda {carry}, {item}: {ast.unparse(statement.value)}"
    if isinstance(loop.target, ast.Tuple):
        inner = f"lambda {item.strip('()')}: {ast.unparse(statement.value)}"
        body = f"lambda {carry}, items: ({inner})(*items)"
    return f"{carry} = scanned({body}, {carry}, {ast.unparse(loop.iter)})"


def _batch_changes(site: FormSite, devices: int) -> Iterator[StepChange]:
    """A gradient in microbatches, or its loss in blocks of the batch."""
    where, function = relative(site.source), site.function
    form = _OF_BATCH[site.kind]
    size = site.size // devices
    for count in dict.fromkeys(gcd(size, count) for count in form.counts):
        if count == 1 or size < 2 * count:
            continue
        code = _pasted(form.module, form.default, form.default.replace("4", str(count)))
        code = _with(code, form.batch, f"batch={site.batch!r}")
        code = code if site.mean else _with(code, "mean=True", "mean=False")
        for text, over_mesh in form.over_mesh.items() if devices > 1 else ():
            code = _with(code, text, over_mesh)
        written = form.written.format(function)
        code += f"\n\n# {where}: write {written} for {function}(…)\n"
        if site.closed_over:
            names = ", ".join(site.closed_over)
            code += f"# with {names} as last arguments of the function, which closes over them\n"
        text = f"{form.text.format(count)} of {site.size // count:,} ({where})"
        policy = PolicyChange(kind=site.kind, source=code, lines=(site.source,))
        yield StepChange(text, code, policy=policy)


def _vmap_changes(site: FormSite) -> Iterator[StepChange]:
    if site.size < _LEAST_ITEMS:
        return
    for blocks in _BLOCKS:
        if blocks <= site.size and site.largest_bytes >= blocks * _LEAST_BYTES:
            count = _near_divisor(site.size, -(-site.size // blocks))
            where = relative(site.source)
            code = _pasted("vmap_in_blocks", "batch_size=1024", f"batch_size={count}")
            code += (
                f"\n\n# {where}: write vmap_in_blocks for jax.vmap, at column {site.column + 1}\n"
            )
            text = f"vmap in blocks of {count:,} of {site.size:,} ({where})"
            policy = PolicyChange(kind=VMAP, source=code, lines=(site.place,))
            yield StepChange(text, code, policy=policy)


def _pasted(name: str, default: str, value: str) -> str:
    """The text of a function, with another value of a default."""
    return _with(_text(name), default, value)


def _text(name: str) -> str:
    return (_PASTED / f"{name}.py").read_text()


def _with(text: str, default: str, value: str) -> str:
    assert text.count(default) == 1
    return text.replace(default, value)


def _near_divisor(size: int, count: int) -> int:
    """A divisor of a size near a count, which leaves no remainder.

    Without one, a count whose remainder is a block too: the next multiple of what tiles divide.
    """
    near = [n for n in range(-(-3 * count // 4), 4 * count // 3 + 1) if size % n == 0]
    unit = _TILE if count > _TILE else 1
    return min(near, key=lambda n: abs(n - count), default=-(-count // unit) * unit)
