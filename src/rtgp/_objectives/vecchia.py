"""The likelihood of Vecchia (1988): a product of conditional densities, each given a few near earlier points.

    p(y) ~ prod_i p(y_i | y_c(i)),    c(i): the nearest of the points before i in a random order.

With all earlier points it is exact. With m of them it is the density of another Gaussian process, whose optimum is
another one: no length of training removes that bias. Value and gradient are sums over n small matrices, O(n m^3).

For one point, with Sigma = K + noise on (c, i), r the residuals there, R the Cholesky factor of Sigma, g = R^-T e_last
(the row of the inverse factor), t = g^T r and a = (Sigma_cc^-1 r_c, 0):

    -log p = log R_last,last + t^2 / 2 + log(2 pi) / 2,
    d(-log p) / dSigma = ((1 - t^2) g g^T - t (a g^T + g a^T)) / 2,    d(-log p) / dr = t g.

The first follows from Sigma^-1 = (Sigma_cc^-1, 0) + g g^T and Sigma^-1 r = a + t g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._kernels.form import Gradients, add_rows
from rtgp._objectives.protocol import Batch, EstimateRequest, EstimateStats, LossEstimate, surrogate_loss
from rtgp._precision import in_float64
from rtgp._preconditioners.nearest import nearest_earlier
from rtgp._preconditioners.sparse_factor import factored, is_missing, on_threads, pieces_of, system_blocks, with_points
from rtgp._state import State, saved_count, saved_tensor
from rtgp._threads import in_threads, sum_of
from rtgp.errors import RTGPError
from rtgp.operators import attach_gradients


@dataclass(frozen=True)
class VecchiaSettings:
    neighbours: int  # of each point; as many as there are before it, if that is less
    rows: int | None = None  # points whose densities stand for those of all, drawn at random; None: all


class VecchiaObjective:
    """Order and neighbours are found at the first call, for the kernel as it is there, and held."""

    def __init__(self, settings: VecchiaSettings) -> None:
        self._settings = settings
        self.reset()

    def reset(self) -> None:
        """Draw the order and find the neighbours again in the next call."""
        self._size = 0
        self._index: Tensor | None = None  # (rows, m + 1): the neighbours, and the point itself last

    def overcome(self, error: RTGPError) -> str | None:
        return None

    def state_dict(self) -> State:
        return {} if self._index is None else {"size": self._size, "index": self._index.int()}  # half the memory

    def load_state_dict(self, state: State) -> None:
        self.reset()
        if "index" in state:
            n = saved_count(state, "size", 1)
            index = saved_tensor(state, "index", self._shape(n), torch.int32, (0, n - 1)).long()
            if len(set(index[:, -1].tolist())) != len(index):
                raise ValueError("the last column of 'index' must be different points. Got some twice.")
            self._size, self._index = n, index

    def _shape(self, n: int) -> tuple[int, int]:
        rows = n if self._settings.rows is None else min(n, self._settings.rows)
        return rows, min(self._settings.neighbours, n - 1) + 1

    def _neighbours(self, form: KernelForm, generator: torch.Generator | None) -> Tensor:
        n = form.size
        if self._index is None or self._size != n:
            source = torch.device("cpu") if generator is None else generator.device
            order = torch.randperm(n, generator=generator, device=source)
            rows, width = self._shape(n)
            points = torch.randperm(n, generator=generator, device=source)[:rows] if rows < n else torch.arange(n)
            points = points.to(form.device)
            found = nearest_earlier(form, order, width - 1, points=points)
            self._size, self._index = n, with_points(found, points)
        return self._index

    def __call__(
        self, batch: Batch, generator: torch.Generator | None = None, request: EstimateRequest | None = None
    ) -> LossEstimate:
        form = in_float64(batch.form)
        n, device = form.size, form.device
        index = self._neighbours(form, generator)
        noise = batch.noise.detach().double().expand(n)
        scale, times = noise.rsqrt(), n / len(index)
        residual, outputs = batch.residuals.detach().double() * scale[:, None], batch.outputs
        differentiable = batch.requires_grad
        parts = in_threads(
            lambda rows: _densities(form, scale, residual, index[rows], differentiable), len(index), on_threads(form)
        )
        log_dets = 2.0 * torch.cat([part.log_roots for part in parts]) + noise[index[:, -1]].log()
        quadratics = torch.cat([part.squares for part in parts])
        losses = 0.5 * (outputs * log_dets + quadratics)
        value = times * losses.sum() + 0.5 * outputs * n * math.log(2.0 * math.pi)
        surrogate = value
        if differentiable:
            zero = torch.zeros((), dtype=torch.float64, device=device)
            gradients = [times * sum_of(found) for found in zip(*(part.gradients for part in parts), strict=True)]
            kernel_term = attach_gradients(zero, form.tensors, gradients)
            by_noise, by_residual = (
                sum_of([getattr(part, name) for part in parts]) for name in ("by_noise", "by_residual")
            )
            surrogate = surrogate_loss(kernel_term, times * by_noise, times * by_residual, batch)
        stats = EstimateStats(
            method="vecchia",
            dtype=torch.float64,
            log_det=times * float(log_dets.sum()),
            quadratic=times * float(quadratics.sum()),
            condition=1.0 + index.shape[1] * float((form.diagonal().double() / noise).max()),
            rounding=0.0,  # of sums over a few points only, in float64
            value_error=0.0 if len(index) == n else _standard_error(losses, n),
            outputs=outputs,
        )
        return LossEstimate(surrogate, value, stats)


@dataclass(frozen=True)
class _Densities:
    """Of some of the points."""

    log_roots: Tensor  # log R_last,last of each
    squares: Tensor  # t^2 of each, summed over the outputs
    gradients: Gradients  # of their sum, with respect to the tensors of the form; the following likewise
    by_noise: Tensor  # (n,)
    by_residual: Tensor  # (n, outputs)


def _densities(form: KernelForm, scale: Tensor, residual: Tensor, index: Tensor, differentiable: bool) -> _Densities:
    """index (b, m + 1): what each point is conditioned on, and the point; residual (n, outputs): in units of the
    noise."""
    log_roots, squares = [], []
    gradients, outputs = form.zero_gradients(), residual.shape[1]
    by_noise, by_residual = torch.zeros_like(residual[:, 0]), torch.zeros_like(residual)
    for rows in pieces_of(len(index), index.shape[1], form.device):
        points = index[rows]
        kernel, pull = form.gathered_with_pullback(points) if differentiable else (form.gathered(points), None)
        # In units of the noise: R and t are those of S Sigma S and S r.
        factor, _ = factored(system_blocks(kernel, scale, points))
        r = residual[points].masked_fill_(is_missing(points)[:, :, None], 0.0)
        solved = torch.linalg.solve_triangular(factor, r, upper=False)  # (b, m + 1, outputs)
        t = solved[:, -1].clone()
        log_roots.append(factor[:, -1, -1].log())
        squares.append(t.square().sum(1))
        if pull is None:
            continue
        solved[:, -1] = 0.0
        unit = torch.zeros_like(solved[:, :, :1])
        unit[:, -1] = 1.0
        right = torch.cat([unit, solved], dim=-1)
        found = torch.linalg.solve_triangular(factor.mT, right, upper=True).mul_(scale[points, None])
        g, a = found[:, :, 0], found[:, :, 1:]
        p = 0.25 * (outputs - t.square().sum(1))[:, None] * g - 0.5 * (a @ t[:, :, None])[:, :, 0]
        weight = p[:, :, None] * g[:, None, :]
        pull(weight + weight.mT, gradients)
        add_rows(by_noise, points.reshape(-1), (2.0 * p * g).reshape(-1))
        add_rows(by_residual, points.reshape(-1), (t[:, None] * g[:, :, None]).reshape(-1, outputs))
    return _Densities(torch.cat(log_roots), torch.cat(squares), gradients, by_noise, by_residual)


def _standard_error(losses: Tensor, n: int) -> float:
    """Of n times the mean of losses that were drawn without replacement from n."""
    count = len(losses)
    return n * float(losses.std()) * math.sqrt((1.0 - count / n) / count) if count > 1 else math.nan
