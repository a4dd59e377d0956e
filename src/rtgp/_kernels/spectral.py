"""Frequencies that stand in for a stationary kernel (Bochner's theorem, Sec. 2.2).

k(tau) = E[cos(omega^T tau)] over the kernel's spectral density, in the coordinates z = x / lengthscale of a
`Stationary` form: normal for the RBF kernel, Student's t with 2 nu degrees of freedom for the Matern kernels. The
frequencies of a product of kernels are those of its factors side by side; those of a sum are shared out among its
terms.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._kernels.composites import Product, Scaled, Sum
from rtgp._kernels.form import KernelForm
from rtgp._kernels.formulas import MATERN, RBF
from rtgp._kernels.generic import Generic
from rtgp._kernels.stationary import Stationary
from rtgp.errors import UnsupportedModelError

# Degrees of freedom of the spectral density; None: normal, their limit.
DEGREES: dict[str, int | None] = {RBF.name: None, **{formula.name: round(2 * nu) for nu, formula in MATERN.items()}}
SUPPORTED = (
    "Fourier features need a kernel with a known spectral density: RBFKernel or MaternKernel, with ScaleKernel, sums "
    "and products of these"
)


@dataclass(frozen=True)
class Component:
    """scale * k_1 * k_2 * ..., each factor stationary: what one family of frequencies stands for."""

    scale: Tensor  # (), float64, with its history
    leaves: tuple[Stationary, ...]

    @property
    def z(self) -> Tensor:
        """The inputs of all factors side by side, (n, d), float64, with their history."""
        return self.leaves[0].z if len(self.leaves) == 1 else torch.cat([leaf.z for leaf in self.leaves], dim=1)


def components_of(form: KernelForm) -> tuple[Component, ...]:
    """The form as a sum of components; an error where it is none."""
    if isinstance(form, Stationary) and form.formula.name in DEGREES:
        return (Component(torch.ones((), dtype=torch.float64, device=form.device), (form,)),)
    if isinstance(form, Scaled):
        return tuple(Component(form.scale.double() * one.scale, one.leaves) for one in components_of(form.form))
    if isinstance(form, Sum):
        return tuple(one for part in form.forms for one in components_of(part))
    if isinstance(form, Product):
        choices = itertools.product(*(components_of(part) for part in form.forms))
        return tuple(
            Component(
                math.prod((one.scale for one in chosen[1:]), start=chosen[0].scale),
                tuple(leaf for one in chosen for leaf in one.leaves),
            )
            for chosen in choices
        )
    name = getattr(form, "words", type(form).__name__)
    if isinstance(form, Generic):
        name = type(getattr(form.evaluate, "kernel", form.evaluate)).__name__
    raise UnsupportedModelError(f"{SUPPORTED}. Got {name}: use another kernel, or method='rr-cg', which takes any.")


def draw_frequencies(
    component: Component, count: int, generator: torch.Generator | None, orthogonal: bool = False
) -> Tensor:
    """`count` frequencies (d, count), float64. Any first m of them are m draws: sets of different size are nested.

    Orthogonal ones are d at a time at right angles to each other (Yu et al. 2016). Each by itself keeps its law, and
    with it E[K_J] = K; only their joint law is another.
    """
    parts = []
    for leaf in component.leaves:
        d, degrees = leaf.z.shape[1], DEGREES[leaf.formula.name]
        part = _orthogonal(d, count, generator) if orthogonal else _normal(d, count, generator)
        if degrees is not None:  # Student's t: a normal vector over the root of chi^2 / degrees
            part = part * (degrees / _normal(degrees, count, generator).square().sum(0)).sqrt()
        parts.append(part)
    return torch.cat(parts).to(component.leaves[0].device)


def _normal(d: int, count: int, generator: torch.Generator | None) -> Tensor:
    """(d, count), a column for each draw, in the order of the draws: more of them do not change the first."""
    return torch.randn(count, d, generator=generator, dtype=torch.float64).T


def _orthogonal(d: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Columns of random rotations with the lengths of normal vectors: each of them normal, (d, count)."""
    blocks = -(-count // d)
    q, r = torch.linalg.qr(torch.randn(blocks, d, d, generator=generator, dtype=torch.float64))
    q = q * torch.diagonal(r, dim1=-2, dim2=-1).sign()[:, None, :]  # uniform over all rotations (Mezzadri 2007)
    directions: Tensor = q.movedim(0, 1).reshape(d, blocks * d)[:, :count]
    return directions * _normal(d, count, generator).square().sum(0).sqrt()


@dataclass(frozen=True)
class Spectrum:
    """Frequencies for every component of a form; frequency i belongs to component i mod T."""

    components: tuple[Component, ...]
    frequencies: tuple[Tensor, ...]  # (d_t, m_t) for each component
    quadrature: tuple[Tensor, ...] | None = None  # (m_t,) weights for each component; None: 1 / m_t

    @property
    def count(self) -> int:
        return sum(part.shape[1] for part in self.frequencies)

    def weights(self, count: int) -> Tensor:
        """What each of the first `count` frequencies adds to the diagonal of K, (count,), float64."""
        found = torch.empty(count, dtype=torch.float64, device=self.frequencies[0].device)
        for t, component in enumerate(self.components):
            own = found[t :: len(self.components)]
            own.fill_(1.0 / max(len(own), 1)) if self.quadrature is None else own.copy_(self.quadrature[t][: len(own)])
            own *= component.scale.detach()
        return found

    def features(self, rows: slice, count: int) -> Tensor:
        """cos and sin of the first `count` phases in turn, unweighted, (rows, 2 count), without history."""
        terms = len(self.components)
        found: Tensor | None = None
        for t, (component, omega) in enumerate(zip(self.components, self.frequencies, strict=True)):
            phase = component.z.detach()[rows] @ omega[:, : len(range(t, count, terms))]
            found = phase.new_empty(phase.shape[0], count, 2) if found is None else found
            found[:, t::terms, 0] = phase.cos()
            found[:, t::terms, 1] = phase.sin_()
        assert found is not None
        return found.reshape(found.shape[0], 2 * count)

    def pull_phases(self, weight: Tensor) -> list[Tensor]:
        """From d/dphase of the first frequencies (rows, m) to d/dz for each component, (rows, d_t)."""
        parts = []
        for t, omega in enumerate(self.frequencies):
            own = weight[:, t :: len(self.components)]
            parts.append(own @ omega[:, : own.shape[1]].T)
        return parts


def draw_spectrum(
    components: tuple[Component, ...], count: int, generator: torch.Generator | None, orthogonal: bool = False
) -> Spectrum:
    """`count` frequencies in all, shared out evenly among the components."""
    terms = len(components)
    sizes = [len(range(t, count, terms)) for t in range(terms)]
    drawn = [draw_frequencies(one, size, generator, orthogonal) for one, size in zip(components, sizes, strict=True)]
    return Spectrum(components, tuple(drawn))
