"""What training costs on many cards: a model of this engine's own operations, with the numbers it stands on.

Local throughput is measured (the docstrings say where), links are what their makers state, and everything is added up
as if nothing overlapped. It is a simulation: no run on more than one card stands behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rtgp._preconditioners.policy_settings import PolicySettings
from rtgp.errors import SettingError
from rtgp.operators._gpu.points import expanded_length
from rtgp.training._newton import NewtonSettings

_SINGLE, _DOUBLE = 4, 8  # bytes
_VECTORS = 14  # (n, r) arrays of a run: solution, residual, direction, product, probes, their duals, what is gathered
_PASSES = 16  # over such arrays in one iteration
_POINT_COPIES = 4  # float64 (n, d): the points, scaled, their gradient, the gradient that is summed
_FACTOR_BYTES = 28  # for each number of Q: float64 and float32, each also transposed, and the control variate's
_BUILD_BYTES = 16  # more, while it is made
_CORE_COPIES = 5  # float64 (k, k)
_SHARE = 0.9  # of a card's memory that may be used
_LEAST_RANK = 8
_CALLS_PER_BUILD = PolicySettings().calls_per_build  # estimates for which a preconditioner serves, at the least
_METRIC_EVERY = NewtonSettings().refresh  # steps for which Newton's metric serves


@dataclass(frozen=True)
class Machine:
    """One rank. Seconds for an entry of K within a product of up to `columns` columns, fused: `entry` for up to three
    inputs and `entry_input` for each more; `contraction` for an entry within the gradient."""

    name: str
    memory: float  # bytes
    entry: float
    entry_input: float
    contraction: float
    stored: float  # bytes of a stored K read in a second, within a product
    bandwidth: float  # bytes a second, of vectors
    double: float  # operations a second in float64, of products
    single: float  # in float32, of products with few columns
    columns: int = 16

    def product(self, entries: float, d: int, r: int) -> float:
        """Seconds to multiply so many entries of K, computed within the product, with r columns."""
        return entries * (self.entry + self.entry_input * max(0, d - 3)) * math.ceil(r / self.columns)

    def stored_product(self, entries: float, r: int) -> float:
        return entries * _SINGLE / self.stored * math.ceil(r / self.columns)


@dataclass(frozen=True)
class Link:
    """Between ranks: bytes a second into each, and seconds for a message."""

    name: str
    bandwidth: float
    latency: float

    def all_gather(self, size: float, ranks: int) -> float:
        """Seconds until every rank has all `size` bytes: a ring."""
        return (ranks - 1) * (size / ranks / self.bandwidth + self.latency)

    def all_reduce(self, size: float, ranks: int) -> float:
        """Seconds for a sum of `size` bytes: twice the traffic of an all-gather, along a tree."""
        return 2 * (ranks - 1) / ranks * size / self.bandwidth + 2 * math.ceil(math.log2(ranks)) * self.latency


# Measured on one H200: RBF K @ V of 16 columns, n = 278,000, d = 3: 47 ms; n = 25,600, d = 8: 0.64 ms; K stored, 11
# columns, n = 40,700: 3.27 ms; torch in row blocks (n = 278,000, d = 3): 1290 ms, three times which is assumed for the
# gradient, which goes tile by tile on more than one rank. Bandwidth and operations: 3/4 of what the maker states.
H200 = Machine("h200", 141e9, 6.1e-13, 7.4e-14, 5e-11, 2.0e12, 3.6e12, 5e13, 5e13)
MACHINES = {"h200": H200}
INSIDE = Link("NVLink", 4.5e11, 5e-6)  # one direction of 900 GB/s
OUTSIDE = Link("400 Gb/s for each card", 5e10, 1e-5)
CARDS_PER_NODE = 8


def link_of(ranks: int) -> Link:
    """Within a node up to 8 cards; beyond, everything is charged at the speed of the network between nodes."""
    return INSIDE if ranks <= CARDS_PER_NODE else OUTSIDE


@dataclass(frozen=True)
class Workload:
    """One training: n points, d inputs; iterations of one estimate, steps of training."""

    n: int
    d: int
    probes: int = 10
    iterations: int = 50
    steps: int = 20
    rank: int | None = None  # of the preconditioner; None: sqrt(2 n r), or what fits

    @property
    def columns(self) -> int:
        return self.probes + 2

    def __post_init__(self) -> None:
        for name in ("n", "d", "probes", "iterations", "steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SettingError(f"The '{name}' of a workload must be a positive integer. Got {value!r} instead.")


@dataclass(frozen=True)
class Cost:
    """Of one workload on so many ranks. Bytes are for each rank."""

    ranks: int
    link: str
    rank: int  # of the preconditioner
    stored: bool  # whether K is kept in memory
    kernel_bytes: float
    point_bytes: float
    vector_bytes: float
    factor_bytes: float
    compute: float  # seconds of an iteration
    communication: float
    gradient: float
    build: float
    training: float
    fits: bool

    @property
    def bytes(self) -> float:
        return self.kernel_bytes + self.point_bytes + self.vector_bytes + self.factor_bytes

    @property
    def iteration(self) -> float:
        return self.compute + self.communication


def cost(work: Workload, machine: Machine, ranks: int, link: Link | None = None) -> Cost:
    """Of the work on `ranks` machines: K stored where that fits and is faster, the largest useful rank that fits."""
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise SettingError(f"The number of ranks must be a positive integer. Got {ranks!r} instead.")
    link = link_of(ranks) if link is None else link
    limit = _SHARE * machine.memory
    bare = _cost(replace(work, rank=0), machine, ranks, link, False)
    wanted = math.isqrt(2 * work.n * work.columns) if work.rank is None else work.rank
    rank = min(wanted, work.n, max(_LEAST_RANK, _largest_rank(limit - bare.bytes, work.n / ranks)))
    made = _cost(replace(work, rank=rank), machine, ranks, link, False)
    dense = _cost(replace(work, rank=rank), machine, ranks, link, True)
    best = dense if dense.bytes <= limit and dense.compute < made.compute else made
    return replace(best, fits=best.bytes <= limit)


def _largest_rank(free: float, rows: float) -> int:
    """k with (28 + 16) rows k + 40 k^2 <= free."""
    linear, square = (_FACTOR_BYTES + _BUILD_BYTES) * rows, _CORE_COPIES * _DOUBLE
    return int((math.sqrt(linear**2 + 4 * square * max(free, 0.0)) - linear) / (2 * square))


def _cost(work: Workload, machine: Machine, ranks: int, link: Link, stored: bool) -> Cost:
    n, d, r, k = work.n, work.d, work.columns, work.rank or 0
    rows = math.ceil(n / ranks)
    entries = float(n) * rows
    product = machine.stored_product(entries, r) if stored else machine.product(entries, d, r)
    factor = max(4 * rows * k * _SINGLE / machine.bandwidth, 8 * rows * k * r / machine.single)
    compute = product + _PASSES * n * r * _SINGLE / machine.bandwidth + factor
    block = n * r * _SINGLE
    communication = 2 * link.all_gather(block, ranks) + 2 * link.all_reduce(k * r * _SINGLE, ranks)
    if ranks == 1:
        communication = 0.0
    contraction = machine.product(2 * entries, d, r) if ranks == 1 else entries * machine.contraction
    summed = link.all_reduce(n * d * _DOUBLE, ranks) if ranks > 1 else 0.0
    gathered = 10 * link.all_gather(n * _DOUBLE, ranks) + 2 * link.all_reduce(k * k * _DOUBLE, ranks)
    build = 7.0 * rows * k**2 / machine.double + (gathered if ranks > 1 else 0.0)
    metric = work.iterations * (compute * math.ceil((d + 3) / machine.columns) + communication) / _METRIC_EVERY
    iteration = compute + communication
    step = work.iterations * iteration + contraction + summed + build / _CALLS_PER_BUILD + metric
    return Cost(
        ranks=ranks,
        link="none" if ranks == 1 else link.name,
        rank=k,
        stored=stored,
        kernel_bytes=entries * _SINGLE if stored else 2.0 * n * expanded_length(d) * 2,
        point_bytes=float(_POINT_COPIES * n * d * _DOUBLE),
        vector_bytes=float(_VECTORS * block),
        factor_bytes=float((_FACTOR_BYTES + _BUILD_BYTES) * rows * k + _CORE_COPIES * _DOUBLE * k**2),
        compute=compute,
        communication=communication,
        gradient=contraction + summed,
        build=build,
        training=work.steps * step,
        fits=True,
    )


def crossover(work: Workload, machine: Machine, most: int = 2**20) -> int | None:
    """The smallest power of two of ranks at which an iteration communicates longer than it computes."""
    ranks = 2
    while ranks <= min(most, work.n):
        found = cost(work, machine, ranks)
        if found.communication > found.compute:
            return ranks
        ranks *= 2
    return None
