"""sgGP (Chen et al. 2020): the likelihood of small sets of neighbours in place of that of all points.

Each set is a random training point with its nearest neighbours; sets are treated as if they were independent. The
estimate is not of the log marginal likelihood but of

    n / (B k)  sum_b  log p(y_b),    b = 1 ... B sets of k points each,

whose optimum is another, if often a near one: no length of training removes that bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rtgp._kernels.batches import inputs_of, small_blocks
from rtgp._methods.checks import check_positive_integers
from rtgp._methods.facts import Method
from rtgp._objectives.protocol import Batch, EstimateRequest, EstimateStats, LossEstimate, Objective
from rtgp._state import State, saved_tensor
from rtgp.errors import NotPositiveDefiniteError, RTGPError, SettingError

NEIGHBOURS = 15  # the paper's


@dataclass(frozen=True)
class SGGP(Method):
    """Stochastic gradients from sets of neighbours (Chen et al. 2020). It predicts as an exact Gaussian process.

    Parameters
    ----------
    neighbours : int, optional
        Points beside each random point. By default 15, or as many as there are.
    centres : int
        Random points whose sets make one step, drawn without replacement.

    Examples
    --------
    >>> import numpy as np, rtgp
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> gp = rtgp.GPRegressor(method=rtgp.SGGP(centres=16), steps=20, random_state=0)
    >>> gp.fit(X, np.sin(6 * X[:, 0])).predict(X[:3]).shape
    (3,)
    """

    own_likelihood: ClassVar[bool] = True
    biased_as: ClassVar[str] = "sgGP"

    neighbours: int | None = None
    centres: int = 1024

    def __post_init__(self) -> None:
        check_positive_integers(self, "neighbours")
        check_positive_integers(self, "centres", optional=False)

    def make_objective(self, frozen: bool = False) -> Objective:
        return NeighbourObjective(NeighbourSettings(self.neighbours, self.centres))

    def clamped(self, n: int) -> str:
        fewer = self.neighbours is None and neighbours_for(None, n) < NEIGHBOURS
        return f"the {n - 1:,} neighbours there are" if fewer else ""

    def caveat(self, last: EstimateStats | None) -> str:
        return "the loss is that of sets of neighbours, not of all points together"

    def _remedy(self, n: int) -> str:
        return "Take fewer neighbours, as in rtgp.SGGP(neighbours=...)"


@dataclass(frozen=True)
class NeighbourSettings:
    neighbours: int | None  # of each centre; None: 15, or as many as there are
    centres: int  # B, drawn without replacement in every call


class NeighbourObjective:
    """The likelihood of sets of neighbours.

    Neighbours are found once, among the inputs as they are at the first call, and kept.
    """

    def __init__(self, settings: NeighbourSettings) -> None:
        self._settings = settings
        self._sets: Tensor | None = None  # (n, k): every point with its nearest neighbours

    def reset(self) -> None:
        """Find the neighbours again in the next call."""
        self._sets = None

    def overcome(self, error: RTGPError) -> str | None:
        return None

    def state_dict(self) -> State:
        return {} if self._sets is None else {"sets": self._sets.int()}  # half the size

    def load_state_dict(self, state: State) -> None:
        self._sets = None
        if "sets" in state:
            n = len(saved_tensor(state, "sets", (None, None), torch.int32))
            asked = self._settings.neighbours
            k = 1 + (min(NEIGHBOURS, n - 1) if asked is None else asked)
            self._sets = saved_tensor(state, "sets", (n, k), torch.int32, (0, n - 1)).long()

    def __call__(
        self, batch: Batch, generator: torch.Generator | None = None, request: EstimateRequest | None = None
    ) -> LossEstimate:
        n = batch.form.size
        if self._sets is None or self._sets.shape[0] != n:
            self._sets = nearest(inputs_of(batch.form), neighbours_for(self._settings.neighbours, n))
        index = self._sets  # (B, k)
        if self._settings.centres < n:  # else every point is a centre, and nothing is random
            source = torch.device("cpu") if generator is None else generator.device
            drawn = torch.randperm(n, generator=generator, device=source)[: self._settings.centres]
            index = index[drawn.to(index.device)]
        if batch.requires_grad:
            return self._estimate(batch, index, request)
        with torch.no_grad():
            return self._estimate(batch, index, request)

    @staticmethod
    def _estimate(batch: Batch, index: Tensor, request: EstimateRequest | None) -> LossEstimate:
        n, (count, k) = batch.form.size, index.shape
        noise = batch.noise.double().expand(n)[index]  # (B, k)
        blocks = small_blocks(batch.form, index)
        residual = batch.residual.double()[index]
        factor, info = torch.linalg.cholesky_ex(blocks.detach() + torch.diag_embed(noise.detach()))
        if bool(info.any()):
            raise NotPositiveDefiniteError(
                f"The covariance of {int((info > 0).sum())} of {count} sets of neighbours is not positive definite. "
                "Raise the lower bound of the noise."
            )
        inverse = torch.cholesky_inverse(factor)  # (B, k, k)
        alpha = (inverse @ residual.detach()[:, :, None])[:, :, 0]
        log_dets = 2.0 * factor.diagonal(dim1=1, dim2=2).log().sum(1)  # (B,)
        quadratics = (alpha * residual.detach()).sum(1)
        found = 0.5 * (log_dets + quadratics) * (n / k)  # each of n points, but for the constant
        # The derivative of a loss by its matrix is (K_b^-1 - alpha alpha^T) / 2, by its residual alpha.
        by_matrix = 0.5 * (inverse - alpha[:, :, None] * alpha[:, None, :])
        by_noise = by_matrix.diagonal(dim1=1, dim2=2)
        linear = (by_matrix * blocks).sum((1, 2)) + (by_noise * noise).sum(1) + (alpha * residual).sum(1)
        surrogates = linear * (n / k)  # their derivatives are those of the losses, their values mean nothing
        stats = EstimateStats(
            method="sggp",
            dtype=torch.float64,
            log_det=float(log_dets.mean()) * n / k,
            quadratic=float(quadratics.mean()) * n / k,
            condition=1.0 + k * float((blocks.detach().diagonal(dim1=1, dim2=2) / noise.detach()).max()),
            rounding=0.0,  # of sums over k points only
            value_error=_standard_error(found, n),
        )
        contrast = None
        if request is not None and request.contrast:
            signs = torch.ones_like(found)
            signs[count // 2 :] = -1.0
            contrast = (signs * surrogates).mean()
        return LossEstimate(surrogates.mean(), found.mean() + 0.5 * n * math.log(2.0 * math.pi), stats, contrast)


def _standard_error(losses: Tensor, n: int) -> float:
    """The standard error of the mean of B losses drawn without replacement from n."""
    count = len(losses)
    if count == n:
        return 0.0
    return float(losses.std() * math.sqrt((1.0 / count) * (1.0 - count / n))) if count > 1 else math.nan


def neighbours_for(asked: int | None, n: int) -> int:
    """How many neighbours each of n points is given."""
    if asked is None:
        return min(NEIGHBOURS, n - 1)
    if asked > n - 1:
        raise SettingError(
            f"The 'neighbours' parameter of SGGP must be below the number of points. Got {asked} for {n} points: ask "
            f"for at most {n - 1}, or leave it out (15, or as many as there are)."
        )
    return asked


def nearest(x: Tensor, neighbours: int) -> Tensor:
    """Every point with its nearest neighbours, (n, neighbours + 1): a point first, unless others are equal to it."""
    from sklearn.neighbors import NearestNeighbors  # slow to load, and not needed by the other methods

    points = x.detach().double().cpu().numpy()
    found = NearestNeighbors(n_neighbors=neighbours + 1).fit(points).kneighbors(points, return_distance=False)
    return torch.from_numpy(found).to(x.device)
