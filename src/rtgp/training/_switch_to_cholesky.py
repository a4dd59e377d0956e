"""When training switches from conjugate gradients to Cholesky, and how long a run may take.

RR-CG and Cholesky aim at the same optimum. A step by RR-CG costs its iterations. Where these cost more operations than
a factorisation, and the matrix fits into memory, Cholesky is cheaper, and exact as well. Everything is decided by
counts of operations, never by a clock, so that a run is the same on every machine of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from rtgp._methods import Cholesky, Method
from rtgp._preconditioners.shape import Costs, Shape
from rtgp.operators._choose import MEMORY_FRACTION, free_memory


@dataclass(frozen=True)
class SwitchSettings:
    """How it is decided whether to go on with conjugate gradients or to switch to Cholesky.

    Attributes
    ----------
    least : int
        Iterations below which a run is never too long, whatever n.
    most : int
        Iterations at which a run is given up where Cholesky is not possible.
    patience : float
        How many evaluations by Cholesky a single run may cost before it is given up.
    recent : int
        Number of steps whose mean length decides whether Cholesky is the cheaper.
    exact_steps : int
        Steps that a training by Cholesky would still take.
    speed : dict[str, float]
        For each kind of device, how many times faster a factorisation in float64 does its operations than a product of
        K with a few columns in float32 (n = 9,600 on two cores; n = 25,600 on an H200).
    costs : Costs
        Costs of an iteration, in operations. They are those of two cores on every device; `speed` has the rest.
    """

    least: int = 100
    most: int = 1000
    patience: float = 3.0
    recent: int = 3
    exact_steps: int = 15
    speed: dict[str, float] = field(default_factory=lambda: {"cpu": 2.0, "cuda": 4.0})
    costs: Costs = field(default_factory=Costs)

    def break_even(self, n: int, rank: int, columns: int, device: torch.device) -> int:
        """Iterations that cost as much as the value and gradient by Cholesky. A longer run is too long."""
        return max(self.least, int(self.cost(n, rank, columns, device)))

    def cost(self, n: int, rank: int, columns: int, device: torch.device) -> float:
        """Of the value and gradient by Cholesky, n^3 operations, in iterations of conjugate gradients."""
        speed = self.speed.get(device.type, self.speed["cuda"])
        return n**3 / (speed * self.costs.iteration(n, Shape(rank), columns, torch.device("cpu")))

    def limit(self, n: int, rank: int, columns: int, device: torch.device, exact_possible: bool) -> int:
        """Iterations after which one run is given up."""
        if not exact_possible:
            return self.most
        return min(max(self.most, self.least), round(self.patience * self.break_even(n, rank, columns, device)))


def exact_possible(method: Method, n: int, device: torch.device) -> bool:
    """Whether Cholesky may take the method's place and its matrices fit into memory."""
    if not method.replaceable or method.spread_operator != "auto":
        return False
    return Cholesky().memory_need(n) <= MEMORY_FRACTION * free_memory(device)
