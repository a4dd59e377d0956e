"""`rtgp.diagnose`: what plain CG would do to the hyperparameters of a model, measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rtgp._methods import CG, RRCG, Method, plain_cg, resolve_method, roulette
from rtgp._objectives import EstimateSettings, EstimateStats
from rtgp._precision import PrecisionSettings, decide_after
from rtgp._preconditioners import PivotedCholesky
from rtgp._preconditioners.shape import Shape
from rtgp.diagnostics._curvature import Shift, information_of, predicted_shift
from rtgp.diagnostics._draws import Sample
from rtgp.diagnostics._fourier import fourier_limit
from rtgp.diagnostics._measure import Measurement, mean_covariance, measure
from rtgp.diagnostics._result import Cost, Diagnosis, HyperparameterBias, ValueBias
from rtgp.diagnostics._settings import DiagnosisSettings, JudgementSettings
from rtgp.diagnostics._subject import Subject, SubjectSystem, read_subject
from rtgp.diagnostics._value import Course, course_of
from rtgp.diagnostics._verdict import verdict
from rtgp.errors import RTGPError, SettingError
from rtgp.truncation import ResidualDriven


def diagnose(
    subject: Any,
    y: Any = None,
    *,
    method: str | Method = "cg",
    rr_cg: RRCG | None = None,
    kernel: Any = None,
    dtype: str | None = None,
    draws: int | None = None,
    seed: int = 0,
    _settings: DiagnosisSettings | None = None,
) -> Diagnosis:
    """Measure the bias of plain CG at given hyperparameters, and what RR-CG would do instead.

    Parameters
    ----------
    subject : gpytorch.models.ExactGP, GPRegressor, Dataset or array
        A model with its training data, or a fitted estimator, is diagnosed at its present hyperparameters and left as
        it is. For a Dataset, or for X (n, d) with y, hyperparameters are fitted first (by Cholesky, on at most 1000
        rows; standardised).
    y : array, optional
        The targets (n,), where `subject` is X.
    method : str or CG
        "cg", or an object such as `rtgp.CG(iterations=50)`.
    rr_cg : RRCG, optional
        What to compare with. By default `rtgp.RRCG()`.
    kernel : gpytorch.kernels.Kernel, optional
        For bare data only. By default a scaled RBF kernel with one lengthscale for each input.
    dtype : {"float32", "float64"}, optional
        For bare data only. By default float32.
    draws : int, optional
        Gradient estimates of each kind. By default 16 up to 3000 points, 8 up to 20000, 4 beyond.
    seed : int
        The seed of all random numbers.

    Returns
    -------
    Diagnosis
        Figures, tables and a verdict in words; `print` shows them.

    Examples
    --------
    >>> import gpytorch, torch, rtgp
    >>> X = torch.linspace(0, 1, 60, dtype=torch.float64)[:, None]
    >>> y = torch.sin(20 * X[:, 0]) + 0.1 * torch.cos(90 * X[:, 0])
    >>> kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(0.5))
    >>> found = rtgp.diagnose(X, y, method=rtgp.CG(iterations=2), kernel=kernel, draws=2, dtype="float64")
    >>> found.name, found.n, found.exact
    ('CG(2)', 60, True)
    """
    asked = plain_cg(method)
    if asked is None:
        raise SettingError(
            "The 'method' parameter of diagnose must be 'cg' or rtgp.CG(...), whose bias is to be measured. "
            f"Got {resolve_method(method)!r:.60} instead."
        )
    rr = RRCG() if rr_cg is None else roulette(rr_cg)
    if rr is None:
        raise SettingError(f"The 'rr_cg' parameter of diagnose must be an rtgp.RRCG. Got {rr_cg!r:.60} instead.")
    for name, value, least in (("draws", 2 if draws is None else draws, 2), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SettingError(
                f"The '{name}' parameter of diagnose must be an integer from {least}. Got {value!r} instead."
            )
    settings = _settings or DiagnosisSettings()
    found = read_subject(subject, y, kernel, dtype, seed, settings.subject)
    count = settings.measure.draws_for(len(found.y)) if draws is None else draws
    try:
        return _diagnose(found, asked, rr, count, seed, "", settings)
    except RTGPError as error:
        precision = decide_after(error, found.X.dtype)
        if precision is None:
            raise
        return _diagnose(found.to(precision.dtype), asked, rr, count, seed, str(error), settings)


def _diagnose(
    subject: Subject, cg: CG, rr: RRCG, draws: int, seed: int, failure: str, settings: DiagnosisSettings
) -> Diagnosis:
    # Every draw stands for itself: a solution kept from the one before would make the y-solve look free. And what is
    # measured is what random draws cost, which on a few dozen points an automatic setting does without.
    random = replace(rr._settings or EstimateSettings(), exact_points=0)
    cg, rr = replace(cg, warm_start=False), replace(rr, warm_start=False, _settings=random)
    n, dtype = len(subject.y), subject.X.dtype
    wide = subject if dtype == torch.float64 else subject.to(torch.float64)
    measured = measure(subject, wide, cg, rr, draws, seed, settings.measure)
    system = SubjectSystem(wide)
    information = information_of(wide, measured.units, measured.exact is not None, seed, settings.measure)
    cap = max(settings.measure.cap * cg.iterations, 100)
    course, rr_course = (course_of(system, one, cap, seed, settings.measure) for one in (cg, rr))
    certain = torch.zeros_like(information)
    shift = predicted_shift(measured.bias.mean(0), mean_covariance(measured.bias), information)
    stats = measured.cg.stats[0]
    found = Diagnosis(
        method=cg,
        rr_cg=rr,
        n=n,
        dimension=subject.X.shape[-1] if subject.X.ndim > 1 else 1,
        dtype=str(dtype).removeprefix("torch."),
        origin=subject.origin,
        draws=draws,
        exact=measured.exact is not None,
        hyperparameters=_hyperparameters(measured, shift, settings.judgement),
        left_out=tuple(measured.units.left_out),
        log_det=_log_det(cg.iterations, course, measured),
        quadratic=_quadratic(measured),
        cost_in_nats=shift.cost,
        distance_in_nats=predicted_shift(measured.gradient, measured.gradient_covariance, information).cost,
        condition=stats.condition,
        rounding=system.system.limits(dtype).rounding,  # also where the objective took float64 by itself
        rounding_limit=PrecisionSettings().rounding,
        rounding_in_nats=predicted_shift(measured.rounding, certain, information).cost,
        float32_failure=failure,
        iterations_to_percent=(course.iterations_to_percent, rr_course.iterations_to_percent),
        iteration_cap=cap,
        cg_cost=_cost(measured.cg),
        rr_cg_cost=_cost(measured.rr),
        reasons=_reasons(rr, measured.rr, n),
        verdict="",
        fourier=fourier_limit(wide, system, seed, settings.fourier),
        judgement=settings.judgement,
    )
    return replace(found, verdict=verdict(found))


def _hyperparameters(
    measured: Measurement, shift: Shift, settings: JudgementSettings
) -> tuple[HyperparameterBias, ...]:
    bias, truncation, entries = measured.bias, measured.truncation, measured.units.entries
    draws = len(bias)
    bias_error = bias.std(0) / math.sqrt(draws)
    threshold = _threshold(draws, len(entries), settings.false_alarm)
    # An input without influence has a gradient of nearly zero, of which rounding is no small part: no finding.
    floor = settings.negligible * float(measured.cg_converged.gradients.abs().max())
    detected = bias.mean(0).abs() > threshold * bias_error + floor
    shift_detected = detected.any() & (shift.size.abs() > threshold * shift.error + settings.negligible)
    columns = {
        "gradient": measured.gradient,
        "gradient_error": measured.gradient_covariance.diagonal().sqrt(),
        "bias": bias.mean(0),
        "bias_error": bias_error,
        "shift": shift.size,
        "shift_error": shift.error,
        "probe_sd": measured.rr_converged.gradients.std(0),
        "truncation_sd": truncation.std(0),
        "rr_cg_bias": truncation.mean(0),
        "rr_cg_bias_error": truncation.std(0) / math.sqrt(draws),
        "cg_probe_sd": measured.cg_converged.gradients.std(0),
        "rounding": measured.rounding,
    }
    return tuple(
        HyperparameterBias(
            name=entry.name,
            value=entry.value,
            logarithmic=entry.logarithmic,
            detected=bool(detected[i]),
            shift_detected=bool(shift_detected[i]),
            **{name: float(column[i]) for name, column in columns.items()},
        )
        for i, entry in enumerate(entries)
    )


def _threshold(draws: int, count: int, false_alarm: float) -> float:
    """Standard errors beyond which a bias is not by chance, for `count` hyperparameters together (Bonferroni)."""
    from scipy.special import stdtrit  # quantiles of Student's t

    return float(stdtrit(draws - 1, 1.0 - false_alarm / (2 * count)))


def _log_det(iterations: int, course: Course, measured: Measurement) -> ValueBias:
    found, reference = measured.cg.values("log_det"), measured.rr_converged.values("log_det")
    value = float(reference.mean()) if measured.exact is None else measured.exact.stats[0].log_det
    if course.ended:
        bias = course.log_det_bias(iterations)
        return ValueBias(value, float(bias.mean()), _error(bias))
    # No common random numbers: CG's probes for the value are its preconditioner's. Hence the larger error.
    error = _error(found) if measured.exact else math.hypot(_error(found), _error(reference))
    return ValueBias(value, float(found.mean()) - value, error)


def _error(values: Tensor) -> float:
    """The standard error of the mean; unknown for one value alone."""
    return float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _quadratic(measured: Measurement) -> ValueBias:
    reference, exact = measured.cg_converged.values("quadratic"), measured.exact
    difference = measured.cg.values("quadratic") - reference
    value = float(reference.mean()) if exact is None else exact.stats[0].quadratic
    return ValueBias(value, float(difference.mean()), _error(difference))


def _cost(sample: Sample) -> Cost:
    iterations = [one.iterations for one in sample.stats]
    last: EstimateStats = sample.stats[-1]
    return Cost(
        iterations=sum(iterations) / len(iterations),
        shortest=min(iterations),
        longest=max(iterations),
        columns=last.columns,
        rank=last.rank,
        probe_kind=last.probe_kind,
        seconds=sample.median_seconds,
    )


def _reasons(rr: RRCG, sample: Sample, n: int) -> tuple[tuple[str, str], ...]:
    cost, settings = _cost(sample), rr.preconditioner
    why = sample.stats[-1].preconditioner_reason
    if settings is None:
        rank = "none, as asked for"
    elif why:
        rank = why
    elif not isinstance(settings, PivotedCholesky) or settings.rank is not None:
        rank = f"{Shape(cost.rank, sample.stats[-1].neighbours)}, as asked for"
    else:
        wanted = settings.rank_for(n, 2 + rr.probes)
        rank = f"rank {cost.rank}: sqrt(2 n r) for r = {2 + rr.probes} right-hand sides costs about one product with K"
        if cost.rank < wanted:
            rank += f" ({wanted}, of which {wanted - cost.rank} would have added nothing)"
    if isinstance(rr.truncation, ResidualDriven):
        tau = rr.truncation.tau
        rule = f"certain to go on until the error ratio is below tau = {tau:g}, then with probability ratio / tau"
    else:
        rule = f"{rr.truncation!r}, as asked for"
    kinds = {
        "preconditioner": "of the preconditioner's covariance: less variance than random signs, and log|K| for free",
        "rademacher": "random signs",
        "gaussian": "normal",
    }
    return (
        ("preconditioner", rank),
        ("probes", f"{rr.probes} {kinds.get(cost.probe_kind, cost.probe_kind)}"),
        ("truncation", f"{rule}: {cost.iterations:.3g} iterations on average, {cost.shortest} to {cost.longest}"),
    )
