"""The shape of a preconditioner: how many columns of low rank, how many neighbours, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shape:
    """The size of a preconditioner.

    Attributes
    ----------
    rank : int
        Columns of the low-rank part, 0 for none.
    count : int
        Neighbours in a row of the sparse part, 0 for none.
    """

    rank: int = 0
    count: int = 0

    def __str__(self) -> str:
        parts = [f"rank {self.rank:,}"] if self.rank else []
        parts += [f"{self.count} neighbours"] if self.count else []
        return " and ".join(parts) or "no preconditioner"


@dataclass(frozen=True)
class DeviceCosts:
    """What a preconditioner costs on one kind of device, in operations of a product of K with a few columns.

    Attributes
    ----------
    thin : float
        For each point, column and rank, in one iteration.
    sparse : float
        For each point, column and entry of a row of G, in one iteration: G and its transpose.
    begin : float
        For each build, whatever its size: many small launches.
    search : float
        For each point, of finding neighbours.
    factor : float
        For each point and square of the rank: L and its orthonormal columns, in float64.
    entry : float
        For each entry of the small blocks, in float64: kernel, factorisation and solve.
    across : float
        For each point, neighbour and rank, where both are made: neighbours ranked by what L leaves, and L L^T taken
        from their blocks.
    """

    thin: float
    sparse: float
    begin: float
    search: float
    factor: float
    entry: float
    across: float


@dataclass(frozen=True)
class Costs:
    """By kind of device.

    Attributes
    ----------
    cpu : DeviceCosts
        Two cores, airports (n = 5,000) and kin40k (n = 8,000), 12 columns, a stored product of 170 to 210 GFLOP/s.
    cuda : DeviceCosts
        An H200, kin40k (n = 25,600), 12 columns, a stored product of 31 TFLOP/s.
    """

    cpu: DeviceCosts = DeviceCosts(
        thin=6.0, sparse=50.0, begin=0.0, search=2e6, factor=22.0, entry=1300.0, across=2200.0
    )
    cuda: DeviceCosts = DeviceCosts(
        thin=7.0, sparse=125.0, begin=3e11, search=0.0, factor=14.0, entry=5500.0, across=1800.0
    )

    def iteration(self, n: int, shape: Shape, columns: int, device: torch.device) -> float:
        """One iteration of conjugate gradients: the product with K, and the preconditioner."""
        costs = self._of(device)
        sparse = costs.sparse * (shape.count + 1) if shape.count else 0.0
        return 2.0 * n * columns * (n + costs.thin * shape.rank + sparse)

    def build(self, n: int, shape: Shape, device: torch.device) -> float:
        costs = self._of(device)
        made = costs.factor * shape.rank**2
        if shape.count:
            width = shape.count + 1
            made += costs.search + costs.entry * width**2 + costs.across * width * shape.rank
        return costs.begin + n * made

    def _of(self, device: torch.device) -> DeviceCosts:
        return self.cpu if device.type == "cpu" else self.cuda
