"""How much of an error in the system reaches its solution.

An error E of A = S K S + I moves a solve x = A^-1 b by A^-1 E x. Where the kernel is smooth, A^-1 is about the identity
on most directions, those of the noise, and E arrives as it is. Where it is rough, or the noise is small beside what
neighbours leave unexplained, A^-1 is small everywhere: on airports with a Matern-1/2 kernel and a noise of 1e-6 only
2e-5 of E arrives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._precision import Reach
from rtgp._preconditioners.nearest import nearest_earlier, place_of
from rtgp._preconditioners.sparse_inverse import SparseInverse, random_order


@dataclass(frozen=True)
class AmplificationSettings:
    """How it is measured how much of an error reaches a solution.

    Attributes
    ----------
    neighbours : int
        Enough to see what is left of a point's variance.
    columns : int
        Random vectors that are solved for.
    moved : float
        Change of the logarithm of a lengthscale or of the signal after which it is measured again.
    """

    neighbours: int = 16
    columns: int = 4
    moved: float = 0.25


_DEFAULT = AmplificationSettings()


def reach_of(
    form: KernelForm, noise: Tensor, known: Reach | None = None, settings: AmplificationSettings = _DEFAULT
) -> Reach:
    """What is known, where the hyperparameters have not moved since. Otherwise it is measured again."""
    place = place_of(form, noise)
    same = known is not None and (known.size, known.place.shape) == (form.size, place.shape)
    if known is not None and same and float((known.place - place).abs().max()) <= settings.moved:
        return known
    return Reach(form.size, place, amplification(form, noise, settings))


def amplification(form: KernelForm, noise: Tensor, settings: AmplificationSettings = _DEFAULT) -> float:
    """The root mean square of A^-1 z over z ~ N(0, I), by a sparse inverse factor; 1 where nothing is lost.

    It has random numbers of its own.
    """
    generator = torch.Generator().manual_seed(0)
    order = random_order(form.size, generator).to(form.device)
    variances = noise.detach().double().expand(form.size)
    neighbours = nearest_earlier(form, order, min(settings.neighbours, max(1, form.size - 1)))
    inverse = SparseInverse.of(form, variances, neighbours, torch.float64)
    z = torch.randn(form.size, settings.columns, generator=generator, dtype=torch.float64).to(form.device)
    return min(1.0, math.sqrt(float(inverse.solve(z)[0].square().mean())))
