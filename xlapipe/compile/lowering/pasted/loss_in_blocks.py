import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun


def loss_in_blocks(function, blocks=4, batch=(1, 2), mean=True):
    """`function` of a batch from its largest matrix product on in blocks of the batch.

    The batch is the first axis of all arrays of the arguments at the positions `batch`. The result
    is the mean of those of the blocks, else their sum; sums of the whole batch, as of a mask, are
    computed before. Each block computes its gradient too, so that no block is kept or computed
    again.
    """
    parts = blocks if mean else 1

    def blocked(*args, **kwargs):
        front, tail, split, tree = cut_at_product(function, blocks, batch, args, kwargs)
        leaves = jax.tree.leaves([args[n] for n in batch])
        size, values = len(leaves[0]), dict(enumerate(jaxpr_as_fun(front)(*leaves)))
        inputs = [{}, {}, {}, {}]  # differentiated or not, split or not
        for n, value in values.items():
            differentiated = jnp.issubdtype(value.dtype, jnp.inexact)
            kind = inputs[2 * (not differentiated) + (n not in split)]
            kind[n] = in_parts(value, split[n], blocks, size) if n in split else value

        def of(own, same, own_whole, same_whole):
            given = {**own, **same, **own_whole, **same_whole}
            return evaluated(tail, [given[n] for n in range(len(given))])

        def total(own, same, own_whole, same_whole):
            def add(sums, block):
                return [a + b for a, b in zip(sums, of(block[0], same, block[1], same_whole))], None

            zeros = [jnp.zeros(value.shape, value.dtype) for value in tail.out_avals]
            sums, _ = jax.lax.scan(add, zeros, (own, own_whole))
            return [value / parts for value in sums]

        def with_gradient(own, same, own_whole, same_whole):
            def add(sums, block):
                results, pull = jax.vjp(lambda a, b: of(a, b, block[1], same_whole), block[0], wide)
                loss, *others = results
                of_block, of_same = pull([jnp.ones_like(loss), *map(jnp.zeros_like, others)])
                new = jax.tree.map(lambda a, b: a + b.astype(a.dtype), sums, (results, of_same))
                return new, of_block

            # Their gradients are added in float32.
            wide = jax.tree.map(lambda a: a.astype(jnp.promote_types(a.dtype, jnp.float32)), same)
            zeros = jax.tree.map(
                lambda a: jnp.zeros(a.shape, jnp.promote_types(a.dtype, jnp.float32)),
                ([*tail.out_avals], same),
            )
            (results, of_same), of_own = jax.lax.scan(add, zeros, (own, own_whole))
            results = [(a / parts).astype(b.dtype) for a, b in zip(results, tail.out_avals)]
            of_same = jax.tree.map(lambda a, b: (a / parts).astype(b.dtype), of_same, same)
            return results, (jax.tree.map(lambda a: a / parts, of_own), of_same)

        def backward(gradients, cotangents):
            own, same = jax.tree.map(lambda a: a * cotangents[0].astype(a.dtype), gradients)
            return own, same, None, None

        of_all = jax.custom_vjp(total)
        of_all.defvjp(with_gradient, backward)
        return jax.tree.unflatten(tree, of_all(inputs[0], inputs[1], inputs[2], inputs[3]))

    return blocked


def evaluated(closed, inputs):
    """The outputs of a jaxpr, whose gradient is as a person would write it; inputs may be wider.

    Picking a logit is a sum over all of them, whose gradient scatters nothing; the gradient of a
    product of bfloat16 to float32 is rounded to bfloat16, but that of a wider input.
    """
    jaxpr = closed.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *inputs]))

    def given(v):
        return v.val if isinstance(v, Literal) else values[v]

    def read(v):
        is_wide = not isinstance(v, Literal) and values[v].dtype != v.aval.dtype
        return values[v].astype(v.aval.dtype) if is_wide else given(v)

    for e in jaxpr.eqns:
        own, dtypes = [read(v) for v in e.invars], {v.aval.dtype for v in e.invars}
        is_narrow = e.primitive.name == "dot_general" and dtypes == {jnp.dtype(jnp.bfloat16)}
        if e.primitive.name in ("jit", "pjit"):
            results = evaluated(e.params["jaxpr"], [given(v) for v in e.invars])
        elif is_narrow and e.outvars[0].aval.dtype == jnp.float32:
            results = [product(e.params, *(given(v) for v in e.invars))]
        elif e.primitive.name == "gather" and picks_last(e):
            results = [picked(*own)]
        else:
            read_vars = list(dict.fromkeys(v for v in e.invars if not isinstance(v, Literal)))
            alone = ClosedJaxpr(part_of(jaxpr, [], read_vars, e.outvars, [e]), [])
            results = jaxpr_as_fun(alone)(*map(read, read_vars))
        values.update(zip(e.outvars, results))
    return [read(v) for v in jaxpr.outvars]


