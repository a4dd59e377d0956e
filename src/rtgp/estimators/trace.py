"""Bilinear forms whose gradients are the terms of Eq. 2: tr(A^-1 dA) and alpha^T dA alpha."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp.estimators.probes import Probes


def trace_vectors(probes: Probes, solves: Tensor) -> tuple[Tensor, Tensor]:
    """u, v (n, p) with E[sum_p u_p^T dA v_p] = tr(A^-1 dA), given unbiased solves A^-1 z (n, p)."""
    return probes.dual / probes.dual.shape[1], solves


def gradient_vectors(trace: tuple[Tensor, Tensor], first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """u, v with E[sum u^T dA v] = 1/2 (tr(A^-1 dA) - y^T A^-1 dA A^-1 y), Eq. 2.

    first, second (n,): two solves A^-1 y with independent truncations, without which the product would be biased.
    """
    u, v = trace
    left = torch.cat([0.5 * u, -0.5 * first[:, None]], dim=1)
    right = torch.cat([v, second[:, None]], dim=1)
    return left, right
