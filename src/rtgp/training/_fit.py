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

from rtgp._memory import enough_memory
from rtgp._methods import Method, likelihood_method, on_one_process
from rtgp._objectives.reading import check_model, given_data, hold, rows_of
from rtgp._precision import Notices, model_in_float64
from rtgp.distributed import environment
from rtgp.distributed._errors import DisagreementError, RankError
from rtgp.errors import RTGPError, SettingError
from rtgp.operators import group_for
from rtgp.training._checkpoint import CheckpointFolder
from rtgp.training._choose import choose_method, choose_optimizer, choose_start
from rtgp.training._choose_start import begin, look_elsewhere
from rtgp.training._descent import descend
from rtgp.training._features import warn_of_features
from rtgp.training._fingerprint import fingerprint
from rtgp.training._lbfgs import train_lbfgs
from rtgp.training._neighbour_start import start_from_neighbours
from rtgp.training._newton_run import descend_newton
from rtgp.training._outcome import Outcome, combined
from rtgp.training._plateau import Plateau
from rtgp.training._problem import Problem
from rtgp.training._progress import Progress
from rtgp.training._restarts import train_from_several
from rtgp.training._result import FitInterrupted, FitResult, FitStatus
from rtgp.training._schedule import NAMES, Factory, Schedule, default_steps, make_optimizer, unknown_optimizer
from rtgp.training._session import Callback, Session
from rtgp.training._settings import TrainingSettings


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
    _notices: Notices | None = None,
) -> FitResult:
    """Maximise the marginal likelihood of a GPyTorch model, in place. The model ends in eval mode.

    Parameters
    ----------
    model : gpytorch.models.ExactGP
        The model. Its hyperparameters are changed, and X and y become its training data.
    likelihood : gpytorch likelihood
        One of Gaussian noise, such as a `GaussianLikelihood` or a `MultitaskGaussianLikelihood`.
    X : Tensor
        The training inputs, (n, d). Of a model of several inputs, all of them: `model.train_inputs`.
    y : Tensor
        The training targets, (n,). Of several tasks, (n, t); of a batch of models, (b, n). The data of such models must
        be their own. Of a batch the mean of the marginal likelihoods is maximised.
    method : str or settings object
        "auto" takes Cholesky where it is the cheaper and RR-CG beyond. Or another name, or an object such as
        `rtgp.RRCG()`.
    optimizer : str, torch optimiser or callable
        One of the following, a torch optimiser (a class or an object), or a function of the parameters that makes one:

        - "auto": L-BFGS for Cholesky and Vecchia, "average-information" for CG and RR-CG, and Adam for the others. Also
          Adam where a learning rate is given, and where the model has parts whose information is not known (networks).
        - "average-information": Newton steps with the average-information matrix, averaged at the end: 10 to 25 steps.
        - "adam": the step size falls to zero over the last 40% of the steps.
        - "lbfgs": in float64, with frozen random draws.
        - "multistep": the paper's, Adam at 0.01, divided by 10 at 50, 70 and 90% of the steps.
    steps : int, optional
        The largest number of steps. By default it depends on the optimiser.
    learning_rate : float, optional
        The first step size of Adam.
    seed : int
        The seed of all random numbers.
    checkpoint : path, optional
        A folder where the state is saved. A run that finds a checkpoint of the same problem there goes on from it, to
        the same parameters as if it had never been interrupted.
    callback : callable, optional
        `callback(row, model)` is called after every step. Training stops when it returns True.
    checkpoint_every : int, optional
        Steps between two checkpoints. By default 10, and from the 500th step on a fiftieth of the steps done.
    subset_start : "auto", bool or int
        Whether to begin at hyperparameters that Cholesky finds on a random subset, or the size of that subset. "auto"
        takes half of the points, at most 1000, for noisy objectives of 200 points or more.
    tolerance : float, optional
        When training ends. For Adam, a decrease of the mean loss per point: once `patience` steps gain less than this,
        two standard errors included, the step size begins to fall (default 1e-3; 0: never). For L-BFGS, a relative
        decrease (default 1e-8). For "average-information", what a further step may promise per point, and twice what
        the remaining noise may cost (default 2e-4).
    patience : int
        For Adam, the number of steps whose mean loss is compared with that of the steps before.
    progress : bool
        Whether to show a bar with the time left.
    restarts : int
        Further starts, drawn at random around the given one. All are fitted on a subset first. The best of different
        ends are then trained on all data, and the best of those is kept.

    Returns
    -------
    FitResult
        The status, the last loss with its standard error, and the history.

    Raises
    ------
    FitInterrupted
        After Ctrl-C. The model is at its best parameters.

    Warns
    -----
    ConvergenceWarning
        If training ended before its optimum.

    See Also
    --------
    GPRegressor : The same for arrays, without a model of your own.

    Notes
    -----
    At an obstacle (a matrix that is not positive definite, a solve that does not converge, NaN, memory) training takes
    back the step and changes what it can: the precision, the rank, or Cholesky in place of an `RRCG()` that makes no
    progress. Where nothing is left to change, it ends at the best parameters so far.

    With `RRCG(operator="sharded")` or `CG(operator="sharded")` the ranks of `rtgp.distributed.start()` train together,
    and every rank makes the same call. The first rank reads and writes the checkpoints, which serve any number of
    ranks. The callback is called on each rank; training stops if it says so on any.

    Examples
    --------
    >>> import gpytorch, torch, rtgp
    >>> class Model(gpytorch.models.ExactGP):
    ...     def __init__(self, X, y, likelihood):
    ...         super().__init__(X, y, likelihood)
    ...         self.mean_module = gpytorch.means.ConstantMean()
    ...         self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    ...     def forward(self, x):
    ...         return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
    >>> X = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    >>> y = torch.sin(6 * X[:, 0]) + 0.1 * torch.cos(50 * X[:, 0])
    >>> likelihood = gpytorch.likelihoods.GaussianLikelihood()
    >>> model = Model(X, y, likelihood).double()
    >>> result = rtgp.fit(model, likelihood, X, y)
    >>> result.status.value, result.optimizer
    ('converged', 'lbfgs')
    """
    check_settings(steps, learning_rate, seed, checkpoint_every, tolerance, patience, restarts)
    internal, notices = _settings or TrainingSettings(), _notices or Notices()
    check_model(model, likelihood, "rtgp.fit(model, likelihood, X, y)")
    X, y = given_data(model, X, y)
    rows = rows_of(likelihood, y)
    if method == "auto":
        method, reason = choose_method(rows, X.shape[-1], X.device, internal.method)
    else:
        method, reason = likelihood_method(method), "asked for"
    if isinstance(optimizer, str):
        if optimizer not in NAMES:
            raise unknown_optimizer(optimizer)
        if optimizer == "auto":
            model.train(), likelihood.train()
            hold(model, X, y)
            trial = Problem(model, likelihood, X, y, method, 0)
            optimizer = choose_optimizer(trial, learning_rate, internal.newton).name
    elif not callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
        raise unknown_optimizer(optimizer)
    if optimizer == "average-information" and not method.has_information:
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
    hold(model, X, y)
    if restarts:

        def train(folder: str | None) -> FitResult:
            return fit(
                model, likelihood, X, y, method, optimizer, steps, learning_rate, seed, folder, callback,
                checkpoint_every=checkpoint_every, subset_start=False, tolerance=tolerance, patience=patience,
                progress=progress, _settings=_settings, _notices=notices,
            )  # fmt: skip

        several = Problem(model, likelihood, X, y, method, seed, switch=internal.switch, settings=internal.problem)
        best = train_from_several(several, restarts, seed, checkpoint, train, internal.restarts, internal.start)
        return replace(best, method_reason=reason + best.method_reason.removeprefix("asked for"))
    name = optimizer if isinstance(optimizer, str) else _name_of(optimizer)
    steps_asked = steps is not None
    steps = default_steps(name, rows) if steps is None else steps
    group = group_for(method.spread_operator)
    settings = {
        "method": _without_addresses(repr(on_one_process(method))),
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
    if method.internal_settings:
        settings["internal settings of the method"] = method.internal_settings
    what = f"Training by {type(method).__name__} on {rows:,} points"
    enough = enough_memory(what, method.memory_remedy(rows, str(X.device)))
    problem: Problem | None = None
    try:
        with enough, model_in_float64(model, likelihood, X, y, hold) if lbfgs else nullcontext((X, y)) as data:
            problem = Problem(
                model,
                likelihood,
                data[0],
                data[1],
                method,
                seed,
                "frozen" if lbfgs else "fresh",
                name in ("adam", "lbfgs", "average-information"),
                internal.switch,
                internal.problem,
                notices,
            )
            asked = {**fingerprint(problem), **settings}
            if group.size > 1:
                group.check_same({**asked, "checkpoint": _yes_or_no(checkpoint), **environment(data[0].device)})
            folder = None if checkpoint is None else CheckpointFolder(checkpoint, asked)
            with folder or nullcontext(), Progress(progress and group.first, steps) as bar:
                session = Session(problem, callback, folder, checkpoint_every, bar, group, internal.checkpoints)
                if session.finished is None:
                    try:
                        _begin(session, subset_start, seed, internal)
                        warned = warn_of_features(problem, method, seed, internal.features)
                        outcome = _train(
                            session, optimizer, learning_rate, steps, tolerance, patience, steps_asked, internal
                        )
                        session.keep(outcome.steps, None)
                        if not warned:  # the hyperparameters have changed, and with them what features can do
                            warn_of_features(problem, method, seed, internal.features)
                        return _finish(session, outcome, reason, name)
                    except KeyboardInterrupt:
                        session.broken_off()
                        raise FitInterrupted(_result(session, _interrupted(session), reason, name)) from None
                    except BaseException:
                        session.broken_off()
                        raise
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
    choice = choose_start(subset_start, problem.method, problem.rows, count, settings.start)
    if choice.neighbours and problem.method.conditioned_on is not None:
        session.start = start_from_neighbours(problem, problem.method.conditioned_on, seed, settings.neighbours)
        return
    session.start = choice.reason
    if choice.size:
        session.start = begin(problem, choice.size, choice.neighbours, seed, settings.start, settings.neighbours)
    elif choice.look:
        session.start = look_elsewhere(problem, choice.look, seed, settings.start) or choice.reason


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
    """Train the problem. `asked` tells whether the user gave the number of steps."""
    if optimizer == "lbfgs":
        tolerance = settings.lbfgs.tolerance if tolerance is None else tolerance
        return train_lbfgs(session, steps, tolerance, settings.lbfgs)
    if optimizer == "average-information":
        newton = settings.newton if tolerance is None else replace(settings.newton, tolerance=tolerance)
        more = 0 if asked else default_steps("lbfgs", session.problem.rows)
        return descend_newton(session, steps, newton, more, settings.lbfgs)
    made, kind, rate = make_optimizer(optimizer, session.problem.leaves, learning_rate)
    # The paper's schedule runs its course: at its small last step sizes every loss looks flat.
    tolerance = settings.descent.tolerance if tolerance is None else tolerance
    plateau = None if kind == "multistep" or tolerance == 0.0 else Plateau(patience, tolerance)
    schedule = Schedule.of(kind, rate, steps, settings.schedule)
    return descend(session, made, schedule, plateau, settings.descent)


def _finish(session: Session, outcome: Outcome, reason: str, optimizer: str) -> FitResult:
    message = outcome.message
    known = session.final or _final_loss(session)
    loss, error = known or _last_loss(session)
    if caveat := session.problem.method.caveat(session.problem.mll.last):
        message += f"; {caveat}"
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
        return combined(problem.estimates(1 if problem.noiseless else problem.settings.final_estimates))
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
