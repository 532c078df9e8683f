"""Forms of statements in wrapper code."""

import ast


def is_loop_without_pass(statement: ast.stmt, following: ast.stmt | None) -> bool:
    """Whether it is what torch writes before `while X` for a loop that does not run: `if not X`."""
    match statement, following:
        case (
            ast.If(test=ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=name)), orelse=[]),
            ast.While(test=ast.Name(id=loop)),
        ):
            return name == loop
    return False


def plain_names(target: ast.expr) -> list[str] | None:
    """Names in `primals_1, primals_2`; None for another target."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return None
    names = [name.id for name in target.elts if isinstance(name, ast.Name)]
    return names if len(names) == len(target.elts) else None


def target_texts(target: ast.expr) -> list[str]:
    """What a call's results are going to be called."""
    elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    return [ast.unparse(element)[:80] for element in elements]