def product(params, a, b):
    (contracted, batch), dtypes = params["dimension_numbers"], (a.dtype, b.dtype)

    def forward(*values):
        narrow = [value.astype(jnp.bfloat16) for value in values]
        return jax.lax.dot_general(*narrow, **params), narrow

    def gradient_of(side, saved, gradient):
        other, own_axes, axes = saved[1 - side], contracted[side], contracted[1 - side]
        free = [n for n in range(other.ndim) if n not in (*axes, *batch[1 - side])]
        ndim, count = saved[side].ndim, len(batch[side])
        own_free = [n for n in range(ndim) if n not in (*own_axes, *batch[side])]
        start = count + (0 if side else len(own_free))
        pairs = (range(start, start + len(free)), free), (range(count), batch[1 - side])
        found = jax.lax.dot_general(gradient, other, pairs, preferred_element_type=dtypes[side])
        last = [own for _, own in sorted(zip(axes, own_axes))]
        order = [*batch[side], *own_free, *last]
        return found.transpose([order.index(n) for n in range(ndim)])

    def backward(saved, gradient):
        gradient = gradient.astype(jnp.bfloat16)
        return tuple(gradient_of(side, saved, gradient) for side in (0, 1))

    of = jax.custom_vjp(lambda a, b: forward(a, b)[0])
    of.defvjp(forward, backward)
    return of(a, b)


def picks_last(e):
    """Whether an equation is `jnp.take_along_axis` of one element of the last axis."""
    numbers, shape = e.params["dimension_numbers"], e.invars[0].aval.shape
    others = tuple(range(len(shape) - 1))
    return (
        numbers.start_index_map == numbers.collapsed_slice_dims == (len(shape) - 1,)
        and numbers.operand_batching_dims == numbers.start_indices_batching_dims == others
        and e.invars[1].aval.shape == (*shape[:-1], 1, 1)
        and e.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP
        and (e.params["fill_value"] is None or e.params["fill_value"] != e.params["fill_value"])
    )


def picked(values, indices):
    own = jax.lax.broadcasted_iota(indices.dtype, values.shape, values.ndim - 1)
    total = jnp.sum(jnp.where(own == indices[..., 0], values, 0), -1, keepdims=True)
    valid = (indices[..., 0] >= 0) & (indices[..., 0] < values.shape[-1])
    return jnp.where(valid, total, jnp.nan)


def in_parts(array, axis, parts, size):
    shape = array.shape
    array = array.reshape(*shape[:axis], parts, size // parts, -1, *shape[axis + 1 :])
    array = jnp.moveaxis(array, axis, 0)
    return array.reshape(parts, *shape[:axis], -1, *shape[axis + 1 :])


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
    before, scalars = before_product(b, start)
    for n in before:
        same.update(zip(b.eqns[n].outvars, a.eqns[n].outvars))
    left = [e for n, e in enumerate(b.eqns) if n >= start and n not in scalars]
    in_left = {v for e in left for v in e.outvars}
    read = [*(v for e in left for v in e.invars), *b.outvars]
    read = dict.fromkeys(v for v in read if not isinstance(v, Literal) and v not in in_left)
    front = part_of(a, a.constvars, a.invars, [same[v] for v in read], [a.eqns[n] for n in before])
    tail = part_of(b, [], list(read), b.outvars, left)
    split = {}
    for n, v in enumerate(read):
        for axis, sizes in enumerate(zip(v.aval.shape, same[v].aval.shape)):
            if sizes[0] != sizes[1]:
                split[n] = axis
    front, tail = ClosedJaxpr(front, whole.consts), ClosedJaxpr(tail, [])
    return front, tail, split, jax.tree.structure(tree)


def before_product(jaxpr, start):
    """Numbers of the equations before one, with those of scalars of the batch that follow, apart.

    They need no result of that equation.
    """
    known, of_batch = {*jaxpr.constvars, *jaxpr.invars}, {*jaxpr.invars}
    before, scalars = [], set()
    for n, e in enumerate(jaxpr.eqns):
        inputs = {v for v in e.invars if not isinstance(v, Literal)}
        if n >= start and (n == start or not inputs <= known):
            continue
        before.append(n)
        known.update(e.outvars)
        if inputs & of_batch:
            of_batch.update(e.outvars)
            if n > start and not any(v.aval.shape for v in e.outvars):
                scalars.add(n)
    needed = {v for n in scalars for v in jaxpr.eqns[n].invars if not isinstance(v, Literal)}
    for n in reversed([n for n in before if n > start and n not in scalars]):
        if needed.isdisjoint(jaxpr.eqns[n].outvars):
            before.remove(n)
        else:
            needed |= {v for v in jaxpr.eqns[n].invars if not isinstance(v, Literal)}
    return before, scalars


def part_of(jaxpr, constants, inputs, outputs, equations):
    names = {"arg_names": ("",) * len(inputs), "result_paths": ("",) * len(outputs)}
    about = jaxpr.debug_info._replace(**names)
    own = {"constvars": constants, "invars": inputs, "outvars": outputs, "eqns": equations}
    return jaxpr.replace(**own, debug_info=about)


def is_product(equation):
    inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
    equations = (equation,) if inner is None else inner.eqns
    return any(e.primitive.name == "dot_general" for e in equations)
