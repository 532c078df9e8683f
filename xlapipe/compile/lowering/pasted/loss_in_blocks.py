import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun


def loss_in_blocks(function, blocks=4, batch=(1, 2)):
    """`function`, a mean over a batch, from its largest matrix product on in blocks of the batch.

    The batch is the first axis of all arrays of the arguments at the positions `batch`. Each block
    computes its gradient too, so that no block is kept or computed again.
    """

    def blocked(*args, **kwargs):
        front, tail, split, tree = cut_at_product(function, blocks, batch, args, kwargs)
        values = dict(enumerate(jaxpr_as_fun(front)(*jax.tree.leaves([args[n] for n in batch]))))
        inputs = [{}, {}, {}, {}]  # differentiated or not, split or not
        for n, value in values.items():
            differentiated = jnp.issubdtype(value.dtype, jnp.inexact)
            kind = inputs[2 * (not differentiated) + (n not in split)]
            kind[n] = in_parts(value, split[n], blocks) if n in split else value

        def of(own, same, own_whole, same_whole):
            given = {**own, **same, **own_whole, **same_whole}
            return jaxpr_as_fun(tail)(*(given[n] for n in range(len(given))))

        def total(own, same, own_whole, same_whole):
            def add(sums, block):
                return [a + b for a, b in zip(sums, of(block[0], same, block[1], same_whole))], None

            zeros = [jnp.zeros(value.shape, value.dtype) for value in tail.out_avals]
            sums, _ = jax.lax.scan(add, zeros, (own, own_whole))
            return [value / blocks for value in sums]

        def with_gradient(own, same, own_whole, same_whole):
            def add(sums, block):
                results, pull = jax.vjp(lambda a, b: of(a, b, block[1], same_whole), block[0], same)
                loss, *others = results
                of_block, of_same = pull([jnp.ones_like(loss), *map(jnp.zeros_like, others)])
                new = jax.tree.map(lambda a, b: a + b.astype(a.dtype), sums, (results, of_same))
                return new, of_block

            zeros = jax.tree.map(
                lambda a: jnp.zeros(a.shape, jnp.promote_types(a.dtype, jnp.float32)),
                ([*tail.out_avals], same),
            )
            (results, of_same), of_own = jax.lax.scan(add, zeros, (own, own_whole))
            results = [(a / blocks).astype(b.dtype) for a, b in zip(results, tail.out_avals)]
            of_same = jax.tree.map(lambda a, b: (a / blocks).astype(b.dtype), of_same, same)
            return results, (jax.tree.map(lambda a: a / blocks, of_own), of_same)

        def backward(gradients, cotangents):
            own, same = jax.tree.map(lambda a: a * cotangents[0].astype(a.dtype), gradients)
            return own, same, None, None

        mean = jax.custom_vjp(total)
        mean.defvjp(with_gradient, backward)
        return jax.tree.unflatten(tree, mean(inputs[0], inputs[1], inputs[2], inputs[3]))

    return blocked


def in_parts(array, axis, parts):
    shape = array.shape
    array = array.reshape(*shape[:axis], parts, -1, *shape[axis + 1 :])
    return jnp.moveaxis(array, axis, 0)


def cut_at_product(function, blocks, batch, args, kwargs):
    """The function of the batch until its largest matrix product, and the rest of a block."""

    def of(values):
        own = dict(enumerate(jax.tree.map(lambda leaf: leaf, args)))
        return function(*{**own, **dict(zip(batch, values))}.values(), **kwargs)

    def part(leaf):
        return jax.ShapeDtypeStruct((leaf.shape[0] // blocks, *leaf.shape[1:]), leaf.dtype)

    values = [args[n] for n in batch]
    whole, tree = jax.make_jaxpr(of, return_shape=True)(values)
    block = jax.make_jaxpr(of)(jax.tree.map(part, values))
    a, b = whole.jaxpr, block.jaxpr
    products = [n for n, equation in enumerate(a.eqns) if is_product(equation)]
    start = max(products, key=lambda n: a.eqns[n].outvars[0].aval.size)
    same = dict(zip([*b.constvars, *b.invars], [*a.constvars, *a.invars]))
    for x, y in zip(b.eqns[:start], a.eqns[:start]):
        same.update(zip(x.outvars, y.outvars))
    read = [*(v for equation in b.eqns[start:] for v in equation.invars), *b.outvars]
    read = [v for v in dict.fromkeys(v for v in read if not isinstance(v, Literal)) if v in same]
    names = {"arg_names": ("",) * len(a.invars), "result_paths": ("",) * len(read)}
    about = a.debug_info._replace(**names)
    front = a.replace(eqns=a.eqns[:start], outvars=[same[v] for v in read], debug_info=about)
    names = {"arg_names": ("",) * len(read), "result_paths": ("",) * len(b.outvars)}
    about = b.debug_info._replace(**names)
    tail = b.replace(eqns=b.eqns[start:], constvars=[], invars=read, debug_info=about)
    split = {}
    for n, v in enumerate(read):
        for axis, sizes in enumerate(zip(v.aval.shape, same[v].aval.shape)):
            if sizes[0] != sizes[1]:
                split[n] = axis
    front, tail = ClosedJaxpr(front, whole.consts), ClosedJaxpr(tail, [])
    return front, tail, split, jax.tree.structure(tree)


def is_product(equation):
    inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
    equations = (equation,) if inner is None else inner.eqns
    return any(e.primitive.name == "dot_general" for e in equations)
