"""The recipe of reference dump 004 (torchao's, tensorwise) in compiled torch; torch in bfloat16."""

from typing import Any

import torch
from torch_timing import rotating, torch_timings

ROWS, IN, OUT = 2048, 4096, 8192
CASE = "float8 linear fwd+bwd"
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def quantised(t: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, and the float32 reciprocal of the scale."""
    limit = torch.finfo(dtype).max
    amax = t.abs().max().to(torch.float64).clamp(min=1e-12)
    scale = (limit / amax).to(torch.float32)
    return (t.to(torch.float32) * scale).clamp(-limit, limit).to(dtype), scale.reciprocal()


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    a_unscale: torch.Tensor,
    b_unscale: torch.Tensor,
    *,
    fast: bool,
) -> torch.Tensor:
    return torch._scaled_mm(
        a, b, a_unscale, b_unscale, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def one_graph(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """y, dx and dw in one function, so that the compiler can optimise all of it; w [out, in]."""
    x_codes, x_unscale = quantised(x, E4M3)
    w_codes, w_unscale = quantised(w, E4M3)
    g_codes, g_unscale = quantised(g, E5M2)
    # cuBLASLt requires the second operand in column-major order.
    w_columns, x_columns = (codes.t().contiguous().t() for codes in (w_codes, x_codes))
    y = product(x_codes, w_codes.t(), x_unscale, w_unscale, fast=True)
    dx = product(g_codes, w_columns, g_unscale, w_unscale, fast=False)
    dw = product(g_codes.t().contiguous(), x_columns, g_unscale, x_unscale, fast=False)
    return y, dx, dw


class Float8(torch.autograd.Function):
    """`x wᵀ` with autograd, which calls two graphs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x_codes, x_unscale = quantised(x, E4M3)
        w_codes, w_unscale = quantised(w, E4M3)
        x_t, w_t = x_codes.t().contiguous(), w_codes.t().contiguous()
        ctx.save_for_backward(x_t, x_unscale, w_t, w_unscale)
        return product(x_codes, w_codes.t(), x_unscale, w_unscale, fast=True)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_t, x_unscale, w_t, w_unscale = ctx.saved_tensors
        g_codes, g_unscale = quantised(g, E5M2)
        dx = product(g_codes, w_t.t(), g_unscale, w_unscale, fast=False)
        dw = product(g_codes.t().contiguous(), x_t.t(), g_unscale, x_unscale, fast=False)
        return dx, dw


def step(apply: Any) -> Any:
    """A function that calls forward and backward as a training loop does."""
    compiled = torch.compile(apply, dynamic=False)

    def run(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> None:
        x.grad = w.grad = None
        compiled(x, w).backward(g)

    return run


def arguments(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    x, w, g = (
        torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
        for shape in ((ROWS, IN), (OUT, IN), (ROWS, OUT))
    )
    return x.requires_grad_(), w.requires_grad_(), g


if __name__ == "__main__":
    sets = rotating(arguments, 2 * (ROWS * IN + IN * OUT + ROWS * OUT))
    detached = [tuple(t.detach() for t in tensors) for tensors in sets]
    compiled = torch.compile(one_graph, dynamic=False)
    torch_timings(
        [
            (CASE, "torch.compile, float8, one graph", compiled, detached),
            (CASE, "torch.compile, float8, autograd", step(Float8.apply), sets),
            (CASE, "torch.compile, bfloat16", step(torch.nn.functional.linear), sets),
        ]
    )
