"""The log marginal likelihood of a trained model, to the accuracy that is asked for."""

from __future__ import annotations

import math
from typing import Any

from rtgp.errors import RTGPError
from rtgp.methods import RRCG, Cholesky, Method
from rtgp.objectives.reading import own_data
from rtgp.training.headway import Headway, exact_possible
from rtgp.training.outcome import combined
from rtgp.training.problem import Problem

_PILOT = 4  # estimates, whose scatter says how many are needed
_MORE = 1.2  # times as many as the scatter says, for it is uncertain itself
_ROUNDS = 5  # of drawing as many as the round before has said


def refined_loss(model: Any, operator: str, seed: int, error: float) -> tuple[float, float]:
    """The negative log marginal likelihood per point of a model on its training data, and its standard error, at most
    `error`: the mean of as many estimates as it takes, or by Cholesky where that is the cheaper.

    The estimates that decide how many are drawn are not among those averaged, so that the mean is unbiased.
    """
    x, y = own_data(model)
    n, was_training = x.shape[0], model.training
    model.train(), model.likelihood.train()
    try:
        method: Method = RRCG(operator=operator)
        possible = exact_possible(method, n, x.device)
        problem = Problem(model, model.likelihood, x, y, method, seed)
        count, found = _PILOT, None
        with problem.mll:
            for _ in range(_ROUNDS):
                try:
                    found = combined(problem.estimates(count))
                except RTGPError:
                    if not possible:
                        raise
                    break
                assert found is not None
                if found[1] <= error:
                    return found
                count = math.ceil(_MORE * count * (found[1] / error) ** 2)
                last = problem.mll.last
                assert last is not None
                cost = Headway().break_even(n, last.rank, last.columns, x.device)
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
