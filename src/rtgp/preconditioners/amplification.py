"""How much of an error in the system reaches its solution.

An error E of A = S K S + I moves a solve x = A^-1 b by A^-1 E x. Where the kernel is smooth, A^-1 is about the identity
on most directions, those of the noise, and E arrives as it is. Where it is rough, or the noise is small beside what
neighbours leave unexplained, A^-1 is small everywhere: on airports with a Matern-1/2 kernel and a noise of 1e-6 only
2e-5 of E arrives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rtgp.kernels import KernelForm
from rtgp.kernels.likeness import size_of_entries
from rtgp.preconditioners.nearest import nearest_earlier, place_of
from rtgp.preconditioners.sparse_inverse import SparseInverse, random_order
from rtgp.state import State, saved_count, saved_scalar, saved_tensor


@dataclass(frozen=True)
class AmplificationSettings:
    """neighbours: enough to see what is left of a point's variance.
    columns: random vectors that are solved for.
    limit: of rounding in K, in units of the noise, as far as it reaches the solution, up to which it is not felt. Of
    108 systems of six sets (n = 2,500) 60 were within it; there y^T A^-1 y was off by at most 5e-5 of itself and the
    log-determinant by 2e-6 per point (benchmarks/results/float32.csv).
    moved: change of the logarithm of a lengthscale or of the signal after which it is measured again.
    """

    neighbours: int = 16
    columns: int = 4
    limit: float = 3e-3
    moved: float = 0.25


_DEFAULT = AmplificationSettings()


@dataclass
class Reach:
    """`amplification`, measured again only where the hyperparameters have moved."""

    settings: AmplificationSettings = field(default_factory=AmplificationSettings)
    known: tuple[int, Tensor, float] | None = None  # points, place of the hyperparameters, amplification there

    def rounding_felt(self, rounding: float, form: KernelForm, noise: Tensor) -> bool:
        """Whether rounding in K is felt in a solution."""
        return self.reaching_rounding(rounding, form, noise) > self.settings.limit

    def reaching_rounding(self, rounding: float, form: KernelForm, noise: Tensor) -> float:
        """rounding: the error in units of the noise, for entries of the diagonal's size; others are rounded less."""
        return self.reaching(rounding * size_of_entries(form), form, noise)

    def reaching(self, error: float, form: KernelForm, noise: Tensor) -> float:
        """As much of an error of the system, in units of the noise, as reaches its solution."""
        return error * self._amplification(form, noise)

    def _amplification(self, form: KernelForm, noise: Tensor) -> float:
        place = place_of(form, noise)
        if not self._serves(form.size, place):
            self.known = form.size, place, amplification(form, noise, self.settings)
        assert self.known is not None
        return self.known[2]

    def _serves(self, size: int, place: Tensor) -> bool:
        if self.known is None or (self.known[0], self.known[1].shape) != (size, place.shape):
            return False
        return float((self.known[1] - place).abs().max()) <= self.settings.moved

    def state_dict(self) -> State:
        if self.known is None:
            return {}
        size, place, value = self.known
        return {"reach_size": size, "reach_place": place, "reach": torch.tensor(value, dtype=torch.float64)}

    def load_state_dict(self, state: State) -> None:
        self.known = None
        if "reach" in state:
            place = saved_tensor(state, "reach_place", (None,)).cpu()
            self.known = saved_count(state, "reach_size"), place, saved_scalar(state, "reach", (0.0, 1.0))


def amplification(form: KernelForm, noise: Tensor, settings: AmplificationSettings = _DEFAULT) -> float:
    """The root mean square of A^-1 z over z ~ N(0, I), by a sparse inverse factor; 1 where nothing is lost. No random
    draw of the caller's enters."""
    generator = torch.Generator().manual_seed(0)
    order = random_order(form.size, generator).to(form.device)
    variances = noise.detach().double().expand(form.size)
    neighbours = nearest_earlier(form, order, min(settings.neighbours, max(1, form.size - 1)))
    inverse = SparseInverse.of(form, variances, neighbours, torch.float64)
    z = torch.randn(form.size, settings.columns, generator=generator, dtype=torch.float64).to(form.device)
    return min(1.0, math.sqrt(float(inverse.solve(z)[0].square().mean())))
