"""What a method tells of itself: the base class of all settings objects. Whoever decides by the method asks it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from rtgp._objectives import EstimateStats, FourierSettings, Objective

EXACT, VARIATIONAL, EXPERTS = "exact", "variational", "experts"  # kinds of model


@dataclass(frozen=True)
class OptimizerChoice:
    name: str
    reason: str


class AnyMethod:
    """The facts of a method that others need to know. Those here are of a method that has none of its own.

    Attributes
    ----------
    family : str
        Kind of model that is trained: EXACT, or one that `GPRegressor` makes (VARIATIONAL, EXPERTS).
    exact : bool
        Whether the likelihood and its gradient are computed without noise or bias.
    has_information : bool
        Whether it estimates the average-information matrix too.
    iterative : bool
        Whether it runs conjugate gradients on all points. Such a training may go over to float64 on the way.
    own_likelihood : bool
        Whether it maximises another likelihood than that of a Gaussian process on all points.
    spreads : bool
        Whether it takes operator="sharded".
    several_outputs : bool
        Whether it takes several outputs that share one kernel and noise.
    biased_as : str
        Name under which its estimate of the likelihood is called biased; "" where it is not.
    """

    family: ClassVar[str] = EXACT
    exact: ClassVar[bool] = False
    has_information: ClassVar[bool] = False
    iterative: ClassVar[bool] = False
    own_likelihood: ClassVar[bool] = False
    spreads: ClassVar[bool] = False
    several_outputs: ClassVar[bool] = False
    biased_as: ClassVar[str] = ""

    @property
    def noiseless(self) -> bool:
        """Whether its estimates have no noise, be they exact or not."""
        return self.exact

    @property
    def replaceable(self) -> bool:
        """Whether Cholesky may take its place. That is so for a method that finds its own length."""
        return False

    @property
    def default_optimizer(self) -> OptimizerChoice:
        """What trains it, unless the model or a learning rate forbids it."""
        return OptimizerChoice("adam", f"{type(self).__name__} does not estimate the average-information matrix")

    @property
    def spread_operator(self) -> str:
        """Its operator where that is spread over ranks; "auto" otherwise."""
        return "auto"

    @property
    def columns(self) -> int:
        """Right-hand sides of one run of conjugate gradients."""
        return 0

    @property
    def conditioned_on(self) -> int | None:
        """Nearest earlier points on which its likelihood conditions each point; None for all."""
        return None

    @property
    def predictive_neighbours(self) -> int | None:
        """Nearest training points from which it predicts; None for all."""
        return None

    @property
    def fourier(self) -> FourierSettings | None:
        """The Fourier features that stand for the kernel; None where none do."""
        return None

    @property
    def internal_settings(self) -> str:
        """Settings beside its public ones, where they are not the defaults."""
        own = getattr(self, "_settings", None)
        return "" if own is None or own == type(own)() else repr(own)

    def with_probes_at_most(self, count: int) -> Self:
        """The same method with fewer probes, for a comparison that needs few.

        Parameters
        ----------
        count : int
            The largest number of probes.

        Returns
        -------
        settings object
            A method of the same class.
        """
        return self

    def clamped(self, n: int) -> str:
        """Which of its defaults is more than n points allow.

        Parameters
        ----------
        n : int
            The number of points.

        Returns
        -------
        str
            In words; empty if there is none.
        """
        return ""

    def caveat(self, last: EstimateStats | None) -> str:
        """How the end of a training is biased.

        Parameters
        ----------
        last : EstimateStats or None
            Statistics of the last estimate.

        Returns
        -------
        str
            In words; empty if it is not biased.
        """
        return ""

    def memory_need(self, n: int) -> int:
        """The memory of the matrices that grow as n^2.

        Parameters
        ----------
        n : int
            The number of points.

        Returns
        -------
        int
            Bytes.
        """
        return 0

    def memory_remedy(self, n: int, device: str = "cpu") -> str:
        """What takes less memory on n points.

        Parameters
        ----------
        n : int
            The number of points.
        device : str
            Where the method runs.

        Returns
        -------
        str
            Advice, in words.
        """
        words = self._remedy(n)
        return f"{words}; or train on the CPU" if device.startswith("cuda") else words

    def _remedy(self, n: int) -> str:
        return "Take fewer points"


class Method(AnyMethod, ABC):
    """How the log marginal likelihood of a given model is to be estimated."""

    @abstractmethod
    def make_objective(self, frozen: bool = False) -> Objective:
        """A new objective, which estimates the likelihood with these settings.

        Parameters
        ----------
        frozen : bool
            Whether the surface is deterministic, for optimisers that need one.

        Returns
        -------
        Objective
            A function of the data and a generator.
        """
