"""`rtgp.fit`: train the hyperparameters of a GPyTorch model in place."""

from __future__ import annotations

import math
import os
import re
import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from rtgp.baselines import SGGP, Vecchia
from rtgp.distributed import environment
from rtgp.distributed.errors import DisagreementError, RankError
from rtgp.errors import RTGPError, SettingError
from rtgp.memory import enough_memory, remedy_for
from rtgp.methods import CG, RFF, Method, anywhere, likelihood_method
from rtgp.objectives.reading import check_model, given_data
from rtgp.operators import group_for
from rtgp.training.begin import begin
from rtgp.training.checkpoint import CheckpointFolder
from rtgp.training.choose import WITH_INFORMATION, choose_method, choose_optimizer, choose_start
from rtgp.training.descent import descend
from rtgp.training.features import warn_of_features
from rtgp.training.fingerprint import fingerprint
from rtgp.training.lbfgs import train_lbfgs
from rtgp.training.neighbour_start import start_from_neighbours
from rtgp.training.newton_run import descend_newton
from rtgp.training.outcome import Outcome, combined
from rtgp.training.problem import Problem, in_float64
from rtgp.training.progress import Progress
from rtgp.training.restarts import train_from_several
from rtgp.training.result import FitInterrupted, FitResult, FitStatus
from rtgp.training.schedule import NAMES, Factory, Schedule, default_steps, make_optimizer, unknown_optimizer
from rtgp.training.session import Callback, Session
from rtgp.training.settings import TrainingSettings
from rtgp.training.stopping import Plateau

FINAL_ESTIMATES = 4  # of the loss at the final parameters, where it is noisy
_TOLERANCE = {"noisy": 1e-3, "lbfgs": 1e-8}


