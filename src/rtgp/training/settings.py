"""Every number that training decides by, in one frozen object: an ablation sets an argument and patches nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from rtgp.training.choose import MethodSettings
from rtgp.training.headway import Headway
from rtgp.training.newton import NewtonSettings
from rtgp.training.restarts import Restarts
from rtgp.training.start import StartSettings


@dataclass(frozen=True)
class TrainingSettings:
    """newton: steps and end of Newton's method.
    headway: length of a run of conjugate gradients, and when Cholesky takes its place.
    start: the fit on a subset.
    restarts: a training from several starts.
    method: what method "auto" is.
    """

    newton: NewtonSettings = field(default_factory=NewtonSettings)
    headway: Headway = field(default_factory=Headway)
    start: StartSettings = field(default_factory=StartSettings)
    restarts: Restarts = field(default_factory=Restarts)
    method: MethodSettings = field(default_factory=MethodSettings)
