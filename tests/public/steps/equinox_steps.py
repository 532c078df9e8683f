"""Steps of equinox, and of diffrax, lineax and optimistix, which build on it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from tests.public.step import Step, f32


def _train(make: Any, *args: Any) -> Step:
    optimizer = optax.adam(1e-3)

    @eqx.filter_jit(donate="all")
    def train(model: Any, state: Any, *args: Any) -> Any:
        gradients = eqx.filter_grad(lambda it: jnp.mean(jax.vmap(it)(*args) ** 2))(model)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state

    model = eqx.filter_eval_shape(make)
    state = eqx.filter_eval_shape(lambda it: optimizer.init(eqx.filter(it, eqx.is_array)), model)
    return Step(train, (model, state, *args))


def equinox_mlp() -> Step:
    return _train(lambda: eqx.nn.MLP(8, 4, 64, 2, key=jax.random.key(0)), f32(32, 8))


def equinox_conv() -> Step:
    return _train(lambda: eqx.nn.Conv2d(3, 16, 3, key=jax.random.key(0)), f32(8, 3, 16, 16))


def equinox_attention() -> Step:
    def make() -> Any:
        return eqx.nn.MultiheadAttention(4, 64, key=jax.random.key(0))

    return _train(make, f32(2, 32, 64), f32(2, 32, 64), f32(2, 32, 64))


def equinox_lstm() -> Step:
    cell = eqx.filter_eval_shape(lambda: eqx.nn.LSTMCell(32, 64, key=jax.random.key(0)))

    @eqx.filter_jit
    def run(cell: Any, xs: jax.Array) -> Any:
        start = jnp.zeros(64), jnp.zeros(64)
        return jax.lax.scan(lambda carry, x: (cell(x, carry), None), start, xs)[0]

    return Step(run, (cell, f32(20, 32)))


def _solve(make_terms: Any, solver: Any, **options: Any) -> Step:
    import diffrax

    def solve(y0: jax.Array) -> Any:
        options_now = {"throw": False, **options}
        terms = make_terms(diffrax)
        return diffrax.diffeqsolve(terms, solver, 0.0, 1.0, 0.1, y0, **options_now).ys

    return Step(solve, (f32(64),))


class _Scaled(eqx.Module):
    weight: jax.Array

    @eqx.filter_jit
    def step(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ self.weight) @ self.weight


def equinox_bound_method() -> Step:
    return Step(_Scaled(jnp.ones((64, 64))).step, (f32(32, 64),))


def diffrax_tsit5() -> Step:
    import diffrax

    controller = diffrax.PIDController(rtol=1e-4, atol=1e-4)
    return _solve(
        lambda it: it.ODETerm(lambda t, y, args: -y),
        diffrax.Tsit5(),
        stepsize_controller=controller,
    )


def diffrax_checked() -> Step:
    """Default error checks, which call back into Python."""
    import diffrax

    return _solve(lambda it: it.ODETerm(lambda t, y, args: -y), diffrax.Heun(), throw=True)


def diffrax_implicit() -> Step:
    import diffrax

    controller = diffrax.PIDController(rtol=1e-4, atol=1e-4)
    return _solve(
        lambda it: it.ODETerm(lambda t, y, args: -y * y),
        diffrax.Kvaerno5(),
        stepsize_controller=controller,
    )


def diffrax_gradient() -> Step:
    import diffrax

    def loss(y0: jax.Array) -> jax.Array:
        term = diffrax.ODETerm(lambda t, y, args: jnp.sin(y))
        solution = diffrax.diffeqsolve(
            term, diffrax.Dopri5(), 0.0, 1.0, 0.1, y0, max_steps=16, throw=False
        )
        return jnp.sum(solution.ys)

    return Step(jax.grad(loss), (f32(64),))


def _linear_solve(solver: Any, tags: Any = ()) -> Step:
    import lineax as lx

    def solve(matrix: jax.Array, vector: jax.Array) -> Any:
        operator = lx.MatrixLinearOperator(matrix, tags)
        return lx.linear_solve(operator, vector, solver, throw=False).value

    return Step(solve, (f32(64, 64), f32(64)))


def lineax_lu() -> Step:
    import lineax as lx

    return _linear_solve(lx.LU())


def lineax_qr() -> Step:
    import lineax as lx

    return _linear_solve(lx.QR())


def lineax_cg() -> Step:
    import lineax as lx

    return _linear_solve(lx.CG(rtol=1e-5, atol=1e-5), lx.positive_semidefinite_tag)


def lineax_gmres() -> Step:
    import lineax as lx

    return _linear_solve(lx.GMRES(rtol=1e-5, atol=1e-5))


def lineax_cholesky() -> Step:
    import lineax as lx

    return _linear_solve(lx.Cholesky(), lx.positive_semidefinite_tag)


def optimistix_least_squares() -> Step:
    import optimistix as optx

    def residuals(coefficients: jax.Array, data: Any) -> jax.Array:
        x, y = data
        return jnp.polyval(coefficients, x) - y

    def fit(start: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        solver = optx.LevenbergMarquardt(rtol=1e-4, atol=1e-4)
        return optx.least_squares(residuals, solver, start, (x, y), throw=False).value

    return Step(fit, (f32(4), f32(128), f32(128)))


def optimistix_bfgs() -> Step:
    import optimistix as optx

    def fit(start: jax.Array) -> Any:
        solver = optx.BFGS(rtol=1e-4, atol=1e-4)
        return optx.minimise(lambda y, _: jnp.sum((y - 1) ** 4), solver, start, throw=False).value

    return Step(fit, (f32(16),))


def optimistix_newton() -> Step:
    import optimistix as optx

    def find(start: jax.Array) -> Any:
        solver = optx.Newton(rtol=1e-4, atol=1e-4)
        return optx.root_find(lambda y, _: y**3 - 2, solver, start, throw=False).value

    return Step(find, (f32(16),))