def fit(
    model: Any,
    likelihood: Any,
    X: Any,
    y: Any,
    method: str | Method = "auto",
    optimizer: str | Factory | torch.optim.Optimizer = "auto",
    steps: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    callback: Callback | None = None,
    *,
    checkpoint_every: int | None = None,
    subset_start: str | bool | int = "auto",
    tolerance: float | None = None,
    patience: int = 20,
    progress: bool = False,
    restarts: int = 0,
    _settings: TrainingSettings | None = None,
) -> FitResult:
    """Maximise the marginal likelihood of a model on X (n, d) and y (n,), in place; the model ends in eval mode.

    method: "auto" (Cholesky where it is the cheaper, RR-CG beyond), another name, or a settings object.
    optimizer: "auto" is L-BFGS for Cholesky and Vecchia, and "average-information" for CG and RR-CG; Adam for the
    others, where a learning rate is given, or where the model has parts whose information is not known (networks).
    "average-information" (Newton steps with the average-information matrix, averaged at the end: 10 to 25 steps),
    "adam" (step size falling to zero over the last 40% of the steps), "lbfgs" (in float64; random draws frozen),
    "multistep" (the paper's: Adam at 0.01, divided by 10 at 50, 70 and 90%), or a torch optimiser: a class, a function
    of the parameters, or one that is made.
    checkpoint: a folder. Every `checkpoint_every` steps the state is saved there (default: every 10, from the 500th on
    after a fiftieth more of those done); a run that finds a checkpoint of the same problem goes on from it, to the same
    parameters as if it had never been interrupted.
    callback(row, model) is called after every step; True stops the training.
    subset_start: begin at hyperparameters fitted by Cholesky on a random subset: "auto" (half of the
    points, at most 1000, for noisy objectives of 200 points or more), True, False, or the number of points.
    tolerance, patience: Adam's step size begins to fall early once the mean loss of `patience` steps is below that of
    the `patience` steps before by less than the tolerance (default 1e-3 per point), two standard errors included; 0:
    never. For L-BFGS the relative decrease at which it ends (default 1e-8). For "average-information" what a further
    step may promise per point, and twice what the noise that is left may cost (default 2e-4).
    progress: show a bar with the time left.
    restarts: further starts, drawn at random around the given one. All are fitted on a subset first; the best of
    different ends are then trained on all data, and the best of those is kept: `FitResult.ends` has the loss of each.

    An obstacle on the way (a matrix that is not positive definite, a solve that does not converge, NaN, memory) takes
    back the step and changes what can be changed: precision, rank, and Cholesky in the place of an `RRCG()` that makes
    no headway. Where nothing is left, training ends at the best parameters so far. A status other than CONVERGED is a
    `ConvergenceWarning`. Ctrl-C leaves the model at its best parameters and is passed on.

    With RRCG(operator="sharded") or CG(operator="sharded"), called on every rank alike, the ranks of
    `rtgp.distributed.start()` train together; the first reads and writes the checkpoints, which are good for any number
    of ranks. The callback is called on each, and the training stops if it says so on any.
    """
    check_settings(steps, learning_rate, seed, checkpoint_every, tolerance, patience, restarts)
    internal = _settings or TrainingSettings()
    check_model(model, likelihood, "rtgp.fit(model, likelihood, X, y)")
    X, y = given_data(model, X, y)
    if method == "auto":
        method, reason = choose_method(X.shape[0], X.shape[1], X.device, internal.method)
    else:
        method, reason = likelihood_method(method), "asked for"
    if isinstance(optimizer, str):
        if optimizer not in NAMES:
            raise unknown_optimizer(optimizer)
        if optimizer == "auto":
            model.train(), likelihood.train()
            model.set_train_data(X, y, strict=False)
            trial = Problem(model, likelihood, X, y, method, 0)
            optimizer = choose_optimizer(trial, learning_rate, internal.newton).name
    elif not callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
        raise unknown_optimizer(optimizer)
    if optimizer == "average-information" and not isinstance(method, WITH_INFORMATION):
        raise SettingError(
            f"The 'optimizer' parameter cannot be 'average-information' with {type(method).__name__}, which does not "
            "estimate that matrix: leave it out, or take 'adam'."
        )
    lbfgs = optimizer == "lbfgs"
    if optimizer in ("lbfgs", "average-information") and learning_rate is not None:
        raise SettingError(
            f"The 'learning_rate' has no meaning for {optimizer!r}: leave it out, or take optimizer='adam'."
        )

    model.train(), likelihood.train()
    model.set_train_data(X, y, strict=False)
    if restarts:

        def train(folder: str | None) -> FitResult:
            return fit(
                model, likelihood, X, y, method, optimizer, steps, learning_rate, seed, folder, callback,
                checkpoint_every=checkpoint_every, subset_start=False, tolerance=tolerance, patience=patience,
                progress=progress, _settings=_settings,
            )  # fmt: skip

        several = Problem(model, likelihood, X, y, method, seed)
        best = train_from_several(several, restarts, seed, checkpoint, train, internal.restarts, internal.start)
        return replace(best, method_reason=reason + best.method_reason.removeprefix("asked for"))
    name = optimizer if isinstance(optimizer, str) else _name_of(optimizer)
    steps_asked = steps is not None
    steps = default_steps(name, X.shape[0]) if steps is None else steps
    group = group_for(getattr(method, "operator", "auto"))
    settings = {
        "method": _without_addresses(repr(anywhere(method))),
        "optimizer": name,
        "steps": str(steps),
        "learning rate": str(learning_rate),
        "seed": str(seed),
        "subset start": str(subset_start),
        "tolerance": str(tolerance),
        "patience": str(patience),
    }
    if internal != TrainingSettings():
        settings["internal settings"] = repr(internal)
    what = f"Training by {type(method).__name__} on {X.shape[0]:,} points"
    enough = enough_memory(what, remedy_for(method, X.shape[0], str(X.device)))
    problem: Problem | None = None
    try:
        with enough, in_float64(model, likelihood, X, y) if lbfgs else nullcontext((X, y)) as data:
            problem = Problem(
                model,
                likelihood,
                data[0],
                data[1],
                method,
                seed,
                "frozen" if lbfgs else "fresh",
                name in ("adam", "lbfgs", "average-information"),
                internal.headway,
            )
            asked = {**fingerprint(problem), **settings}
            if group.size > 1:
                group.check_same({**asked, "checkpoint": _yes_or_no(checkpoint), **environment(data[0].device)})
            folder = None if checkpoint is None else CheckpointFolder(checkpoint, asked)
            with folder or nullcontext(), Progress(progress and group.first, steps) as bar:
                session = Session(problem, callback, folder, checkpoint_every, bar, group)
                if session.finished is None:
                    _begin(session, subset_start, seed, internal)
                    warned = warn_of_features(problem, method, seed)
                    try:
                        outcome = _train(
                            session, optimizer, learning_rate, steps, tolerance, patience, steps_asked, internal
                        )
                    except KeyboardInterrupt:
                        session.broken_off()
                        raise FitInterrupted(_result(session, _interrupted(session), reason, name)) from None
                    except BaseException:
                        session.broken_off()
                        raise
                    if not warned:  # the hyperparameters have changed, and with them what features can do
                        warn_of_features(problem, method, seed)
                    return _finish(session, outcome, reason, name)
            with session.restoring():
                return _result(session, session.finished, reason, name)
    finally:
        if problem is not None:
            problem.mll.release()
        for parameter in model.parameters():
            parameter.grad = None
        model.eval(), likelihood.eval()


