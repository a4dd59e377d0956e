"""The log marginal likelihood of a trained model, to the accuracy that is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rtgp._methods import RRCG, Cholesky, Method
from rtgp._objectives.reading import own_data
from rtgp.datasets._dataset import Scaling
from rtgp.errors import RTGPError
from rtgp.training._outcome import combined
from rtgp.training._problem import Problem
from rtgp.training._switch_to_cholesky import SwitchSettings, exact_possible


@dataclass(frozen=True)
class RefinementSettings:
    """How many estimates are drawn. Chosen, not fitted.

    Attributes
    ----------
    pilot : int
        Estimates whose scatter tells how many are needed.
    more : float
        Factor by which more are drawn than the scatter asks for, since it is uncertain itself.
    rounds : int
        Rounds of drawing as many as the round before asks for.
    switch : SwitchSettings
        When Cholesky is the cheaper.
    """

    pilot: int = 4
    more: float = 1.2
    rounds: int = 5
    switch: SwitchSettings = field(default_factory=SwitchSettings)


DEFAULT = RefinementSettings()


def log_likelihood_of(n: int, loss: float, scaling: Scaling) -> float:
    """log p(y | X) in original units: the density of the standardised targets, times the Jacobian of standardising.

    loss: per point, and on the average over the outputs that share the model.
    """
    scales = np.atleast_1d(scaling.y_scale)
    return -n * float(len(scales) * loss + np.log(scales).sum())


def refined_loss(
    model: Any, operator: str, seed: int, error: float, settings: RefinementSettings = DEFAULT
) -> tuple[float, float]:
    """The negative log marginal likelihood per point of a model on its training data, and its standard error.

    The error is at most `error`. The value is the mean of as many estimates as that takes, or by Cholesky where that is
    the cheaper. The estimates that decide how many are drawn are not among those averaged, so that the mean is
    unbiased.
    """
    x, y = own_data(model)
    n, was_training = x.shape[0], model.training
    model.train(), model.likelihood.train()
    try:
        method: Method = RRCG(operator=operator)
        possible = exact_possible(method, n, x.device)
        problem = Problem(model, model.likelihood, x, y, method, seed)
        count, found = settings.pilot, None
        with problem.mll:
            for _ in range(settings.rounds):
                try:
                    found = combined(problem.estimates(count))
                except RTGPError:
                    if not possible:
                        raise
                    break
                assert found is not None
                if found[1] <= error:
                    return found
                count = math.ceil(settings.more * count * (found[1] / error) ** 2)
                last = problem.mll.last
                assert last is not None
                cost = settings.switch.break_even(n, last.rank, last.columns, x.device)
                if possible and count * max(1, last.iterations) > cost:
                    break
        if possible:
            exact = Problem(model, model.likelihood, x, y, Cholesky(), seed)
            return exact.estimates(1)[0]
        assert found is not None
        return found
    finally:
        if not was_training:
            model.eval(), model.likelihood.eval()
