"""SS-RFF: the telescoped series over nested Fourier features, of which one term is drawn (Eq. 16 to 18).

    L = L_base + sum_k (L_k - L_{k-1}),  estimated by  L_base + (L_k - L_{k-1}) / P(k)

with all losses from the same frequencies, the last of them exact. For every set of frequencies the terms sum to the
exact loss, so that any frequencies and any positive P that is fixed before the draw leave value and gradient unbiased.
So does a factor on the gradients of all features alike, in the base and in every term: the exact one has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rtgp._kernels.spectral import components_of
from rtgp._objectives.cholesky import CholeskyObjective
from rtgp._objectives.fourier import estimate_of, make_spectrum
from rtgp._objectives.fourier_algebra import FourierLoss, FourierSystem, Loss, exact_operations
from rtgp._objectives.fourier_ladder import Ladder, LadderSettings, distribution
from rtgp._objectives.protocol import Batch, EstimateRequest, LossEstimate
from rtgp._objectives.term_sizes import TermSizes
from rtgp._precision import in_float64
from rtgp._state import State
from rtgp.errors import RTGPError
from rtgp.truncation import estimate, single_sample


@dataclass(frozen=True)
class SingleSampleSettings:
    """Everything that defines an SS-RFF objective."""

    minimum: int | None  # columns at the base; None: n/8
    step: int | str  # columns from rung to rung, or "doubling"
    probabilities: str  # "paper": 1/J; "fitted": to the sizes of the terms in earlier calls
    scaled: bool  # whether the features' gradient is multiplied by its regression coefficient in earlier calls
    frequencies: str  # "random" or "orthogonal"
    ladder: LadderSettings = field(default_factory=LadderSettings)


class SingleSampleObjective:
    """Holds what earlier calls have shown of the terms: the next draw depends on the past alone, never on itself.

    Parameters
    ----------
    frozen : bool
        For deterministic optimisers. Every term with weight one: the series sums to the exact loss.
    """

    def __init__(self, settings: SingleSampleSettings, frozen: bool = False) -> None:
        self.settings, self.frozen = settings, frozen
        self._exact = CholeskyObjective()
        self._past = TermSizes()

    def reset(self) -> None:
        self._exact.reset()
        self._past = TermSizes()

    def overcome(self, error: RTGPError) -> str | None:
        return self._exact.overcome(error)

    def state_dict(self) -> State:
        return self._past.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.reset()
        self._past = TermSizes.from_state_dict(state, self.settings.ladder)

    def __call__(
        self, batch: Batch, generator: torch.Generator | None = None, request: EstimateRequest | None = None
    ) -> LossEstimate:
        batch = replace(batch, form=in_float64(batch.form))
        exact = EstimateRequest() if request is None else EstimateRequest(notices=request.notices)
        components = components_of(batch.form)
        settings = self.settings
        ladder = Ladder.build(batch.form.size, settings.minimum, settings.step, len(components), settings.ladder)
        if self.frozen:
            return estimate_of(self._exact_loss(batch, exact), batch, "ss-rff", 0, 0.0, exact_operations(ladder.n))
        scale = self.scale(ladder)
        weighting = single_sample(distribution(self.probabilities(ladder)), generator=generator)
        # All frequencies, however few the drawn term needs: the draw of one does not change the other.
        spectrum = make_spectrum(components, ladder.largest // 2, self.settings.frequencies, generator)
        (term,) = weighting.truncations
        columns = ladder.needed(term)
        found = FourierSystem(batch, spectrum, columns[-1]).losses(columns, batch.requires_grad)
        losses = {count: loss.scaled(scale) for count, loss in zip(columns, found, strict=True)}
        series = _Telescope(ladder, losses, lambda: self._exact_loss(batch, exact))
        (rest,) = estimate(series, weighting)
        if batch.requires_grad:
            self._measure(ladder, term, found, series, batch)
        total = losses[columns[0]] + rest
        place = (*ladder.rungs[1:], ladder.exact_place)[term - 1]
        cost = ladder.operations(term)
        return estimate_of(total, batch, "ss-rff", columns[-1], found[-1].effective_dimension, cost, place)

    def probabilities(self, ladder: Ladder) -> list[float]:
        """Of each term of the ladder in the next call."""
        if self.settings.probabilities == "paper":
            return ladder.paper()
        return ladder.fitted(self._past.of(ladder).sizes(self.scale(ladder)))

    def scale(self, ladder: Ladder) -> float:
        """What the gradients of all features are multiplied by in the next call."""
        return self._past.of(ladder).scale() if self.settings.scaled else 1.0

    def _exact_loss(self, batch: Batch, request: EstimateRequest) -> Loss:
        found = self._exact(batch, None, request)
        return Loss(found.surrogate, found.stats.log_det, found.stats.quadratic)

    def _measure(
        self, ladder: Ladder, term: int, found: Sequence[FourierLoss], series: _Telescope, batch: Batch
    ) -> None:
        past = self._past = self._past.of(ladder)
        gradients = {one.columns: log_gradient(one, batch) for one in found}
        lower = gradients[ladder.rungs[term - 1]]
        if term < ladder.length:
            past.saw_features(term, gradients[ladder.rungs[term]] - lower)
        elif series.exact is not None:
            past.saw_exact(log_gradient(series.exact, batch), lower)


class _Telescope:
    """The terms of a ladder, given the losses that the drawn one needs (a rtgp.truncation.RandomAccessSeries)."""

    def __init__(self, ladder: Ladder, losses: dict[int, Loss], compute_exact: Callable[[], Loss]) -> None:
        self.length: int | None = ladder.length
        self.exact: Loss | None = None  # once it has been asked for
        self._ladder, self._losses, self._compute_exact = ladder, losses, compute_exact

    def term(self, j: int) -> Loss:
        rungs, losses = self._ladder.rungs, self._losses
        if j < len(rungs):
            return losses[rungs[j]] - losses[rungs[j - 1]]
        self.exact = self._compute_exact()
        return self.exact - losses[rungs[-1]]


def log_gradient(loss: Loss, batch: Batch) -> Tensor:
    """With respect to the logarithms of outputscale, lengthscales and noise, as far as they are trained, (p,)."""
    tensors = [tensor for tensor in (*batch.form.tensors, batch.noise) if tensor.requires_grad]
    if not tensors or not loss.surrogate.requires_grad:
        return torch.zeros(1, dtype=torch.float64)
    found = torch.autograd.grad(loss.surrogate, tensors, retain_graph=True, allow_unused=True)
    parts = []
    for tensor, gradient in zip(tensors, found, strict=True):
        if gradient is not None:
            product = (tensor.detach() * gradient).double()  # z = x / lengthscale (n, d): one logarithm for each input
            parts.append((product.sum(0) if product.ndim == 2 else product.sum()).reshape(-1).cpu())
    return torch.cat(parts)
