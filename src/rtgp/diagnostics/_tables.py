"""The diagnosis as rows of text, for the terminal and for print()."""

from __future__ import annotations

import math

from rtgp.diagnostics._result import Cost, Diagnosis, HyperparameterBias, ValueBias

HEAD = ("hyperparameter", "value", "gradient", "bias of CG", "CG would move it by", "sd, probes", "sd, truncation")


def note(found: Diagnosis) -> str:
    """What the columns mean."""
    idle = len(found.hyperparameters) - len(found.influential)
    reference = "exact, by Cholesky in float64" if found.exact else "from converged runs, ± standard error"
    return (
        "gradient: of the negative log marginal likelihood, in nats per unit of the logarithm (of the mean: per unit), "
        f"{reference}. bias: {found.name} minus the converged run with the same probes, ± standard error over "
        f"{found.draws} draws; * beyond chance. CG would move it by: first-order prediction for the optimum. sd: of "
        "one RR-CG gradient."
        + (f" Left out: {idle} hyperparameters that the likelihood does not depend on." if idle else "")
    )


def rows(found: Diagnosis) -> list[list[str]]:
    """The cells under HEAD."""
    return [_row(one) for one in found.influential]


def _row(one: HyperparameterBias) -> list[str]:
    gradient = f"{one.gradient:.3g}" + (f" ± {one.gradient_error:.2g}" if one.gradient_error else "")
    return [
        one.name,
        f"{one.value:.4g}",
        gradient,
        f"{one.bias:+.3g} ± {one.bias_error:.2g}{' *' if one.detected else ''}",
        _moved(one),
        f"{one.probe_sd:.3g}",
        f"{one.truncation_sd:.3g}",
    ]


def _moved(one: HyperparameterBias) -> str:
    if not math.isfinite(one.shift):
        return "?"
    star = " *" if one.shift_detected else ""
    if not one.logarithmic:
        return f"{one.shift:+.2g}{star}"
    if abs(one.shift) > math.log(2.0):
        return f"x {math.exp(max(-9.0, min(9.0, one.shift))):.2g}{star}"
    return f"{100.0 * math.expm1(one.shift):+.2g}%{star}"


def pairs(found: Diagnosis) -> list[tuple[str, str]]:
    """Everything that is not of one hyperparameter, as names and values."""
    asked, own = (f"more than {found.iteration_cap}" if k is None else str(k) for k in found.iterations_to_percent)
    lines = [
        ("data", f"n = {found.n}, d = {found.dimension}, {found.dtype}"),
        ("hyperparameters", found.origin + _distance(found)),
        ("condition", f"at most {found.condition:.2g}"),
        ("rounding", f"of K to {found.dtype} is {found.rounding:.1g} of the noise (trusted up to "
         f"{found.rounding_limit:g}); it moves gradients by at most {found.rounding_effect:.1g} of their sd"),
        ("iterations to 1% error", f"{asked} with {found.name}'s preconditioner (rank {found.cg_cost.rank}), "
         f"{own} with RR-CG's (rank {found.rr_cg_cost.rank})"),
        (f"log|K| by {found.name}", _value(found.log_det)),
        (f"quadratic by {found.name}", _value(found.quadratic)),
        (f"a step of {found.name}", _cost(found.cg_cost)),
        ("a step of RR-CG", f"{_cost(found.rr_cg_cost)} ({found.cost_ratio:.2g}x)"),
    ]  # fmt: skip
    if not math.isnan(found.cost_in_nats):
        lines.append((f"{found.name}'s bias costs", f"{found.cost_in_nats:.2g} nats of log marginal likelihood"))
    lines += [(f"RR-CG: {name}", why) for name, why in found.reasons]
    fourier = "not for this kernel" if found.fourier is None else found.fourier.words()
    lines.append(("Fourier features", fourier))
    if found.left_out:
        lines.append(("not looked at", ", ".join(found.left_out)))
    return lines


def _distance(found: Diagnosis) -> str:
    if math.isnan(found.distance_in_nats):
        return ""
    return f"; judged by the gradient, {found.distance_in_nats:.2g} nats from the optimum"


def _value(one: ValueBias) -> str:
    error = f" ± {one.bias_error:.2g}" if one.bias_error else ""
    return f"{one.bias:+.3g}{error} off {one.value:.6g}"


def _cost(cost: Cost) -> str:
    span = f"{cost.iterations:.4g} iterations"
    if cost.shortest != cost.longest:
        span += f" ({cost.shortest} to {cost.longest})"
    return f"{span}, {cost.products:.4g} products with K, {cost.seconds:.2g} s"


def as_text(found: Diagnosis) -> str:
    """The whole diagnosis, verdict first."""
    cells = [list(HEAD), *rows(found)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEAD))]
    table = [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                  for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]  # fmt: skip
    lines = pairs(found)
    width = max(len(name) for name, _ in lines)
    listed = [f"{name:<{width}}  {value}" for name, value in lines]
    return "\n".join([found.verdict, "", *table, note(found), "", *listed])
