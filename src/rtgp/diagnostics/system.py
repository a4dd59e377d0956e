"""The linear system of a subject."""

from __future__ import annotations

from typing import Any

from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from rtgp.diagnostics.subject import Subject
from rtgp.kernels import read_covariance
from rtgp.operators import make_from_form
from rtgp.solvers import WhitenedSystem


class SubjectSystem:
    """K + noise at the hyperparameters of a subject, whitened, and what is left of y once the mean is taken off."""

    def __init__(self, subject: Subject) -> None:
        prior = subject.model.forward(subject.X)
        operator = make_from_form(read_covariance(prior.lazy_covariance_matrix))
        self.system = WhitenedSystem(operator, _noise(subject.model.likelihood))
        residual = (subject.y - prior.mean).detach()[:, None].to(self.system.dtype)
        self.target = self.system.whiten(residual)  # (n, 1)


def _noise(likelihood: Any) -> Tensor:
    noise: Tensor = likelihood.noise.detach()
    return noise if isinstance(likelihood, FixedNoiseGaussianLikelihood) else noise.reshape(())
