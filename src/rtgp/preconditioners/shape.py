"""The shape of a preconditioner: how many columns of low rank, how many neighbours, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Shape:
    """rank: columns of the low-rank part, 0 for none; count: neighbours in a row of the sparse part, 0 for none."""

    rank: int = 0
    count: int = 0

    def __str__(self) -> str:
        parts = [f"rank {self.rank:,}"] if self.rank else []
        parts += [f"{self.count} neighbours"] if self.count else []
        return " and ".join(parts) or "no preconditioner"


@dataclass(frozen=True)
class Costs:
    """Operations of a preconditioner, in those of a dense product in float32.

    sparse: what an operation with the sparse factor costs, by the kind of device: its numbers are gathered from
    memory (one core, n = 5,000, 32 neighbours, 12 columns: 4 GFLOP/s where a dense product has 57).
    small: what an operation in the small factorisations costs (one core, 32 neighbours: .7 GFLOP/s, in float64).
    """

    sparse: dict[str, float] = field(default_factory=lambda: {"cpu": 15.0, "cuda": 10.0})
    small: dict[str, float] = field(default_factory=lambda: {"cpu": 80.0, "cuda": 20.0})

    def iteration(self, n: int, shape: Shape, columns: int, device: torch.device) -> float:
        """One iteration of conjugate gradients: the product with K, four thin products, two sparse ones."""
        sparse = 2.0 * self._of(self.sparse, device) * (shape.count + 1) if shape.count else 0.0
        return 2.0 * n * columns * (n + 4.0 * shape.rank + sparse)

    def build(self, n: int, shape: Shape, device: torch.device) -> float:
        """The factors. Those in float64 count twice: L with its orthonormal columns, and the n small blocks."""
        width = shape.count + 1
        small = width**3 / 3.0 + 2.0 * width**2 if shape.count else 0.0
        if shape.rank and shape.count:
            small += width**2 * shape.rank / self._of(self.small, device) * 4.0  # L L^T on the blocks: dense products
        return 14.0 * n * shape.rank**2 + self._of(self.small, device) * n * small

    def _of(self, table: dict[str, float], device: torch.device) -> float:
        return table.get(device.type, table["cuda"])