def _begin(session: Session, subset_start: str | bool | int, seed: int, settings: TrainingSettings) -> None:
    if session.resumed is not None:
        return
    problem = session.problem
    count = sum(parameter.numel() for parameter in problem.parameters.values())
    choice = choose_start(subset_start, problem.method, problem.n, count, settings.start)
    if choice.neighbours and isinstance(problem.method, Vecchia):
        session.start = start_from_neighbours(problem, problem.method, seed)
        return
    session.start = choice.reason
    if choice.size:
        session.start = begin(problem, choice.size, choice.neighbours, seed, settings.start)


def _train(
    session: Session,
    optimizer: str | Factory | torch.optim.Optimizer,
    learning_rate: float | None,
    steps: int,
    tolerance: float | None,
    patience: int,
    asked: bool,
    settings: TrainingSettings,
) -> Outcome:
    """asked: whether the number of steps was."""
    if optimizer == "lbfgs":
        return train_lbfgs(session, steps, _TOLERANCE["lbfgs"] if tolerance is None else tolerance)
    if optimizer == "average-information":
        newton = settings.newton if tolerance is None else replace(settings.newton, tolerance=tolerance)
        return descend_newton(session, steps, newton, 0 if asked else default_steps("lbfgs", session.problem.n))
    made, kind, rate = make_optimizer(optimizer, session.problem.leaves, learning_rate)
    # The paper's schedule runs its course: at its small last step sizes every loss looks flat.
    tolerance = _TOLERANCE["noisy"] if tolerance is None else tolerance
    plateau = None if kind == "multistep" or tolerance == 0.0 else Plateau(patience, tolerance)
    return descend(session, made, Schedule.of(kind, rate, steps), plateau)


