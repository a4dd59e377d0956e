"""What each point is conditioned on: its nearest earlier points in the kernel's own metric."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp._kernels import KernelForm, Product, Scaled, Stationary, Sum
from rtgp._kernels.positions import At
from rtgp._preconditioners.neighbour_search import SearchSettings, nearest_by_distance, smallest

DEFAULT = SearchSettings()


def nearest_earlier(
    form: KernelForm, order: Tensor, count: int, settings: SearchSettings = DEFAULT, points: Tensor | None = None
) -> Tensor:
    """(n, count) int64: for each point the nearest of those before it in an order, nearest first; -1 where there are
    fewer.

    `order` (n,) is a permutation: order[0] comes first and has no earlier point. With `points`, only these are served,
    in this order.

    Near means close in the scaled inputs of a stationary kernel, and of large `|correlation|` for any other.
    """
    n, device = form.size, form.device
    order = order.to(device)
    place = torch.empty_like(order)
    place[order] = torch.arange(n, device=device)
    asked = torch.arange(n, device=device) if points is None else points.to(device)
    limits, by_place = place[asked].sort()
    found = _nearest(form, asked[by_place], order, limits, min(count, max(n - 1, 1)), settings)
    result = torch.full((len(asked), count), -1, dtype=torch.int64, device=device)
    result[by_place, : found.shape[1]] = found
    return result


def nearest_among(
    form: KernelForm, queries: Tensor, among: Tensor, count: int, settings: SearchSettings = DEFAULT
) -> Tensor:
    """(q, count) int64: for each point of `queries` the nearest of `among`; -1 where there are fewer."""
    limits = torch.full((queries.shape[0],), among.shape[0], device=form.device)
    found = _nearest(form, queries.to(form.device), among.to(form.device), limits, min(count, len(among)), settings)
    result = torch.full((queries.shape[0], count), -1, dtype=torch.int64, device=form.device)
    result[:, : found.shape[1]] = found
    return result


def _nearest(
    form: KernelForm, queries: Tensor, among: Tensor, limits: Tensor, count: int, settings: SearchSettings
) -> Tensor:
    """(q, count) points. Query i chooses among the first limits_i of `among`; limits are ascending."""
    if queries.shape[0] == 0:
        return torch.empty(0, count, dtype=torch.int64, device=form.device)
    z = coordinates(form)
    if z is not None and is_radial(form):
        return _points(among, nearest_by_distance(z[among], limits, z[queries], count, settings))
    if z is None or form.size <= max(settings.few_points, 2 * settings.candidates * count):
        return _points(among, _by_correlation(form, queries, among, limits, count, settings))
    width = min(settings.candidates * count, len(among))
    candidates = _points(among, nearest_by_distance(z[among], limits, z[queries], width, settings))
    return most_correlated(form, queries, candidates, count, settings=settings)


def _points(among: Tensor, places: Tensor) -> Tensor:
    return torch.where(places >= 0, among[places.clamp_min(0)], places)


def is_radial(form: KernelForm) -> bool:
    """Whether the kernel falls with the distance of `coordinates`, so that the distance alone ranks."""
    return is_radial(form.form) if isinstance(form, (Scaled, At)) else isinstance(form, Stationary)


def coordinates(form: KernelForm) -> Tensor | None:
    """(n, d) float64 in which near points are strongly correlated: the scaled inputs of all its parts, side by side;
    None for a kernel that is not made of stationary ones."""
    if isinstance(form, Scaled):
        return coordinates(form.form)
    if isinstance(form, Stationary):
        return form.z.detach()
    if isinstance(form, At):  # some of the points
        every = coordinates(form.form)
        return None if every is None else every[form.index]
    if isinstance(form, (Sum, Product)):
        parts = [coordinates(part) for part in form.forms]
        known = [part for part in parts if part is not None]
        return torch.cat(known, dim=1) if len(known) == len(parts) else None
    return None


def place_of(form: KernelForm, noise: Tensor) -> Tensor:
    """(1 + d,) float64 on the CPU: where the hyperparameters are, in logarithms. The signal in units of the noise, then
    the spread of each scaled input, which goes with 1 / lengthscale."""
    signal = (form.diagonal().double() / noise.detach().double()).mean().clamp_min(1e-300).log().reshape(1)
    z = coordinates(form)
    spread = signal.new_zeros(0) if z is None else z.double().std(0, unbiased=False).clamp_min(1e-300).log()
    return torch.cat([signal, spread]).cpu()


def _by_correlation(
    form: KernelForm, queries: Tensor, among: Tensor, limits: Tensor, count: int, settings: SearchSettings
) -> Tensor:
    """Places among `among`, by blocks of rows of K."""
    weight = _inverse_root(form.diagonal().double()).to(form.dtype)

    def score(rows: slice, stop: int) -> Tensor:
        # A row's own variance ranks nothing.
        return form.block(queries[rows], among[:stop]).abs_().mul_(weight[among[:stop]]).neg_()

    return smallest(score, limits, count, settings)[0]


def most_correlated(
    form: KernelForm,
    queries: Tensor,
    candidates: Tensor,
    count: int,
    scale: Tensor | None = None,
    low_rank: Tensor | None = None,
    settings: SearchSettings = DEFAULT,
) -> Tensor:
    """(q, count): those of each query's candidates (q, c) with the largest |correlation|, largest first; -1 stays last.

    Of K; with `scale` s (n,) of A = S K S + I, less `low_rank` L (n, k): of A - L L^T.
    """
    variance = form.diagonal().double()
    if scale is not None:
        variance = variance * scale.double().square() + 1.0
    if low_rank is not None:
        variance = variance - low_rank.double().square().sum(1)
    weight = _inverse_root(variance)
    count, c = min(count, candidates.shape[1]), candidates.shape[1]
    rows = settings.block_rows(4 * c + (0 if low_rank is None else c * low_rank.shape[1]), form.device)
    pieces = []
    for start in range(0, len(queries), rows):
        places, asked = candidates[start : start + rows], queries[start : start + rows]
        known = torch.where(places >= 0, places, asked[:, None])
        pairs = torch.stack([asked[:, None].expand_as(known), known], dim=-1).reshape(-1, 2)
        entries = form.gathered(pairs)[:, 0, 1].double().reshape(known.shape)
        if scale is not None:
            entries = entries * scale.double()[known] * scale.double()[asked, None]
        if low_rank is not None:
            shared = torch.bmm(low_rank[known].double(), low_rank[asked].double()[:, :, None])[:, :, 0]
            entries = entries - shared
        value = entries.abs_().mul_(weight[known]).masked_fill_(places < 0, -1.0)
        pieces.append(places.gather(1, value.sort(dim=1, descending=True, stable=True).indices[:, :count]))
    return torch.cat(pieces)


def _inverse_root(variance: Tensor) -> Tensor:
    """1 / sqrt(v); 0 where nothing varies, for such a point tells nothing about another."""
    return torch.where(variance > 0.0, variance.clamp_min(torch.finfo(variance.dtype).tiny).rsqrt(), 0.0)
