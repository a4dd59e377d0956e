"""What earlier calls of SS-RFF have shown: how large its terms are, and what the features' gradient is worth."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rtgp._objectives.fourier_ladder import DEFAULT, Ladder, LadderSettings
from rtgp._state import State, saved_count, saved_tensor

_MOST_CALLS = 2**53  # that a count in a checkpoint is believed


class TermSizes:
    """Running means over the calls in which a term was drawn. Gradients are with respect to logarithms, (p,)."""

    def __init__(self, n: int = 0, length: int = 0, settings: LadderSettings = DEFAULT) -> None:
        self._n, self._settings = n, settings  # n: of the data that was measured on
        self._counts = torch.zeros(length, dtype=torch.int64)
        self._squares = torch.zeros(length, dtype=torch.float64)  # |g_k - g_{k-1}|^2 for each term but the last
        self._moments = torch.zeros(3, dtype=torch.float64)  # |e|^2, e^T g, |g|^2: exact gradient, largest features'

    def of(self, ladder: Ladder) -> TermSizes:
        """These, if they were measured on this ladder; else none."""
        fits = self._n == ladder.n and len(self._counts) == ladder.length
        return self if fits else TermSizes(ladder.n, ladder.length, ladder.settings)

    def state_dict(self) -> State:
        held = {"counts": self._counts.clone(), "squares": self._squares.clone(), "moments": self._moments.clone()}
        return {"n": self._n, **held}

    @classmethod
    def from_state_dict(cls, state: State, settings: LadderSettings = DEFAULT) -> TermSizes:
        found = cls(saved_count(state, "n"), settings=settings)
        found._counts = saved_tensor(state, "counts", (None,), torch.int64, (0, _MOST_CALLS)).clone()
        found._squares = saved_tensor(state, "squares", (len(found._counts),), between=(0.0, math.inf)).clone()
        found._moments = saved_tensor(state, "moments", (3,)).clone()
        if float(found._moments[::2].min()) < 0.0:
            raise ValueError(f"The squares among 'moments' must not be negative. Got {found._moments.tolist()}.")
        return found

    def saw_features(self, term: int, difference: Tensor) -> None:
        """The gradient of a drawn term that is a difference of features."""
        square = difference.square().sum()
        self._squares[term - 1] += self._rate(term) * (square - self._squares[term - 1])

    def saw_exact(self, exact: Tensor, features: Tensor) -> None:
        """The exact gradient and that of the largest features, where the last term was drawn."""
        latest = torch.stack([exact @ exact, exact @ features, features @ features])
        self._moments += self._rate(len(self._counts)) * (latest - self._moments)

    def _rate(self, term: int) -> float:
        self._counts[term - 1] += 1
        return max(self._settings.memory, 1.0 / int(self._counts[term - 1]))

    def scale(self) -> float:
        """The regression coefficient of the exact gradient on the features', within [0, 1]; 1 where it is not known.

        Near an optimum the exact gradient vanishes and the features' does not: as a control variate it is worth
        nothing there, whatever its size.
        """
        _, product, square = self._moments.tolist()
        return min(max(product / square, 0.0), 1.0) if square > 0.0 else 1.0

    def sizes(self, scale: float) -> list[float | None]:
        """The root mean square of each term with the features' gradients multiplied by `scale`; None: not measured."""
        exact, product, square = self._moments.tolist()
        last = exact - 2.0 * scale * product + scale**2 * square
        squares = [*(scale**2 * self._squares[:-1]).tolist(), max(last, 0.0)]
        return [square**0.5 if count else None for square, count in zip(squares, self._counts.tolist(), strict=True)]
