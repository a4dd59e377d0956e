"""Predictions of each training target from all others, at the hyperparameters that were learned from all.

Exact and from one factorisation (Rasmussen & Williams 2006, Eqs. 5.10 to 5.12), so that a model can be judged where
no rows were held out. Slightly optimistic, for the hyperparameters have seen every target.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rtgp._objectives.reading import copied, own_data, read
from rtgp._report.content import Array, Predictions

UP_TO = 8000  # points: a gigabyte for the matrix and its inverse
UNASKED_UP_TO = 3000  # some seconds: for scores that nobody asked for


def leave_one_out(model: Any, y: Array, up_to: int = UP_TO) -> Predictions | None:
    """For an exact GPyTorch model trained on an affine map of y (n,), in the units of y; None where n is
    above `up_to`."""
    if len(y) > up_to:
        return None
    # A copy in float64: the caller's model stays as it is, in eval mode.
    exact = copied(model)[0].cpu().double().train()
    with torch.no_grad():
        batch = read(exact, exact.likelihood)
        everything = slice(0, batch.form.size)
        K_hat = batch.form.block(everything, everything)  # (n, n)
        K_hat.diagonal().add_(batch.noise)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(K_hat))
        targets = own_data(exact)[1]
        weights = inverse @ batch.residual
        variance = 1.0 / inverse.diagonal()  # Eq. 5.12
        mean = targets - weights * variance  # Eq. 5.11
    scale = float(np.std(y)) / float(targets.std(correction=0))
    shift = float(np.mean(y)) - scale * float(targets.mean())
    return Predictions(y, scale * mean.numpy() + shift, scale * variance.sqrt().numpy(), "leave-one-out")