def _finish(session: Session, outcome: Outcome, reason: str, optimizer: str) -> FitResult:
    method, message = session.problem.method, outcome.message
    known = session.final or _final_loss(session)
    loss, error = known or _last_loss(session)
    if isinstance(method, CG):
        message += "; plain CG is biased, so the loss and the optimum are off by an unknown amount"
    if isinstance(method, RFF):
        last = session.problem.mll.last
        count = 0 if last is None else last.features
        message += f"; RFF ({count} features) is biased towards overfitting: the optimum is off by an unknown amount"
    if isinstance(method, Vecchia):
        message += f"; the loss is that of each point given {method.neighbours} neighbours, not of all points together"
    if isinstance(method, SGGP):
        message += "; the loss is that of sets of neighbours, not of all points together"
    finished = {
        "status": outcome.status.value,
        "steps": outcome.steps,
        "loss": loss,
        "loss_error": error,
        "message": message,
    }
    if outcome.final and known is not None:
        session.save(outcome.steps, outcome.state, finished)
    if outcome.status is not FitStatus.CONVERGED:
        from sklearn.exceptions import ConvergenceWarning

        warnings.warn(
            f"Training has not converged: {message.rstrip('.')}. The parameters are the best so far.",
            ConvergenceWarning,
            stacklevel=3,
        )
    return _result(session, finished, reason, optimizer)


def _final_loss(session: Session) -> tuple[float, float] | None:
    """At the final parameters; None where that fails."""
    problem = session.problem
    try:
        return combined(problem.estimates(1 if problem.noiseless else FINAL_ESTIMATES))
    except (RankError, DisagreementError):
        raise
    except RTGPError:
        return None


def _last_loss(session: Session) -> tuple[float, float]:
    """What the last step saw."""
    if not len(session.history):
        return math.nan, math.nan
    return tuple(float(session.history.column(name)[-1]) for name in ("loss", "loss_error"))  # type: ignore[return-value]


def _interrupted(session: Session) -> dict[str, Any]:
    loss, error = _last_loss(session)
    steps = len(session.history)
    message = f"interrupted after {steps} steps; the loss is that of the last"
    return {
        "status": FitStatus.INTERRUPTED.value, "steps": steps, "loss": loss, "loss_error": error, "message": message,
    }  # fmt: skip


def _result(session: Session, finished: dict[str, Any], reason: str, optimizer: str) -> FitResult:
    problem = session.problem
    last = problem.mll.last
    return FitResult(
        history=session.history,
        status=FitStatus(finished["status"]),
        method=problem.method,
        method_reason="; ".join([reason, *problem.changes]),
        steps=int(finished["steps"]),
        seconds=session.seconds,
        loss=float(finished["loss"]),
        loss_error=float(finished["loss_error"]),
        start=session.start,
        message=str(finished["message"]),
        optimizer=optimizer,
        dtype="" if last is None else str(last.dtype).removeprefix("torch."),
    )


def _name_of(optimizer: Factory | torch.optim.Optimizer) -> str:
    if isinstance(optimizer, torch.optim.Optimizer):
        return type(optimizer).__name__
    return getattr(optimizer, "__qualname__", None) or _without_addresses(repr(optimizer))


def _yes_or_no(setting: object) -> str:
    return "no" if setting is None else "yes"


def _without_addresses(words: str) -> str:
    """Addresses in memory differ from process to process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", words)


def check_settings(
    steps: int | None,
    learning_rate: float | None,
    seed: int,
    checkpoint_every: int | None = None,
    tolerance: float | None = None,
    patience: int = 20,
    restarts: int = 0,
) -> None:
    for name, value, least in (
        ("restarts", restarts, 0),
        ("steps", 1 if steps is None else steps, 1),
        ("seed", seed, 0),
        ("checkpoint_every", 1 if checkpoint_every is None else checkpoint_every, 1),
        ("patience", patience, 3),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SettingError(f"The '{name}' parameter of fit must be an integer from {least}. Got {value!r} instead.")
    for name, number, allowed in (("learning_rate", learning_rate, False), ("tolerance", tolerance, True)):
        real = isinstance(number, (int, float)) and not isinstance(number, bool)
        if number is not None and not (real and math.isfinite(number) and (number > 0 or (allowed and number == 0))):
            raise SettingError(
                f"The '{name}' parameter of fit must be a {'non-negative' if allowed else 'positive'} number or None. "
                f"Got {number!r} instead."
            )
