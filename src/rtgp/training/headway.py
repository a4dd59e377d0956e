"""How long a run of conjugate gradients may take, and when Cholesky is the cheaper way to the same optimum.

RR-CG and Cholesky aim at the same optimum. A step by RR-CG costs its iterations; where these cost more operations than
a factorisation, and the matrix fits into memory, Cholesky is cheaper, and exact on top of it. Everything is decided by
counts of operations, never by a clock, so that the same run is the same on every machine of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from rtgp.methods import RRCG, Method
from rtgp.operators.choose import MEMORY_FRACTION, free_memory, is_sharded
from rtgp.preconditioners.policy import iteration_cost
from rtgp.truncation import ResidualDriven


@dataclass(frozen=True)
class Headway:
    """Settings of the choice between going on with conjugate gradients and Cholesky.

    least: iterations below which a run is never too long, whatever n.
    most: iterations at which a run is given up where Cholesky is not possible.
    patience: how many evaluations by Cholesky a single run may cost before it is given up.
    recent: steps whose mean length decides whether Cholesky is the cheaper.
    exact_steps: that a training by Cholesky would still take.
    speed: by kind of device, how many times faster a factorisation in float64 works through its operations than a
        product of K with a few columns in float32 does (n = 9,600 on two cores; n = 25,600 on an H200).
    """

    least: int = 100
    most: int = 1000
    patience: float = 3.0
    recent: int = 3
    exact_steps: int = 15
    speed: dict[str, float] = field(default_factory=lambda: {"cpu": 2.0, "cuda": 4.0})

    def break_even(self, n: int, rank: int, columns: int, device: torch.device) -> int:
        """Iterations that cost as much as the value and gradient by Cholesky, from which on a run is too long."""
        return max(self.least, int(self.cost(n, rank, columns, device)))

    def cost(self, n: int, rank: int, columns: int, device: torch.device) -> float:
        """Of the value and gradient by Cholesky, n^3 operations, in iterations of conjugate gradients."""
        speed = self.speed.get(device.type, self.speed["cuda"])
        return n**3 / (speed * iteration_cost(n, rank, columns))

    def limit(self, n: int, rank: int, columns: int, device: torch.device, exact_possible: bool) -> int:
        """Iterations after which one run is given up."""
        if not exact_possible:
            return self.most
        return min(max(self.most, self.least), round(self.patience * self.break_even(n, rank, columns, device)))


def replaceable(method: Method) -> bool:
    """Whether Cholesky may take a method's place: one that finds its own length. Others are asked for as they are."""
    return isinstance(method, RRCG) and isinstance(method.truncation, ResidualDriven)


def exact_possible(method: Method, n: int, device: torch.device) -> bool:
    """Whether Cholesky may take the method's place and its two n x n matrices of float64 fit into memory."""
    if not replaceable(method) or is_sharded(getattr(method, "operator", "auto")):
        return False
    return 2 * 8 * n * n <= MEMORY_FRACTION * free_memory(device)
