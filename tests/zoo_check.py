"""Whether training by Cholesky and by `RRCG()` from a model's own start agree."""

from __future__ import annotations

from dataclasses import dataclass

import gpytorch
import torch

import rtgp
import zoo_models
from zoo_models import Animal

CLOSE = 0.005  # per point


@dataclass(frozen=True)
class Outcome:
    """What two trainings of one model came to. Objectives per point, priors included, by Cholesky in float64."""

    refused: str  # the error where both say that the model is not supported
    statuses: tuple[str, str]  # of Cholesky and of RRCG
    objectives: tuple[float, float]
    left: float  # what L-BFGS started at the end of RRCG gains

    @property
    def gap(self) -> float:
        return self.objectives[1] - self.objectives[0]

    @property
    def converged(self) -> bool:
        return self.statuses == ("converged", "converged")

    @property
    def agree(self) -> bool:
        return bool(self.refused) or not self.converged or self.gap <= CLOSE or self.left < CLOSE

    def __str__(self) -> str:
        if self.refused:
            return f"refused: {self.refused[:90]}"
        words = "agree" if self.gap <= CLOSE else "another basin" if self.left < CLOSE else "DIFFER"
        return f"{words}: {'/'.join(self.statuses)}, {self.objectives[0]:.4f}, gap {self.gap:.1e}, left {self.left:.1e}"


def compare(name: str, seed: int) -> Outcome:
    """Train one model of the zoo in both ways."""
    first, second = zoo_models.build(name, seed), zoo_models.build(name, seed)
    errors = []
    statuses = []
    for animal, method in ((first, rtgp.Cholesky()), (second, rtgp.RRCG())):
        try:
            result = rtgp.fit(animal.model, animal.likelihood, animal.X, animal.y, method)
            statuses.append(result.status.value)
        except rtgp.errors.RTGPError as error:
            errors.append(error)
    if errors:
        if len(errors) == 1:
            raise errors[0]
        return Outcome(str(errors[0]), ("", ""), (0.0, 0.0), 0.0)
    objectives = (objective(name, seed, first), objective(name, seed, second))
    left = 0.0
    if objectives[1] - objectives[0] > CLOSE:
        rtgp.fit(second.model, second.likelihood, second.X, second.y, rtgp.Cholesky())
        left = objectives[1] - objective(name, seed, second)
    return Outcome("", (statuses[0], statuses[1]), objectives, left)


def objective(name: str, seed: int, trained: Animal) -> float:
    """Minus the log posterior density per point where a model has been trained to, by GPyTorch alone."""
    animal = zoo_models.build(name, seed)
    animal.model.load_state_dict(trained.model.state_dict())
    model, X, y = animal.model.double(), animal.X.double(), animal.y.double()
    model.set_train_data(X, y, strict=False)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    exactly = (gpytorch.settings.fast_computations(False, False, False), gpytorch.settings.cholesky_max_tries(1))
    told = type(model.likelihood).__name__ in ("HadamardGaussianLikelihood", "_GaussianLikelihoodBase")
    with torch.no_grad(), exactly[0], exactly[1]:
        return -float(mll(model(X), y, *([X] if told else [])).mean())  # of a batch: the mean
