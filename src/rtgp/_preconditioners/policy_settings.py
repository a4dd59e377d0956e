"""The numbers that a policy decides by, and the memory that they allow."""

from __future__ import annotations

from dataclasses import dataclass, field

from rtgp._preconditioners.build import BuildSettings
from rtgp._preconditioners.choose import ChoiceSettings
from rtgp._preconditioners.nystroem_control import ControlSettings
from rtgp._preconditioners.shape import Costs
from rtgp._preconditioners.trial import TrialSettings
from rtgp._solvers import NoiseUnits
from rtgp.operators._choose import free_memory


@dataclass(frozen=True)
class PolicySettings:
    """The constants of the policy.

    Attributes
    ----------
    largest_change : float
        The largest factor by which the rank changes from one preconditioner to the next.
    rank_share : int
        The rank is at most n over this.
    memory_share : float
        Part of the free memory that a low-rank factor may take.
    most_bytes : int | None
        Bytes that it may take in any case; None: no other limit.
    bytes_per_entry : int
        For each row and column of a low-rank factor: the factor, Q in both precisions and layouts, and temporary
        memory.
    steepest : float
        The largest power of the distortion in the noise that is believed.
    calls_per_build : float
        The smallest number of calls that one preconditioner is expected to serve. The first ones are worn out by the
        first, large steps.
    memory : float
        Part of what was learnt of the noise that is kept from one call to the next.
    doubt : float
        Weight of "the noise does not grow", in squares of the logarithm of a distortion.
    pattern_moved : float
        Change of the logarithm of a lengthscale after which neighbours are searched for again.
    choice : ChoiceSettings
        How a shape is chosen.
    costs : Costs
        The costs by which shapes are compared.
    trial : TrialSettings
        How a shape is tried.
    build : BuildSettings
        How a preconditioner is made.
    control : ControlSettings
        How much of its control variate is used at first.
    """

    largest_change: float = 2.0
    rank_share: int = 2
    memory_share: float = 0.4
    most_bytes: int | None = None
    bytes_per_entry: int = 48
    steepest: float = 16.0
    calls_per_build: float = 3.0
    memory: float = 0.8
    doubt: float = 0.25
    pattern_moved: float = 0.2
    choice: ChoiceSettings = field(default_factory=ChoiceSettings)
    costs: Costs = field(default_factory=Costs)
    trial: TrialSettings = field(default_factory=TrialSettings)
    build: BuildSettings = field(default_factory=BuildSettings)
    control: ControlSettings = field(default_factory=ControlSettings)


def largest_rank(system: NoiseUnits, settings: PolicySettings) -> int:
    """The largest rank with which a preconditioner fits into memory."""
    own = system.group.own(system.size)
    rows: int = max(1, own.stop - own.start)
    allowed = int(settings.memory_share * free_memory(system.device))
    if settings.most_bytes is not None:
        allowed = min(allowed, settings.most_bytes)
    return max(1, allowed // (settings.bytes_per_entry * rows))
