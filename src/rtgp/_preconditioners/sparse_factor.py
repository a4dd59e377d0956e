"""A sparse inverse factor of A = S K S + I: G with G^T G close to A^-1 (Vecchia 1988; Kolotilina and Yeremin 1993).

Row i of G is the last row of the inverse Cholesky factor of A on (neighbours of i, i). With neighbours that come
earlier in some order G is triangular in that order, diag(G A G^T) = 1, and log|G^T G| = 2 sum_i log G_ii.

G is held by rows: index (n, m + 1), the point itself last, and values (n, m + 1). Where a point has fewer than m
neighbours the entry is the point itself with value 0. All numbers of points are the original ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._kernels.form import Gradients, add_rows
from rtgp._precision import in_float64
from rtgp._threads import in_threads, sum_of
from rtgp.operators import attach_gradients


@dataclass(frozen=True)
class FactorSettings:
    """How the blocks are factored."""

    piece: int = 2**20  # bytes of blocks at once on a CPU: they stay in its cache
    piece_on_card: int = 2**29
    first_jitter: float = 1e-12  # part of a block's mean variance, added where it is not positive definite,
    jitter_growth: float = 100.0  # and so many times more at each further try
    tries: int = 5  # then the point stands alone: its row of G is that of no neighbours


DEFAULT = FactorSettings()


def with_points(neighbours: Tensor, points: Tensor) -> Tensor:
    """index (b, m + 1) for the neighbours (b, m) of points (b,): the point last, and in place of every -1."""
    last = points[:, None]
    return torch.cat([torch.where(neighbours >= 0, neighbours, last), last], dim=1)


def pieces_of(
    rows: int, width: int, device: torch.device, settings: FactorSettings = DEFAULT, rank: int = 0
) -> Iterator[slice]:
    """Ranges of rows whose blocks (width, width) of float64, and (width, rank) of a low rank, take a bounded amount of
    memory."""
    size = settings.piece if device.type == "cpu" else settings.piece_on_card
    step = max(1, size // (8 * width * (width + rank)))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def on_threads(form: KernelForm) -> bool:
    """Whether pieces of rows are worked on by several threads."""
    return form.closed and form.device.type == "cpu"


def inverse_factor_rows(
    form: KernelForm,
    scale: Tensor,  # (n,): noise^(-1/2)
    neighbours: Tensor,  # (n, m) int64, -1: none
    low_rank: Tensor | None = None,  # L (n, k): rows for A - L L^T
    settings: FactorSettings = DEFAULT,
) -> tuple[Tensor, Tensor]:
    """(index, values), both (n, m + 1), values in float64."""
    form = in_float64(form)
    index = with_points(neighbours, torch.arange(neighbours.shape[0], device=neighbours.device))
    scale = scale.detach().double()
    values = torch.empty(index.shape, dtype=torch.float64, device=form.device)
    width, rank = index.shape[1], 0 if low_rank is None else low_rank.shape[1]

    def fill(part: slice) -> None:
        for rows in pieces_of(part.stop - part.start, width, form.device, settings, rank):
            rows = slice(part.start + rows.start, part.start + rows.stop)
            blocks = system_blocks(form.gathered(index[rows]), scale, index[rows], low_rank)
            values[rows] = last_rows(blocks, settings)

    in_threads(fill, index.shape[0], on_threads(form))
    # An entry of the point itself before the last place is no neighbour.
    values[:, :-1].masked_fill_(neighbours < 0, 0.0)
    return index, values


def system_blocks(kernel: Tensor, scale: Tensor, index: Tensor, low_rank: Tensor | None = None) -> Tensor:
    """Blocks of A = S K S + I, less those of L L^T, (b, k, k) float64, from those of K, for index (b, k) with the point
    itself last.

    Where the point stands for a missing neighbour there is a row of the identity, which takes no part.
    """
    s = scale[index]
    blocks = (kernel * s[:, :, None]).mul_(s[:, None, :])
    if low_rank is not None:
        thin = low_rank[index].double()
        blocks = torch.baddbmm(blocks, thin, thin.mT, alpha=-1.0)
    missing = is_missing(index)
    blocks.masked_fill_(missing[:, :, None] | missing[:, None, :], 0.0)
    blocks.diagonal(dim1=1, dim2=2).add_(1.0)
    return blocks


def is_missing(index: Tensor) -> Tensor:
    """(b, k): where the point itself stands for a neighbour that is not there."""
    missing = index == index[:, -1:]
    missing[:, -1] = False
    return missing


def last_rows(blocks: Tensor, settings: FactorSettings = DEFAULT) -> Tensor:
    """The last row of the inverse Cholesky factor of each block (b, k, k), (b, k): R^-T e_k for blocks R R^T."""
    factor, _ = factored(blocks, settings)
    unit = blocks.new_zeros(blocks.shape[1], 1)
    unit[-1] = 1.0
    rows: Tensor = torch.linalg.solve_triangular(factor.mT, unit.expand(*blocks.shape[:2], 1), upper=True)
    return rows[:, :, 0]


def factored(blocks: Tensor, settings: FactorSettings = DEFAULT) -> tuple[Tensor, Tensor]:
    """Lower Cholesky factors of blocks (b, k, k), and which blocks had to be changed, (b,).

    A block that rounding has made indefinite gets a jitter, and if that does not help loses what is off its diagonal.
    """
    factor, info = torch.linalg.cholesky_ex(blocks)
    changed = info != 0
    bad = torch.nonzero(changed).reshape(-1)
    jitter = settings.first_jitter
    for _ in range(settings.tries):
        if bad.numel() == 0:
            return factor, changed
        tried = blocks[bad]
        diagonal = tried.diagonal(dim1=1, dim2=2)
        diagonal.add_(jitter * diagonal.abs().mean(1, keepdim=True))
        factor[bad], info = torch.linalg.cholesky_ex(tried)
        bad, jitter = bad[info != 0], jitter * settings.jitter_growth
    # 1: A is never less than the identity.
    factor[bad] = torch.diag_embed(blocks[bad].diagonal(dim1=1, dim2=2).clamp_min(1.0).sqrt())
    return factor, changed


def trace_of_derivative(
    form: KernelForm, noise: Tensor, index: Tensor, values: Tensor, settings: FactorSettings = DEFAULT
) -> tuple[Tensor, Tensor]:
    """tr(P^-1 dA) = sum_i g_i^T dA[c_i, c_i] g_i for P^-1 = G^T G, exactly.

    Two float64 scalars are returned, whose gradients are the kernel's part and the noise's: dA = S d(K + noise) S with
    S = noise^(-1/2) held fixed. Their values are tr(P^-1 S K S) and tr(P^-1), together tr(P^-1 A). `noise` is () or
    (n,).
    """
    n = form.size
    scale = noise.detach().double().expand(n).rsqrt()
    scaled = values.double() * scale[index]  # rows of G S
    differentiable = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in form.tensors)

    def traced(part: slice) -> tuple[Tensor, Gradients]:
        total, gradients = torch.zeros((), dtype=torch.float64, device=form.device), form.zero_gradients()
        for rows in pieces_of(part.stop - part.start, index.shape[1], form.device, settings):
            g, points = scaled[part][rows], index[part][rows]
            if not differentiable:
                blocks = form.gathered(points)
            else:
                blocks, pull = form.gathered_with_pullback(points)
                pull(g[:, :, None] * g[:, None, :], gradients)
            total += ((blocks.double() @ g[:, :, None])[:, :, 0] * g).sum()
        return total, gradients

    totals, parts = zip(*in_threads(traced, n, on_threads(form)), strict=True)
    total, gradients = sum_of(totals), [sum_of(found) for found in zip(*parts, strict=True)]
    by_noise = torch.zeros(n, dtype=torch.float64, device=form.device)
    add_rows(by_noise, index.reshape(-1), scaled.square().reshape(-1))
    variances = noise.expand(n)
    return attach_gradients(total, form.tensors, gradients), (variances.double() * by_noise).sum()
