"""Every number that training decides by, in one frozen object: an ablation sets an argument and patches nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from rtgp.training._choose import MethodSettings
from rtgp.training._descent import DescentSettings
from rtgp.training._features import FeatureSettings
from rtgp.training._lbfgs import LBFGSSettings
from rtgp.training._neighbour_start import NeighbourStart
from rtgp.training._newton import NewtonSettings
from rtgp.training._problem import ProblemSettings
from rtgp.training._restarts import Restarts
from rtgp.training._schedule import ScheduleSettings
from rtgp.training._session import CheckpointSettings
from rtgp.training._start import StartSettings
from rtgp.training._switch_to_cholesky import SwitchSettings


@dataclass(frozen=True)
class TrainingSettings:
    """Every number that training decides by.

    Attributes
    ----------
    newton : NewtonSettings
        Steps and end of Newton's method.
    switch : SwitchSettings
        When training switches to Cholesky.
    start : StartSettings
        The fit on a subset.
    restarts : Restarts
        A training from several starts.
    method : MethodSettings
        What method "auto" is.
    lbfgs : LBFGSSettings
        Steps and end of L-BFGS.
    descent : DescentSettings
        Steps and end of a torch optimiser.
    schedule : ScheduleSettings
        Of Adam's step size.
    features : FeatureSettings
        When Fourier features are warned of.
    checkpoints : CheckpointSettings
        How often a training is saved.
    problem : ProblemSettings
        Coordinates, and estimates beside the steps.
    neighbours : NeighbourStart
        The fit by the likelihood of neighbours.
    """

    newton: NewtonSettings = field(default_factory=NewtonSettings)
    switch: SwitchSettings = field(default_factory=SwitchSettings)
    start: StartSettings = field(default_factory=StartSettings)
    restarts: Restarts = field(default_factory=Restarts)
    method: MethodSettings = field(default_factory=MethodSettings)
    lbfgs: LBFGSSettings = field(default_factory=LBFGSSettings)
    descent: DescentSettings = field(default_factory=DescentSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    features: FeatureSettings = field(default_factory=FeatureSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    problem: ProblemSettings = field(default_factory=ProblemSettings)
    neighbours: NeighbourStart = field(default_factory=NeighbourStart)
