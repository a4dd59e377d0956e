"""Variances of very many points, each from its own nearest training points: never too small, and checked.

The variance given some of the data is an upper bound of that given all. By how much it is larger is measured at a
sample of the new points, where the exact one is computed too. Where it is too much, more neighbours are taken, and in
the end the exact variances.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._preconditioners.nearest import nearest_among
from rtgp._preconditioners.sparse_factor import factored, pieces_of


@dataclass(frozen=True)
class NearVarianceSettings:
    """Chosen, not fitted.

    Attributes
    ----------
    work, work_on_card : float
        Products of two numbers that exact variances may take, m n^2 for each iteration, before neighbours are tried:
        about a minute on two cores, ten seconds on an H200.
    counts : tuple[int, ...]
        Numbers of neighbours, tried in turn.
    sample : int
        New points at which the exact variance is computed too.
    excess : float
        That is accepted: the root mean square, over the sample, of what a variance is larger by, relative. Half as much
        is then what a standard deviation is larger by.
    """

    work: float = 3e12
    work_on_card: float = 1e15
    counts: tuple[int, ...] = (64, 256)
    sample: int = 64
    excess: float = 0.02

    def pays(self, m: int, n: int, iterations: int, device: torch.device) -> bool:
        """Whether m exact variances, by runs as long as that of the mean, are too much work."""
        most = self.work_on_card if device.type == "cuda" else self.work
        return m > 2 * self.sample and float(m) * n * n * max(1, iterations) > most


DEFAULT = NearVarianceSettings()


def conditional(form: KernelForm, noise: Tensor, residual: Tensor, new: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """The distribution of each of the points `new` (m,) given those near to it, near (m, k).

    Returned are what is added to its prior mean, and its variance, each (m,) float64. `form` is in float64, where it
    has one. `noise` and `residual` (n,) are those of the training points.
    """
    found = [
        _conditional(form, noise, residual, new[rows], near[rows])
        for rows in pieces_of(len(new), near.shape[1] + 1, form.device)
    ]
    if not found:
        nothing = torch.zeros(0, dtype=torch.float64, device=form.device)
        return nothing, nothing
    means, variances = zip(*found, strict=True)
    return torch.cat(means), torch.cat(variances)


def _conditional(form: KernelForm, noise: Tensor, residual: Tensor, new: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    blocks = form.gathered(torch.cat([near, new[:, None]], dim=1)).double()
    known = blocks[:, :-1, :-1].clone()
    known.diagonal(dim1=1, dim2=2).add_(noise[near])
    right = torch.stack([blocks[:, :-1, -1], residual.double()[near]], dim=-1)
    cross, data = torch.linalg.solve_triangular(_factor(known), right, upper=False).unbind(-1)
    return (cross * data).sum(1), blocks[:, -1, -1] - cross.square().sum(1)


def _factor(blocks: Tensor) -> Tensor:
    """Cholesky factors of the blocks, in units of their diagonals, so that a jitter means the same everywhere."""
    scale = blocks.diagonal(dim1=1, dim2=2).sqrt()
    factor, _ = factored(blocks / (scale[:, :, None] * scale[:, None, :]))
    return factor * scale[:, :, None]


def near_variances(form: KernelForm, noise: Tensor, residual: Tensor, new: Tensor, count: int) -> Tensor:
    """The variances of the points `new` of a form, whose first n points are the training points; n is the number of
    noises.
    """
    training = torch.arange(len(noise), device=form.device)
    near = nearest_among(form, new, training, min(count, len(noise)))
    residual = residual.reshape(len(noise), -1)[:, 0]  # no variance depends on it, nor on which output it is of
    return conditional(form, noise, residual, new, near)[1]
