"""Which tiles of K hold entries that count: from the kernel's form and the noise, before any entry is computed.

A plan is a function of the hyperparameters as they are, rounded to a grid. So it stays the same while they move little,
and a run that goes on from a checkpoint has the plan of the one that was not stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._kernels.composites import Scaled, Sum
from rtgp._kernels.form import KernelForm
from rtgp._kernels.formulas import RadialFormula, negligible_beyond, squared_distances
from rtgp._kernels.stationary import Stationary
from rtgp.operators._order import DEFAULT, Leaves, TileSettings, boxed, gaps, leaves_of, negligible_entry

_LEAST_SQUARE = 4.0  # from which on every formula, and its derivative by a lengthscale, fall


@dataclass(frozen=True)
class Part:
    """scale k(|z_i - z_j|), one of the kernels whose sum K is. Entries of k up to `entry` may be left out."""

    formula: RadialFormula
    leaf: Stationary
    entry: float
    ratio: tuple[float, ...]  # lengthscale / the next larger one on the grid, for each input
    key: tuple[object, ...]

    @property
    def limit(self) -> float:
        """The squared distance beyond which there are only such entries."""
        return negligible_beyond(self.formula, self.entry)

    def z(self) -> Tensor:
        """(n, d), in the larger lengthscales: no two points are farther apart than they are."""
        return self.leaf.z.detach() * torch.tensor(self.ratio, dtype=torch.float64, device=self.leaf.device)


@dataclass(frozen=True)
class NearPlan:
    """Points leaf after leaf, and the pairs of leaves that are computed, each once.

    leaves: of the points; the last one may be short, and is filled up in `padded`. limits: for each part of the kernel,
    the squared distance up to which leaves are near. begins: (leaves + 1,), where each leaf's run begins in `columns`,
    the near leaves behind it, without itself. share: of all pairs of leaves, that are near.
    """

    parts: tuple[Part, ...]
    leaves: Leaves
    padded: Tensor
    inverse: Tensor
    limits: tuple[float, ...]
    begins: Tensor
    columns: Tensor
    share: float

    @property
    def entries(self) -> int:
        """Of K, that are computed."""
        return (self.leaves.count + len(self.columns)) * self.leaves.size**2

    def serves(self, form: KernelForm, least_noise: float, settings: TileSettings = DEFAULT) -> bool:
        """Whether it is the plan of another form too."""
        parts = parts_of(form, least_noise, settings)
        if parts is None or [part.key for part in parts] != [part.key for part in self.parts]:
            return False
        return all(torch.equal(a.leaf.x, b.leaf.x) for a, b in zip(parts, self.parts, strict=True))


def parts_of(form: KernelForm, least_noise: float, settings: TileSettings = DEFAULT) -> tuple[Part, ...] | None:
    """None where nothing tells which entries are negligible: another kernel, or no noise to compare them with."""
    found = list(_leaves(form, 1.0))
    if not found or any(leaf is None for _, leaf in found):
        return None
    parts = []
    for scale, leaf in found:
        assert leaf is not None
        scale *= len(found)  # each has its share of the bound
        entry = negligible_entry(form.size, scale, least_noise, settings)
        if entry > 0.0:
            entry = settings.grid ** math.floor(math.log(entry, settings.grid))
        lengthscale = leaf.lengthscale.detach().double().reshape(-1).tolist()
        if not all(0.0 < one < math.inf for one in lengthscale):
            return None
        steps = [math.ceil(math.log(one, settings.grid)) for one in lengthscale]
        ratio = tuple(min(1.0, one / settings.grid**step) for one, step in zip(lengthscale, steps, strict=True))
        part = Part(leaf.formula, leaf, entry, ratio, (leaf.formula.name, entry, *steps))
        if not math.isfinite(part.limit):
            return None
        parts.append(part)
    return tuple(parts)


def _leaves(form: KernelForm, scale: float) -> Iterator[tuple[float, Stationary | None]]:
    """The stationary kernels whose sum a form is, and what each is multiplied by; None for another kernel."""
    if isinstance(form, Scaled):
        yield from _leaves(form.form, scale * abs(float(form.scale.detach())))
    elif isinstance(form, Sum):
        for one in form.forms:
            yield from _leaves(one, scale)
    else:
        yield scale, form if isinstance(form, Stationary) else None


def plan_of(
    form: KernelForm, least_noise: float, settings: TileSettings = DEFAULT, share: float | None = None
) -> NearPlan | None:
    """The plan of a form, or None where none is possible, or where a sample says that it would compute more than
    `share` of all tiles; by default that of the settings."""
    parts, share = parts_of(form, least_noise, settings), settings.share if share is None else share
    if parts is None or (share < 1.0 and _sampled_pairs(parts, settings) > share):
        return None
    z = [part.z() for part in parts]
    order = leaves_of(z[0] if len(z) == 1 else torch.cat(z, dim=1), settings.leaf)
    boxes = [boxed(one, order.order, settings.leaf) for one in z]
    rows = torch.arange(order.count, device=order.order.device)
    few = rows[:: max(1, len(rows) // settings.sample)]
    if share < 1.0 and _near_share(boxes, _limits(parts, boxes, few, settings), few, settings) > share:
        return None
    limits = _limits(parts, boxes, rows, settings)
    begins, columns = _upper(boxes, limits, settings)
    n = form.size
    places = torch.arange(order.count * settings.leaf, device=rows.device).clamp_max_(n - 1)
    near = (order.count + 2 * len(columns)) / order.count**2
    return NearPlan(parts, order, order.order[places], order.order.argsort(), limits, begins, columns, near)


def _sampled_pairs(parts: tuple[Part, ...], settings: TileSettings) -> float:
    """Of pairs of points, that are near: at most the share of tiles."""
    near: Tensor | None = None
    for part in parts:
        z = part.z()
        z = z[:: max(1, len(z) // settings.sample)]
        close = squared_distances(z, z) <= min(_LEAST_SQUARE, part.formula.support)  # what is so near always counts
        near = close if near is None else near | close
    assert near is not None
    return float(near.double().mean())


def _near_share(boxes: list[Leaves], limits: tuple[float, ...], rows: Tensor, settings: TileSettings) -> float:
    near = sum(int(found.sum()) for _, found in _near(boxes, limits, rows, settings))
    return near / (len(rows) * boxes[0].count)


def _near(
    boxes: list[Leaves], limits: tuple[float, ...], rows: Tensor, settings: TileSettings
) -> Iterator[tuple[Tensor, Tensor]]:
    """(some rows, whether each leaf is near each of them), piece after piece."""
    for piece in torch.split(rows, max(1, settings.entries // boxes[0].count)):
        near = None
        for box, limit in zip(boxes, limits, strict=True):
            found = gaps(box.low[piece], box.high[piece], box) <= limit
            near = found if near is None else near | found
        assert near is not None
        yield piece, near


def _limits(parts: tuple[Part, ...], boxes: list[Leaves], rows: Tensor, settings: TileSettings) -> tuple[float, ...]:
    return tuple(_limit(part, box, rows, settings) for part, box in zip(parts, boxes, strict=True))


def _limit(part: Part, boxes: Leaves, rows: Tensor, settings: TileSettings) -> float:
    """The smallest squared distance so that what lies beyond it adds up to at most size * entry in each of the rows.

    That each entry is below `entry` is enough, but most are far below: sums of bounds of whole tiles come nearer.
    """
    if math.isfinite(part.formula.support):
        return part.formula.support
    farthest, size = 1.5 * math.sqrt(part.limit), len(boxes.order)
    edges = torch.linspace(math.sqrt(_LEAST_SQUARE), farthest, settings.distances + 1, dtype=torch.float64)
    value, slope = part.formula.both(edges.square())
    # 2 D |dk/dD| is the derivative by the logarithm of a common lengthscale: it keeps the same bound.
    bound = torch.maximum(value, 2.0 * edges.square() * slope.abs()).to(boxes.low.device)
    step, reached = float(edges[1] - edges[0]), 0
    for piece in torch.split(rows, max(1, settings.entries // boxes.count)):
        distance = gaps(boxes.low[piece], boxes.high[piece], boxes).sqrt_()
        place = distance.sub_(float(edges[0])).div_(step).floor_().clamp_(-1.0, settings.distances).long().add_(1)
        width = settings.distances + 2  # the first: nearer than all edges, and never left out
        place += torch.arange(len(piece), device=place.device)[:, None] * width
        counts = torch.bincount(place.reshape(-1), minlength=len(piece) * width).view(-1, width)[:, 1:]
        beyond = (counts * (bound * boxes.size)).flip(1).cumsum(1).flip(1)  # (rows, edges)
        too_much = (beyond > part.entry * size).sum(1)
        reached = max(reached, int(too_much.max()))
    return float(edges[min(reached, settings.distances)]) ** 2


def _upper(boxes: list[Leaves], limits: tuple[float, ...], settings: TileSettings) -> tuple[Tensor, Tensor]:
    every = torch.arange(boxes[0].count, device=boxes[0].low.device)
    counts, columns = [], []
    for piece, near in _near(boxes, limits, every, settings):
        near &= every > piece[:, None]
        counts.append(near.sum(1))
        columns.append(near.nonzero()[:, 1])
    return torch.nn.functional.pad(torch.cat(counts).cumsum(0), (1, 0)), torch.cat(columns)


def cross_list(plan: NearPlan, form: KernelForm, settings: TileSettings = DEFAULT) -> tuple[Leaves, list[Tensor]]:
    """Leaves of the points of `form` that follow the plan's, numbered from 0, and for each its near leaves of the plan.

    By the bound of every single entry: the plan's own distance holds for rows of its own points only.
    """
    n, found = len(plan.leaves.order), [leaf for _, leaf in _leaves(form, 1.0)]
    z = [leaf.z.detach() for leaf in found if leaf is not None]
    rows = leaves_of(torch.cat([one[n:] for one in z], dim=1), plan.leaves.size)
    near: Tensor | None = None
    for part, one in zip(plan.parts, z, strict=True):
        ours, theirs = boxed(one[n:], rows.order, rows.size), boxed(one[:n], plan.leaves.order, plan.leaves.size)
        close = gaps(ours.low, ours.high, theirs) <= part.limit
        near = close if near is None else near | close
    assert near is not None
    return rows, [row.nonzero()[:, 0] for row in near]
