"""The parameter of a model behind a quantity of its kernel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Raw:
    """The unconstrained, trainable parameter behind a kernel quantity, and d quantity / d parameter (elementwise).

    places: which of the parameter's entries those are, where it serves a batch of kernels; None: all.
    """

    parameter: Tensor
    jacobian: Tensor  # float64, the parameter's shape
    places: Tensor | None = None

    def among_all(self, derivatives: Tensor) -> Tensor:
        """Derivatives by these entries, (k, ...), among those by all entries of the parameter, (numel, ...)."""
        if self.places is None:
            return derivatives
        every = derivatives.new_zeros(self.parameter.numel(), *derivatives.shape[1:])
        every[self.places] = derivatives
        return every
