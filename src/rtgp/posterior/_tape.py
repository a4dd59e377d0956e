"""Predictions as differentiable functions of the new points, and of nothing else.

    mean(x) = m(x) + k_x^T w,    cov(x, x') = k(x, x') - b_x^T A^-1 b_x',    b_x = S k_x,  w = (K + D)^-1 (y - m).

With W = A^-1 B solved, dmean = dm + dk^T w and dcov = dk - dB^T W - W^T dB: a gradient takes no further solve, and the
kernel's own `pullback` gives it without a tape over (n, m) numbers. Hyperparameters get no gradient, since what the
training points have been solved for does not follow them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp.operators._protocol import tiles
from rtgp.posterior._cache import PredictionCache
from rtgp.posterior._solver import columns_within

_BLOCK = 2**20  # numbers of a kernel block that are differentiated at once
_KEPT = 2**23  # of all blocks, if they are to be held for the gradient


def needs_tape(X: object) -> bool:
    """Whether a result is to be differentiable."""
    return isinstance(X, Tensor) and X.requires_grad and torch.is_grad_enabled()


def isolated(function: Callable[[Tensor], tuple[Tensor, ...]], X: Tensor) -> tuple[Tensor, ...]:
    """function(X) whose gradient goes to X alone, where autograd records; without a tape elsewhere."""
    if not needs_tape(X):
        return function(X)
    found: tuple[Tensor, ...] = _Isolated.apply(X, function)  # type: ignore[no-untyped-call]
    return found


class _Isolated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, function: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            ctx.leaf = X.detach().requires_grad_(True)
            ctx.results = function(ctx.leaf)
        return tuple(result.detach() for result in ctx.results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        pairs = [(r, g) for r, g in zip(ctx.results, gradients, strict=True) if r.requires_grad and g is not None]
        if not pairs:
            return torch.zeros_like(ctx.leaf), None
        results, weights = zip(*pairs, strict=True)
        (found,) = torch.autograd.grad(results, ctx.leaf, weights, retain_graph=True, allow_unused=True)
        return torch.zeros_like(ctx.leaf) if found is None else found, None


def cross_product(form: KernelForm, n: int, v: Tensor, own: Tensor | None = None) -> Tensor:
    """K(new, training) v of a form of n training points followed by m new ones, v (n, r): (m, r). With own (m,), the
    column of v that each new point takes: (m,). Float64, differentiable in the new points."""
    found: Tensor = _CrossProduct.apply(form, n, v, own, _is_taped(form), *form.tensors)  # type: ignore[no-untyped-call]
    return found


class _CrossProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, form: KernelForm, n: int, v: Tensor, own: Tensor | None, taped: bool, *tensors: Tensor
    ) -> Tensor:
        ctx.form, ctx.n, ctx.v, ctx.own = form, n, v, own
        new, m = slice(n, form.size), form.size - n
        ctx.blocks = [] if taped and n * m <= _KEPT else None
        total = torch.zeros(m, v.shape[1] if own is None else 1, dtype=torch.float64, device=form.device)
        for rows in _pieces(n, m):
            block = form.block(rows, new)
            if ctx.blocks is not None:
                ctx.blocks.append(block)
            if own is None:
                total += block.T @ v[rows].to(block.dtype)
            else:
                total[:, 0] += (block * v[rows][:, own].to(block.dtype)).sum(0, dtype=torch.float64)
        return total if own is None else total[:, 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        form, n = ctx.form, ctx.n
        new, into = slice(n, form.size), form.zero_gradients()
        for index, rows in enumerate(_pieces(n, form.size - n)):
            v = ctx.v[rows].double()
            weight = v @ gradient.T if ctx.own is None else v[:, ctx.own] * gradient
            form.pullback(rows, new, weight.to(form.dtype), into, None if ctx.blocks is None else ctx.blocks[index])
        return None, None, None, None, None, *_into_tensors(form, into)


def moments(cache: PredictionCache, form: KernelForm, q: int) -> tuple[Tensor, Tensor]:
    """What the data add to the prior mean of the m new points of a form, (m,), and the posterior covariance within each
    q of them that follow each other, (m / q, q, q). Float64, differentiable in the new points."""
    taped = _is_taped(form)
    found: tuple[Tensor, Tensor] = _Moments.apply(cache, form, q, taped, *form.tensors)  # type: ignore[no-untyped-call]
    return found


def _is_taped(form: KernelForm) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in form.tensors)


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cache: PredictionCache, form: KernelForm, q: int, taped: bool, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        system, solver, n = cache.system, cache.variance_solver(), cache.system.size
        m = form.size - n
        prior, added, blocks, ctx.solved = form.diagonal()[n:].double(), [], [], []
        for piece in tiles(slice(0, m), max(1, columns_within(n) // q) * q):
            b = system.scaled(form.block(slice(0, n), slice(n + piece.start, n + piece.stop)))  # (n, k)
            found = solver.quadratic(b, prior[piece], taped)
            added.append((b.T @ cache.solution.x)[:, 0].double())
            index = torch.arange(n + piece.start, n + piece.stop, device=form.device).reshape(-1, q)
            blocks.append(form.gathered(index).double() - _within(found.explained, b, found.x, found.remainder, q))
            if taped:
                ctx.solved.append((piece, index, system.scaled(found.x)))
        ctx.cache, ctx.form, ctx.q = cache, form, q
        covariance = torch.cat(blocks)
        covariance.diagonal(dim1=1, dim2=2).clamp_min_(0.0)
        return torch.cat(added), covariance

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_mean: Tensor, by_covariance: Tensor) -> tuple[Tensor | None, ...]:
        form, q, weights = ctx.form, ctx.q, ctx.cache.weights.double()
        n, into = weights.shape[0], form.zero_gradients()
        for piece, index, solved in ctx.solved:
            batches = slice(piece.start // q, piece.stop // q)
            own = by_covariance[batches]
            form.gathered_pullback(index, own.to(form.dtype), into)
            both = own + own.mT
            cols = slice(n + piece.start, n + piece.stop)
            for rows in _pieces(n, piece.stop - piece.start):
                # Of sum_ij g_ij C_ij by column i of B: -sum_j (g_ij + g_ji) W_j.
                w = solved[rows].double().reshape(rows.stop - rows.start, -1, q)
                weight = weights[rows] * by_mean[piece] - torch.einsum("rbj,bji->rbi", w, both).flatten(1)
                form.pullback(rows, cols, weight.to(form.dtype), into)
        return None, None, None, None, *_into_tensors(form, into)


def _within(explained: Tensor, b: Tensor, x: Tensor, remainder: Tensor | None, q: int) -> Tensor:
    """B^T X + X^T R = B^T A^-1 B - R^T A^-1 R of every q columns, (k / q, q, q), symmetric."""
    if q == 1:
        return explained[:, None, None]
    columns, solved = (v.T.reshape(-1, q, v.shape[0]) for v in (b, x))
    found = (columns @ solved.mT).double()
    if remainder is not None:
        found += (solved @ remainder.T.reshape(-1, q, remainder.shape[0]).mT).double()
    return (found + found.mT) / 2


def _into_tensors(form: KernelForm, gradients: list[Tensor]) -> list[Tensor | None]:
    """Gradients as autograd wants them: in the dtype of the tensors, none where none is asked for."""
    pairs = zip(form.tensors, gradients, strict=True)
    return [gradient.to(tensor.dtype) if tensor.requires_grad else None for tensor, gradient in pairs]


def _pieces(n: int, m: int) -> list[slice]:
    return tiles(slice(0, n), max(1, _BLOCK // m))
