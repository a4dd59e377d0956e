"""Loss and gradient of a Gaussian process whose kernel is made of Fourier features, for nested sets of features.

With K_J = Phi Phi^T, features Psi = S Phi (n, J) in units of the noise and A = S K_J S + I = I + Psi Psi^T, everything
follows from C = I + Psi^T Psi (J, J): log|A| = log|C| (determinant lemma), A^-1 = I - Psi C^-1 Psi^T (Woodbury), and

    dL/dPsi = A^-1 Psi - alpha alpha^T Psi = Psi C^-1 - alpha u^T,  alpha = A^-1 r,  u = Psi^T alpha = C^-1 Psi^T r.

One Gram matrix serves every smaller set: the features are nested, so its leading block is theirs. The rows are gone
through twice, in blocks; O(n J^2 + J^3) time. All of it is in float64, whatever the precision of the model: C has a
condition number of up to n outputscale / noise, of which float32 would keep nothing at small noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._kernels.spectral import Spectrum
from rtgp._objectives.protocol import Batch
from rtgp._solvers.cholesky import cholesky_factor
from rtgp.operators._protocol import attach_gradients

_BLOCK = 1 << 21  # numbers in a block of rows
_KEPT = 1 << 26  # numbers of features kept from the first pass for the second (512 MiB); beyond it they are made twice


@dataclass(frozen=True)
class Loss:
    """A negative log marginal likelihood with its terms. Losses of one batch can be added and multiplied by numbers."""

    surrogate: Tensor  # (): differentiable; its gradient is that of the loss
    log_det: float
    quadratic: float

    def __add__(self, other: Loss | float) -> Loss:
        if not isinstance(other, Loss):  # the 0.0 that a sum begins with
            return self
        return Loss(self.surrogate + other.surrogate, self.log_det + other.log_det, self.quadratic + other.quadratic)

    __radd__ = __add__

    def __mul__(self, factor: float) -> Loss:
        return Loss(self.surrogate * factor, self.log_det * factor, self.quadratic * factor)

    def __sub__(self, other: Loss) -> Loss:
        return self + other * -1.0

    def scaled(self, factor: float) -> Loss:
        """The same value with `factor` times its gradient."""
        return Loss(self.surrogate * factor, self.log_det, self.quadratic)

    def value(self, n: int) -> Tensor:
        """The negative log marginal likelihood of n points, (), float64, detached."""
        total = 0.5 * (self.log_det + self.quadratic + n * math.log(2.0 * math.pi))
        return torch.tensor(total, dtype=torch.float64, device=self.surrogate.device)


@dataclass(frozen=True)
class FourierLoss(Loss):
    """With the effective dimension tr(K_J (K_J + noise)^-1) and the number of features."""

    effective_dimension: float = 0.0
    columns: int = 0


@dataclass(frozen=True)
class _Factored:
    """One set of features: its first `columns`, everything (J,) or (J, J)."""

    columns: int
    root_weights: Tensor  # c: Psi = S [cos, sin] c
    factor: Tensor  # lower Cholesky factor of C
    solve: Tensor  # u
    log_det: float  # of K_J + noise
    quadratic: float


class FourierSystem:
    """Everything that the features of one batch share."""

    def __init__(self, batch: Batch, spectrum: Spectrum, columns: int, block: int = _BLOCK, kept: int = _KEPT) -> None:
        """Go through the rows once, in blocks of `block` numbers, of which `kept` stay for the second pass."""
        self._batch, self._spectrum, self._columns = batch, spectrum, columns
        n = batch.form.size
        noise = batch.noise.detach().double().expand(n)
        self._root = noise.rsqrt()  # the diagonal of S, (n,)
        self._residual = batch.residual.detach().double() * self._root
        self._log_det_noise = float(noise.log().sum())
        rows = max(1, min(n, block // columns))
        self._rows = [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
        self._blocks: list[Tensor] | None = [] if n * columns <= kept else None
        self._gram = self._residual.new_zeros(columns, columns)
        self._data = self._residual.new_zeros(columns)  # [cos, sin]^T S r
        for rows_, features in self._scaled_features():
            self._gram.addmm_(features.T, features)
            self._data.addmv_(features.T, self._residual[rows_])
            if self._blocks is not None:
                self._blocks.append(features)

    def _scaled_features(self) -> Iterator[tuple[slice, Tensor]]:
        """S [cos, sin] in blocks of rows."""
        for k, rows in enumerate(self._rows):
            if self._blocks is not None and k < len(self._blocks):
                yield rows, self._blocks[k]
            else:
                yield rows, self._spectrum.features(rows, self._columns // 2).mul_(self._root[rows, None])

    def losses(self, columns: Sequence[int], gradients: bool) -> list[FourierLoss]:
        """One for each number of columns, none larger than the system's."""
        return [self._loss(self._factored(count), gradients) for count in columns]

    def _factored(self, columns: int) -> _Factored:
        root = self._spectrum.weights(columns // 2).sqrt().repeat_interleave(2)
        c = self._gram[:columns, :columns] * root * root[:, None]
        c.diagonal().add_(1.0)
        factor = cholesky_factor(c)
        data = self._data[:columns] * root
        solve = torch.cholesky_solve(data[:, None], factor)[:, 0]
        quadratic = float(self._residual.square().sum() - data @ solve)
        log_det = 2.0 * float(factor.diagonal().log().sum()) + self._log_det_noise
        return _Factored(columns, root, factor, solve, log_det, quadratic)

    def _loss(self, of: _Factored, gradients: bool) -> FourierLoss:
        value = 0.5 * torch.tensor(of.log_det + of.quadratic, dtype=torch.float64, device=of.solve.device)
        inverse = torch.cholesky_inverse(of.factor)  # C^-1
        effective = of.columns - float(inverse.diagonal().sum())
        surrogate = self._attached(value, of, inverse) if gradients else value
        return FourierLoss(surrogate, of.log_det, of.quadratic, effective, of.columns)

    def _attached(self, value: Tensor, of: _Factored, inverse: Tensor) -> Tensor:
        """The value with its gradient."""
        batch, components = self._batch, self._spectrum.components
        # Psi is proportional to the root of each weight: dL/dlog(weight) = 1/2 sum of (Psi * dL/dPsi) over its columns.
        share = 0.5 * (1.0 - inverse.diagonal() - of.solve.square()).reshape(-1, 2).sum(1)  # (m,)
        by_z: list[list[Tensor]] = [[] for _ in components]
        by_noise, by_residual = [], []
        for rows, block in self._scaled_features():
            psi = block[:, : of.columns] * of.root_weights
            weight = psi @ inverse
            alpha = self._residual[rows] - psi @ of.solve
            s = self._root[rows]
            # [A^-1]_ii = 1 - psi_i^T C^-1 psi_i
            by_noise.append(0.5 * s.square() * (1.0 - (weight * psi).sum(1) - alpha.square()))
            by_residual.append(s * alpha)
            weight.addr_(alpha, of.solve, alpha=-1.0)  # dL/dPsi
            phases = weight[:, 1::2] * psi[:, 0::2] - weight[:, 0::2] * psi[:, 1::2]  # cos' = -sin, sin' = cos
            for parts, part in zip(by_z, self._spectrum.pull_phases(phases), strict=True):
                parts.append(part)
        tensors = [component.scale for component in components] + [component.z for component in components]
        by_scale = [share[t :: len(components)].sum() / one.scale.detach() for t, one in enumerate(components)]
        found = [*by_scale, *(torch.cat(parts) for parts in by_z), torch.cat(by_noise), torch.cat(by_residual)]
        return attach_gradients(value, [*tensors, batch.noise.expand(batch.form.size), batch.residual], found)


def operations(n: int, columns: Sequence[int]) -> float:
    """Operations of the Gram matrix for the largest set, and of factor, inverse and gradient for each."""
    return 2.0 * n * max(columns) ** 2 + sum(2.0 * n * j**2 + 4.0 / 3.0 * j**3 for j in columns)


def exact_operations(n: int) -> float:
    """Operations of the Cholesky factor, n^3 / 3, and of the inverse, 2 n^3 / 3."""
    return float(n) ** 3
