"""Samples of the latent function, exact in distribution, and where they stop being affordable.

Matheron's rule turns a draw of the prior, (f, f*) at training and new points together, into one of the posterior:

    f* + K(X*, X) (K + D)^-1 (y - f - e),    e ~ N(0, D).

The joint draw takes a square root of an (n + m) x (n + m) matrix. Where that is too large and the m x m posterior
covariance is not, its root serves directly. `paths.py` goes further, by random Fourier features of the prior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp.errors import InputError


@dataclass(frozen=True)
class SamplingSettings:
    """What joint samples and covariances may cost. Chosen, not fitted.

    Attributes
    ----------
    joint_limit : int
        N + m up to which the prior is drawn jointly: 7e10 operations, 0.6 GiB.
    matrix_bytes : int
        Bytes of the m x m covariance, and of the n x m solves behind it.
    jitters : tuple[float, ...]
        Parts of the mean variance that are tried in turn; rounding in float64 is below. Then eigenvalues, slow.
    """

    joint_limit: int = 6_000
    matrix_bytes: int = 2**30
    jitters: tuple[float, ...] = (1e-12, 1e-11, 1e-10, 1e-9)


@dataclass(frozen=True)
class PathSettings:
    """Chosen, not fitted.

    Attributes
    ----------
    features : int
        Frequencies of all components together, if a draw says nothing else. The error of a prior covariance is
        1 / sqrt(2 * 2048) = 1.6% of the prior variance, less for frequencies at right angles.
    checked : int
        Training points between which that error is measured.
    looser : float
        Times the tolerance of a mean, that of a path's solve where it is made for paths alone. It is relative to the
        prior, whose features are off by more.
    """

    features: int = 2048
    checked: int = 64
    looser: float = 10.0


DEFAULT = SamplingSettings()


def check_moderate(n: int, m: int, settings: SamplingSettings = DEFAULT) -> None:
    """Whether a joint covariance at m new points is affordable."""
    most = min(int((settings.matrix_bytes / 8) ** 0.5), settings.matrix_bytes // (8 * n))
    if m > most:
        raise InputError(
            f"Expected at most {most:,} points for a joint covariance or joint samples from a model of {n:,} points "
            f"({settings.matrix_bytes / 2**30:.3g} GiB for each matrix). Got {m:,}: take fewer at a time, or use "
            ".variance, which takes any number."
        )


def gaussian(rows: int, count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Standard normal numbers (rows, count), float64, the same ones on every device that the generator is not on."""
    source = torch.device("cpu") if generator is None else generator.device
    return torch.randn(rows, count, generator=generator, dtype=torch.float64, device=source).to(device)


def root(matrix: Tensor, settings: SamplingSettings = DEFAULT) -> Tensor:
    """R with R R^T = matrix, for a positive semidefinite one that rounding may have made a little indefinite."""
    matrix = matrix.double()
    size = float(matrix.diagonal().mean())
    for jitter in settings.jitters:
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(matrix)
        if int(info) == 0:
            return factor
        matrix = matrix.clone()
        matrix.diagonal().add_(jitter * size)
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    result: Tensor = vectors * eigenvalues.clamp_min(0.0).sqrt()
    return result


def matheron(
    joint: KernelForm,  # the training points followed by the new ones
    noise: Tensor,  # (n,) float64
    residual: Tensor,  # (n,): y - mean
    solve: Callable[[Tensor], Tensor],  # (n, count) -> (K + D)^-1 of it
    count: int,
    generator: torch.Generator | None,
    settings: SamplingSettings = DEFAULT,
) -> Tensor:
    """Draws of the posterior less its prior mean, (m, count) float64."""
    n, size = noise.shape[0], joint.size
    everything = slice(0, size)
    drawn = root(joint.block(everything, everything), settings) @ gaussian(size, count, generator, joint.device)
    observed = drawn[:n] + noise.sqrt()[:, None] * gaussian(n, count, generator, joint.device)
    weights = solve(residual.double()[:, None] - observed)
    return drawn[n:] + joint.block(slice(n, size), slice(0, n)).double() @ weights.double()
