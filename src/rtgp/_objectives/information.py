"""The average-information matrix: curvature of the log marginal likelihood without a trace in it.

The mean of observed and expected information (Gilmour, Thompson and Cullis 1995): for parameters of the covariance
A_ab = 1/2 (dK_a alpha)^T K_hat^-1 (dK_b alpha) with alpha = K_hat^-1 (y - mean), for those of the mean
dm_a^T K_hat^-1 dm_b. One solve for each parameter, no probes; never negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rtgp._objectives.protocol import Batch
from rtgp._solvers import NoiseUnits


def covers(batch: Batch, parameters: Sequence[Tensor]) -> bool:
    """Whether the matrix would know all that the likelihood depends on.

    It knows the kernel's own parameters, the noise and the mean; not a network's weights, which act through the inputs
    of a kernel.
    """
    known = {id(p) for p in batch.form.hyperparameters}
    tensors = [t for t in batch.form.tensors if t.requires_grad]
    if not tensors:
        return True
    total = torch.stack([t.double().sum() for t in tensors]).sum()
    reached = torch.autograd.grad(total, list(parameters), retain_graph=True, allow_unused=True)
    return all(g is None or id(p) in known for p, g in zip(parameters, reached, strict=True))


def average_information(
    batch: Batch,
    system: NoiseUnits,
    alpha: Tensor,  # (n, k): K_hat^-1 (y - mean), of each output or of what stands for them
    solve: Callable[[Tensor], Tensor],  # A^-1 v, in units of the noise
    parameters: Sequence[Tensor],
) -> Tensor:
    """(p, p), float64 on the CPU: a row for each entry of the parameters, as the optimiser sees them."""
    counts = [p.numel() for p in parameters]
    begins = dict(zip((id(p) for p in parameters), [sum(counts[:k]) for k in range(len(counts))], strict=True))
    covariance = alpha.new_zeros(system.size, sum(counts), alpha.shape[1])  # dK_hat_a alpha
    mean = alpha.new_zeros(system.size, sum(counts), batch.outputs)  # d residual_a

    row = 0
    kernel = system.operator.derivative_matmul(alpha).transpose(0, 1)  # (n, entries of the kernel's parameters, k)
    for parameter in system.operator.hyperparameters:
        if id(parameter) in begins:
            begin = begins[id(parameter)]
            covariance[:, begin : begin + parameter.numel()] += kernel[:, row : row + parameter.numel()]
        row += parameter.numel()
    for parameter, jacobian in _jacobian(batch.noise.expand(system.size), parameters):
        begin = begins[id(parameter)]
        covariance[:, begin : begin + parameter.numel()] += jacobian.to(alpha)[:, :, None] * alpha[:, None, :]
    for parameter, jacobian in _jacobian(batch.residuals, parameters):
        begin = begins[id(parameter)]
        mean[:, begin : begin + parameter.numel()] += jacobian.to(alpha)

    matrix = torch.zeros(sum(counts), sum(counts), dtype=torch.float64)
    for columns, factor in ((covariance, 0.5), (mean, 1.0)):
        present = columns.abs().amax(0) > 0  # (p, k)
        if bool(present.any()):
            rows = present.any(1)
            derivatives, given = columns[:, rows], present[rows]
            derivatives = system.scaled(derivatives.flatten(1)).reshape_as(derivatives)
            solved = torch.zeros_like(derivatives)
            solved[:, given] = _solved_once(solve, derivatives[:, given])
            block = factor * torch.tensordot(derivatives.double(), solved.double(), dims=([0, 2], [0, 2]))
            index = rows.nonzero()[:, 0].cpu()
            matrix[index[:, None], index] += 0.5 * (block + block.T).cpu()
    return matrix


def _solved_once(solve: Callable[[Tensor], Tensor], columns: Tensor) -> Tensor:
    """Where all columns are the same, as the derivatives of constant means of several outputs are, by one solve."""
    if columns.shape[1] > 1 and bool((columns == columns[:, :1]).all()):
        return solve(columns[:, :1]).expand_as(columns)
    return solve(columns)


def combined(alpha: Tensor, target: Tensor) -> Tensor:
    """(n, 1): a combination of the solves alpha (n, t) of several outputs that stands for all of them in the matrix.

    The matrix of the sum has cross terms that the sum of the matrices has not. They are small for outputs that are
    uncorrelated in the metric of K_hat^-1, and outputs of equal hyperparameters can be turned until they are:
    alpha^T target is then diagonal. For one output this is alpha itself, for copies of one it is exact.
    """
    if alpha.shape[1] == 1:
        return alpha
    gram = alpha.double().T @ target.double()
    _, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    largest = vectors.abs().argmax(0)
    vectors = vectors * vectors.gather(0, largest[None]).sign()  # which of +-v is found differs between machines
    found: Tensor = alpha @ vectors.sum(1, keepdim=True).to(alpha)
    return found


def _jacobian(of: Tensor, parameters: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """(parameter, d of / d its entries (n, numel)) for those that `of` depends on.

    of (n,) or (n, t): then the derivatives are (n, numel, t).

    The reverse pass is linear in its cotangent w; differentiating it in w gives the forward derivative.
    """
    if not of.requires_grad:
        return []
    w = torch.zeros_like(of, requires_grad=True)  # (n,) or (n, t)
    with torch.enable_grad():
        found = torch.autograd.grad(of, list(parameters), w, create_graph=True, allow_unused=True)
    jacobians = []
    for parameter, gradient in zip(parameters, found, strict=True):
        if gradient is not None:
            entries = [torch.autograd.grad(g, w, retain_graph=True)[0] for g in gradient.reshape(-1)]
            jacobians.append((parameter, torch.stack(entries, dim=1)))
    return jacobians
