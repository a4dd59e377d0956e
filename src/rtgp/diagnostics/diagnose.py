"""`rtgp.diagnose`: what plain CG would do to the hyperparameters of a model, measured."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rtgp.diagnostics.curvature import Shift, information_of, predicted_shift
from rtgp.diagnostics.draws import Sample
from rtgp.diagnostics.fourier import fourier_limit
from rtgp.diagnostics.measure import Measurement, mean_covariance, measure
from rtgp.diagnostics.result import NEGLIGIBLE, Cost, Diagnosis, HyperparameterBias, ValueBias
from rtgp.diagnostics.subject import Subject, read_subject
from rtgp.diagnostics.system import SubjectSystem
from rtgp.diagnostics.value import Course, course_of
from rtgp.diagnostics.verdict import verdict
from rtgp.errors import ConvergenceError, NotPositiveDefiniteError, PrecisionWarning, SettingError
from rtgp.methods import CG, RRCG, Method, resolve_method
from rtgp.objectives import EstimateStats
from rtgp.preconditioners import PivotedCholesky
from rtgp.preconditioners.shape import Shape
from rtgp.solvers.system import ROUNDING_LIMIT
from rtgp.truncation import ResidualDriven

EXACT_UP_TO = 3000  # points: Cholesky is the reference
_DRAWS = ((EXACT_UP_TO, 16), (20_000, 8))  # up to so many points, so many draws
_FEWEST_DRAWS = 4
_FALSE_ALARM = 0.01  # probability that any unbiased hyperparameter is called biased
_CAP = 5  # times CG's iterations: how long to look for the end of its series


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
) -> Diagnosis:
    """The bias of plain CG at given hyperparameters, with its sign and size, and what RR-CG would do instead.

    subject: a GPyTorch ExactGP with its training data, or a fitted GPRegressor, diagnosed at its present
    hyperparameters and left as it is; or a Dataset, or X (n, d) with y (n,), for which hyperparameters are fitted first
    (by Cholesky, on at most 1000 rows; standardised).
    method: "cg", or rtgp.CG(iterations=..., ...). rr_cg: what to compare with, rtgp.RRCG() by default.
    kernel, dtype: for bare data only: a GPyTorch kernel (default: scaled RBF, one lengthscale for each input) and
    "float32" (default) or "float64".
    draws: gradient estimates of each kind, by default 16 up to 3000 points, 8 up to 20000, 4 beyond.
    """
    asked = resolve_method(method)
    if not isinstance(asked, CG):
        raise SettingError(
            "The 'method' parameter of diagnose must be 'cg' or rtgp.CG(...), whose bias is to be measured. "
            f"Got {asked!r:.60} instead."
        )
    if rr_cg is not None and not isinstance(rr_cg, RRCG):
        raise SettingError(f"The 'rr_cg' parameter of diagnose must be an rtgp.RRCG. Got {rr_cg!r:.60} instead.")
    for name, value, least in (("draws", 2 if draws is None else draws, 2), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SettingError(
                f"The '{name}' parameter of diagnose must be an integer from {least}. Got {value!r} instead."
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # the diagnosis says it itself
        found = read_subject(subject, y, kernel, dtype, seed)
        count = _draws_for(len(found.y)) if draws is None else draws
        rr = RRCG() if rr_cg is None else rr_cg
        try:
            return _diagnose(found, asked, rr, count, seed, "")
        except (NotPositiveDefiniteError, ConvergenceError) as error:
            if found.X.dtype == torch.float64:
                raise
            return _diagnose(found.to(torch.float64), asked, rr, count, seed, str(error))


def _draws_for(n: int) -> int:
    return next((count for limit, count in _DRAWS if n <= limit), _FEWEST_DRAWS)


def _diagnose(subject: Subject, cg: CG, rr: RRCG, draws: int, seed: int, failure: str) -> Diagnosis:
    # Every draw stands for itself: a solution kept from the one before would make the y-solve look free.
    cg, rr = replace(cg, warm_start=False), replace(rr, warm_start=False)
    n, dtype = len(subject.y), subject.X.dtype
    wide = subject if dtype == torch.float64 else subject.to(torch.float64)
    measured = measure(subject, wide, cg, rr, draws, seed, exact=n <= EXACT_UP_TO)
    system = SubjectSystem(wide)
    information = information_of(wide, measured.units, measured.exact is not None, seed)
    cap = max(_CAP * cg.iterations, 100)
    course, rr_course = (course_of(system, one, cap, seed) for one in (cg, rr))
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
        hyperparameters=_hyperparameters(measured, shift),
        left_out=tuple(measured.units.left_out),
        log_det=_log_det(cg.iterations, course, measured),
        quadratic=_quadratic(measured),
        cost_in_nats=shift.cost,
        distance_in_nats=predicted_shift(measured.gradient, measured.gradient_covariance, information).cost,
        condition=stats.condition,
        rounding=system.system.limits(dtype).rounding,  # also where the objective took float64 by itself
        rounding_limit=ROUNDING_LIMIT,
        rounding_in_nats=predicted_shift(measured.rounding, certain, information).cost,
        float32_failure=failure,
        iterations_to_percent=(course.iterations_to_percent, rr_course.iterations_to_percent),
        iteration_cap=cap,
        cg_cost=_cost(measured.cg),
        rr_cg_cost=_cost(measured.rr),
        reasons=_reasons(rr, measured.rr, n),
        verdict="",
        fourier=fourier_limit(wide, system, seed),
    )
    return replace(found, verdict=verdict(found))


def _hyperparameters(measured: Measurement, shift: Shift) -> tuple[HyperparameterBias, ...]:
    bias, truncation, entries = measured.bias, measured.truncation, measured.units.entries
    draws = len(bias)
    bias_error = bias.std(0) / math.sqrt(draws)
    threshold = _threshold(draws, len(entries))
    # An input without influence has a gradient of nearly zero, of which rounding is no small part: no finding.
    floor = NEGLIGIBLE * float(measured.cg_converged.gradients.abs().max())
    detected = bias.mean(0).abs() > threshold * bias_error + floor
    shift_detected = detected.any() & (shift.size.abs() > threshold * shift.error + NEGLIGIBLE)
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


def _threshold(draws: int, count: int) -> float:
    """Standard errors beyond which a bias is no chance, for `count` hyperparameters together (Bonferroni)."""
    from scipy.special import stdtrit  # quantiles of Student's t

    return float(stdtrit(draws - 1, 1.0 - _FALSE_ALARM / (2 * count)))


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
    """Of the mean; one value alone has an unknown one."""
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
