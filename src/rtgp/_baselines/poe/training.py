"""Training of POE: every rank trains its share of the experts, and all of them know how all of them are doing.

The experts have nothing in common but the point they start from, so no gradient is exchanged. After each evaluation one
all-gather brings every expert's loss, gradient norm and hyperparameters to every rank: the history is that of one
process, and an error is one of all ranks. Another at the end brings the parameters: any rank can save the model.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rtgp._baselines.poe.batch import ExpertBatch
from rtgp._baselines.poe.model import ExpertsModel
from rtgp._baselines.poe.settings import POE
from rtgp._methods import on_one_process
from rtgp._objectives import EstimateStats
from rtgp._objectives.reading import known_noise, own_data
from rtgp.distributed import Group, environment, on_every_rank
from rtgp.errors import NotPositiveDefiniteError, RTGPError
from rtgp.operators import group_for
from rtgp.training._errors import TrainingError
from rtgp.training._history import History, hyperparameters, make_row
from rtgp.training._progress import Progress
from rtgp.training._result import FitResult, FitStatus
from rtgp.training._schedule import Schedule, ScheduleSettings


@dataclass(frozen=True)
class ExpertsTraining:
    """How experts are trained. Chosen, not fitted.

    Attributes
    ----------
    learning_rate : float
        The default step size of Adam.
    steps : int
        The default number of steps of Adam.
    entries : int
        Entries of the covariance matrices in one batch: 16 experts of 1,024 points, 128 MiB. There are four such
        arrays.
    schedule : ScheduleSettings
        How the step size falls.
    """

    learning_rate: float = 0.1
    steps: int = 60
    entries: int = 2**24
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)


DEFAULT = ExpertsTraining()


def train_experts(
    model: ExpertsModel,
    method: POE,
    steps: int | None,
    learning_rate: float | None,
    start: str,
    progress: bool = False,
    settings: ExpertsTraining = DEFAULT,
) -> FitResult:
    """Maximise the marginal likelihood of every expert, in place. `start`: where they begin, in words."""
    began = time.perf_counter()
    steps = settings.steps if steps is None else steps
    rate_asked = settings.learning_rate if learning_rate is None else learning_rate
    schedule = Schedule.of("cosine", rate_asked, steps, settings.schedule)
    group = group_for(method.operator)
    if group.size > 1:
        asked = {"method": repr(on_one_process(method)), "steps": str(steps), "learning rate": str(learning_rate)}
        group.check_same({**_fingerprint(model), **asked, **environment(own_data(model.experts[0])[1].device)})
    own = model.experts[group.own(len(model))]
    size = len(own_data(model.experts[0])[1])
    each = max(1, settings.entries // size**2)
    batches = [ExpertBatch(own[k : k + each]) for k in range(0, len(own), each)]
    names = list(hyperparameters(model.experts[0]))
    history = History()
    with Progress(progress and group.first, steps) as bar:
        for step in range(steps):
            rate = schedule.rate(step)
            assert rate is not None
            told = _tell(group, model, own, [batch.evaluate() for batch in batches])
            values = {name: statistics.median(told[:, 3 + k].tolist()) for k, name in enumerate(names)}
            for batch in batches:
                batch.step(rate)
            stats = EstimateStats("poe", torch.float64, math.nan, math.nan, math.nan, 0.0)
            norm, seconds = math.sqrt(float(told[:, 1].sum())), time.perf_counter() - began
            row = make_row(step, float(told[:, 0].mean()), 0.0, norm, math.nan, stats, rate, seconds, values)
            history.append(row)
            bar.update(row, steps)
    final = _tell(group, model, own, [batch.losses() for batch in batches])
    _share(group, model, own)
    model.eval()
    return FitResult(
        history=history,
        status=FitStatus.STEPS,
        method=method,
        method_reason="asked for",
        steps=steps,
        seconds=time.perf_counter() - began,
        loss=float(final[:, 0].mean()),
        loss_error=0.0,
        start=start,
        message=f"all {steps} steps were taken by each of {len(model)} experts of {size} points; the loss is the mean "
        "of theirs, each on its own points",
        optimizer="adam",
    )


def median_hyperparameters(model: ExpertsModel) -> dict[str, float]:
    """The median over experts of each hyperparameter."""
    found = [hyperparameters(expert) for expert in model]
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def _tell(group: Group, model: ExpertsModel, own: Sequence[Any], evaluated: Sequence[Tensor]) -> Tensor:
    """(k, 3 + p) on every rank: of each expert loss, squared gradient norm, whether it failed, and hyperparameters."""
    reference = own_data(model.experts[0])[1]
    width = len(hyperparameters(model.experts[0]))
    values = torch.tensor([list(hyperparameters(expert).values()) for expert in own], dtype=torch.float64)
    nothing = torch.zeros(0, 3, dtype=torch.float64, device=reference.device)
    mine = torch.cat([torch.cat([nothing, *evaluated]), values.reshape(-1, width).to(reference.device)], 1)
    told = group.gather_rows(mine, len(model)).cpu()
    failed = int(told[:, 2].sum())
    if failed:
        raise _of_all(
            group,
            NotPositiveDefiniteError(
                f"The covariance of {failed} of {len(model)} experts is not positive definite in float64. "
                "Raise the lower bound of the noise, or lower the learning rate."
            ),
        )
    if not bool(torch.isfinite(told[:, :2]).all()):
        raise _of_all(
            group,
            TrainingError(
                "Expected a finite loss and gradient of every expert. Got NaN or infinity: lower the learning rate."
            ),
        )
    return told


def _share(group: Group, model: ExpertsModel, own: Sequence[Any]) -> None:
    """Every expert's parameters to every rank."""
    if group.size == 1:
        return
    reference = next(model.experts[0].parameters())
    count = sum(parameter.numel() for parameter in model.experts[0].parameters())
    mine = [torch.cat([p.detach().reshape(-1) for p in expert.parameters()]) for expert in own]
    whole = group.gather_rows(torch.cat([reference.new_zeros(0), *mine]).reshape(-1, count).detach(), len(model))
    with torch.no_grad():
        for expert, values in zip(model, whole, strict=True):
            parameters = list(expert.parameters())
            parts = torch.split(values, [parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.copy_(part.reshape(parameter.shape))


def _of_all(group: Group, error: RTGPError) -> RTGPError:
    return on_every_rank(error) if group.size > 1 else error


def _fingerprint(model: ExpertsModel) -> dict[str, str]:
    """What must be the same on every rank before they divide the experts."""
    points, values = hashlib.sha256(), hashlib.sha256()
    for expert in model:
        noise = known_noise(expert.likelihood)
        for tensor in (*own_data(expert), *([] if noise is None else [noise])):
            points.update(repr((tuple(tensor.shape), tensor.dtype)).encode() + _bytes(tensor))
        for parameter in expert.parameters():
            values.update(_bytes(parameter))
    return {
        "points of the experts (the data, or the seed)": points.hexdigest(),
        "hyperparameters at the start": values.hexdigest(),
    }


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()
