"""The ladder of feature counts that SS-RFF telescopes over, and how likely each of its rungs is drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rtgp._objectives.fourier_algebra import exact_operations, operations
from rtgp.errors import SettingError
from rtgp.truncation import Tabulated


@dataclass(frozen=True)
class LadderSettings:
    """What SS-RFF's ladder is and how its rungs are drawn. Chosen, not fitted.

    Attributes
    ----------
    points_per_column : int
        By default the base has n over this number of columns.
    defence : float
        Part of the probability that all rungs share equally, whatever has been measured. So no rung is ever lost.
    most_exact : float
        The largest probability of the exact kernel.
    memory : float
        Weight of the latest measurement of a rung, once there are as many as its inverse.
    """

    points_per_column: int = 8
    defence: float = 0.1
    most_exact: float = 0.5
    memory: float = 0.1


DEFAULT = LadderSettings()


@dataclass(frozen=True)
class Ladder:
    """Columns of features at the base and at each rung; the exact kernel comes last, in the place of the next rung.

    Term k = 1, ..., length is the loss at rung k minus that at rung k - 1 (rung 0 is the base); the last is the exact
    loss minus that at the largest rung (Eq. 16).
    """

    n: int
    rungs: tuple[int, ...]  # rising, even; the first is the base
    exact_place: int  # columns of the rung that the exact kernel stands for
    settings: LadderSettings = DEFAULT

    @classmethod
    def build(
        cls, n: int, minimum: int | None, step: int | str, components: int, settings: LadderSettings = DEFAULT
    ) -> Ladder:
        """From `minimum` columns (n/8 by default) by steps, or by doubling, to below n/2.

        Two columns make a frequency: a rung that comes out odd takes one more.
        """
        least, half = 2 * components, n // 2
        if minimum is None:
            base = max(least, _even(n // settings.points_per_column))
        elif minimum > half:
            raise SettingError(
                f"The ladder of SSRFF must begin at no more than half as many features as there are points, {half}: "
                f"beyond, features cost more than the exact method. Got minimum={minimum} for n = {n}. Use a smaller "
                "one, or minimum=None (n/8)."
            )
        elif minimum < least:
            raise SettingError(
                f"The 'minimum' of SSRFF must be at least two columns for each of the {components} terms of the "
                f"kernel. Got {minimum}: use {least} or more."
            )
        else:
            base = _even(minimum)
        rungs = [base]
        for columns in _course(base, step):
            if columns > max(half - 1, base):
                break
            if columns > rungs[-1]:
                rungs.append(columns)
        return cls(n, tuple(rungs), columns, settings)

    @property
    def length(self) -> int:
        """The number of terms."""
        return len(self.rungs)

    @property
    def largest(self) -> int:
        return self.rungs[-1]

    def needed(self, term: int) -> list[int]:
        """Columns of the features that an estimate with this term computes, base included; the exact one apart."""
        upper = [self.rungs[term]] if term < self.length else []
        return sorted({self.rungs[0], self.rungs[term - 1], *upper})

    def operations(self, term: int) -> float:
        """Of an estimate with this term."""
        exact = exact_operations(self.n) if term == self.length else 0.0
        return operations(self.n, self.needed(term)) + exact

    def theory(self) -> list[float]:
        """The size of each term up to a constant: a bias of 1/J at J features (Theorem 2) that the exact one lacks."""
        inverse = [1.0 / columns for columns in self.rungs] + [0.0]
        return [before - after for before, after in itertools.pairwise(inverse)]

    def paper(self) -> list[float]:
        """P(J) proportional to 1/J (Theorem 4)."""
        return _normalised([1.0 / columns for columns in (*self.rungs[1:], self.exact_place)])

    def fitted(self, sizes: Sequence[float | None]) -> list[float]:
        """P_k proportional to the root mean square of term k, which minimises the variance.

        `sizes` are the measured ones; None for those not measured, for which theory stands in. The exact term is drawn
        every other time at most, or the whole would cost as much as the exact method.
        """
        theory = self.theory()
        known = [(size, guess) for size, guess in zip(sizes, theory, strict=True) if size is not None]
        unit = sum(size for size, _ in known) / sum(guess for _, guess in known) if known else 1.0
        found = [unit * guess if size is None else size for size, guess in zip(sizes, theory, strict=True)]
        best = _normalised(found if any(found) else theory)
        defence, most_exact = self.settings.defence, self.settings.most_exact
        mixed = [(1.0 - defence) * p + defence / self.length for p in best]
        if self.length == 1 or mixed[-1] <= most_exact:
            return mixed
        others = (1.0 - most_exact) / math.fsum(mixed[:-1])
        return [*(p * others for p in mixed[:-1]), most_exact]


def distribution(probabilities: Sequence[float]) -> Tabulated:
    """The law of the drawn term, 1, 2, ..."""
    tails = [math.fsum(probabilities[k:]) for k in range(len(probabilities))]
    return Tabulated([tail / tails[0] for tail in tails])


def _course(base: int, step: int | str) -> Iterator[int]:
    """base, base + step, base + 2 step, ...; or base, 2 base, 4 base, ..."""
    for k in itertools.count():
        yield base * 2**k if isinstance(step, str) else _even(base + k * step)


def _even(columns: int) -> int:
    return columns + columns % 2


def _normalised(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [weight / total for weight in weights]
