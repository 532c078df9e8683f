"""Outputs that no longer have the shape or dtype of the argument with the same keys.

JAX pairs donated leaves with outputs by shape and dtype, not by path. If one output of a tree has
another type, every later leaf is paired with the next output, so the leaves that have no alias or
are copied are not those that changed.
"""

import re

from xlapipe.plan.program import ArgumentLeaf, OutputLeaf, Program

_KEY = re.compile(r"\[(?:'[^']*'|\"[^\"]*\"|[^\]]*)\]|\.\w+")


def changed_output_advice(program: Program, leaf: ArgumentLeaf, aliased: str | None) -> str:
    """The advice to restore the output whose type differs from that of its argument.

    Args:
      leaf: a donated leaf without an alias, or with the alias of another leaf's output.
      aliased: path of the output that is written over `leaf`; None without an alias.

    Returns:
      An empty string if no such output is the reason.
    """
    owners = {
        program.output_path(alias.output_index): argument
        for alias in program.plan.aliases
        for argument in program.arguments
        if argument.parameter_number == alias.parameter_number
    }
    seen: set[str] = set()
    while leaf.path not in seen:
        seen.add(leaf.path)
        output = _same_keys(program, leaf)
        if output is None or output.path == aliased:
            return ""
        if (output.shape, output.dtype) != (leaf.shape, leaf.dtype):
            return (
                f"return {output.path}, now {_type(output)}, as {_type(leaf)} like {leaf.path}: "
                "jax pairs donated leaves with outputs by shape and dtype, in order"
            )
        owner = owners.get(output.path)
        if owner is None:
            return ""
        leaf, aliased = owner, None
    return ""


def _same_keys(program: Program, leaf: ArgumentLeaf) -> OutputLeaf | None:
    """The output whose path ends in the keys of the leaf's path; None if that is ambiguous.

    `out[1][0]['k']` for `cache[0]['k']`. Of several, the shortest path is chosen if the keys
    contain a name: `out[0]['w']`, not `out[1].mu['w']`, for `params['w']`.
    """
    keys = _KEY.findall(leaf.path)
    if not keys:
        return None
    found = [
        (len(path), output)
        for output in program.outputs
        if (path := _KEY.findall(output.path))[-len(keys) :] == keys and len(path) > len(keys)
    ]
    if all(key[1:-1].isdigit() for key in keys) and len(found) > 1:
        return None
    shortest = min((length for length, _ in found), default=0)
    outputs = [output for length, output in found if length == shortest]
    return outputs[0] if len(outputs) == 1 else None


def _type(leaf: ArgumentLeaf | OutputLeaf) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
