"""The minimum of a quadratic model in a box, and updates of the model's matrix."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def box_newton_step(metric: Tensor, gradient: Tensor, reach: float, pivots: int = 2000) -> Tensor:
    """The minimiser of gradient^T s + s^T metric s / 2 over |s_i| <= reach.

    A coordinate that reaches its bound stays there; the others take the best step that this allows. `pivots` bounds the
    number of changes of the set of bound coordinates. It is far more than the method takes.
    """
    from scipy.optimize import lsq_linear

    scale = metric.diagonal().clamp_min(max(1e-12 * float(metric.diagonal().max()), 1e-200)).rsqrt()
    eigenvalues, vectors = torch.linalg.eigh(metric * scale * scale[:, None])
    root = eigenvalues.clamp_min(1e-8).sqrt()
    left = (root[:, None] * vectors.T) / scale  # left^T left = metric
    right = -(vectors.T @ (scale * gradient)) / root
    bound = np.full(len(gradient), reach)
    # Where the metric is singular `right` is large, and a tolerance relative to it would end the search early.
    found = lsq_linear(left.numpy(), right.numpy(), (-bound, bound), method="bvls", tol=1e-20, max_iter=pivots)
    return torch.from_numpy(found.x)


def promised(metric: Tensor, gradient: Tensor, reach: float, pivots: int = 2000) -> float:
    """How much lower the quadratic model is after `box_newton_step`, with the model's own curvature: -g^T s / 2."""
    return -0.5 * float(gradient @ box_newton_step(metric, gradient, reach, pivots))


def damped_bfgs(metric: Tensor, step: Tensor, change: Tensor, damping: float = 0.1) -> Tensor:
    """The metric after a step along which the gradient has changed by `change`.

    It is positive definite whatever the change (Powell 1978). `damping` is the smallest part of the curvature along the
    step that an update leaves.
    """
    image = metric @ step
    own, seen = float(step @ image), float(step @ change)
    if own <= 0.0:
        return metric
    if seen < damping * own:
        part = (1.0 - damping) * own / (own - seen)
        change = part * change + (1.0 - part) * image
        seen = damping * own
    return metric - torch.outer(image, image) / own + torch.outer(change, change) / seen


def positive(matrix: Tensor) -> Tensor:
    """A symmetric matrix with its negative eigenvalues set to zero: solves that end early make some."""
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    found: Tensor = (vectors * eigenvalues.clamp_min(0.0)) @ vectors.T
    return found
