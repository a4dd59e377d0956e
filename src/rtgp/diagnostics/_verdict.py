"""The diagnosis in one to three plain sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rtgp.diagnostics._result import Diagnosis, HyperparameterBias


def verdict(found: Diagnosis) -> str:
    """What to expect of CG here, and what RR-CG would change."""
    words = []
    if found.float32_failure:
        words.append(
            f"float32 cannot serve this system ({found.float32_failure.split(':')[0].rstrip('.')}): use float64, in "
            "which all else here was measured."
        )
    elif found.rounding > found.rounding_limit or found.rounding_in_nats >= found.judgement.material:
        words.append(
            f"{found.dtype} is too coarse here, for every method alike: rounding the kernel matrix amounts to "
            f"{found.rounding:.2g} times the noise (trusted up to {found.rounding_limit:g}) and costs "
            f"{_nats(found.rounding_in_nats)}; use float64, or raise the lower bound of the noise."
        )
    if found.biased:
        words += [_effect(found), f"RR-CG costs {_ratio(found)} and removes it{_noise(found)}."]
    elif found.converged:
        words.append(
            f"{found.name} has converged here: every series ended by itself, after {found.cg_cost.longest} iterations "
            f"at most. The roulette makes no difference to the result; RR-CG costs {_ratio(found)}."
        )
    elif any(one.detected for one in found.hyperparameters):
        words.append(
            f"{found.name} is biased here, but too little to matter: it would move no hyperparameter by more than "
            f"{_largest(found)}, at a cost of {found.cost_in_nats:.2g} nats of log marginal likelihood. RR-CG costs "
            f"{_ratio(found)} and would end at the same place."
        )
    else:
        words.append(
            f"{found.name} shows no bias here, in {found.draws} draws. The roulette makes no difference to the result; "
            f"RR-CG costs {_ratio(found)}."
        )
    if found.distance_in_nats > max(found.cost_in_nats, found.judgement.near * found.n):
        words.append("(These hyperparameters are not an optimum yet: diagnose again after training.)")
    return " ".join(words)


def _ratio(found: Diagnosis) -> str:
    return f"{found.cost_ratio:.2g}x"


def _noise(found: Diagnosis) -> str:
    return f" (its truncation adds {found.extra_noise:.0%} to the noise of its gradient)"


def _effect(found: Diagnosis) -> str:
    shifted = [one for one in found.hyperparameters if one.shift_detected]
    moved = [one for one in shifted if one.logarithmic and abs(one.shift) >= found.judgement.visible]
    moved = moved or [one for one in shifted if not one.logarithmic]  # the mean, if there is nothing else to say
    cost = "" if math.isnan(found.cost_in_nats) else f", which costs {_nats(found.cost_in_nats)}"
    parts = []
    for verb, sign in (("overestimate", 1.0), ("underestimate", -1.0)):
        chosen = [one for one in moved if one.shift * sign > 0]
        if chosen:
            parts.append(f"{verb} {_listed(chosen, found.hyperparameters)}")
    if not parts:
        return f"{found.name} is biased here, though no hyperparameter alone would move by much{cost}."
    return f"{found.name} would {' and '.join(parts)}{cost}."


def _nats(cost: float) -> str:
    if math.isnan(cost):
        return "an unknown part of the log marginal likelihood"
    if cost > 1000.0:
        return "more log marginal likelihood than a first-order prediction can say"
    return f"about {cost:.2g} nats of log marginal likelihood"


def _listed(chosen: Sequence[HyperparameterBias], everything: Sequence[HyperparameterBias]) -> str:
    """Lengthscales of many inputs as a number of them, with the one that moves most."""
    groups: dict[str, list[HyperparameterBias]] = {}
    for one in chosen:
        groups.setdefault(_kind(one), []).append(one)
    words = []
    for kind, members in groups.items():
        of = sum(_kind(one) == kind for one in everything)
        most = max(members, key=lambda one: abs(one.shift))
        if of == 1:
            words.append(f"the {kind} ({amount(most)})")
        else:
            which = most.name if len(members) == 1 else f"most of all {most.name}"
            words.append(f"{len(members)} of {of} {kind}s ({which}, {amount(most)})")
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _kind(one: HyperparameterBias) -> str:
    return re.sub(r"\[\d+\]$", "", one.name)


def amount(one: HyperparameterBias) -> str:
    """The predicted shift in words."""
    if not one.logarithmic:
        return f"by about {abs(one.shift):.2g}"
    size = abs(one.shift)
    if size > math.log(10.0):
        return "by far"
    if size > math.log(2.0):
        return f"by a factor of about {math.exp(size):.2g}"
    return f"by about {100.0 * abs(math.expm1(one.shift)):.2g}%"


def _largest(found: Diagnosis) -> str:
    shifts = [abs(one.shift) for one in found.hyperparameters if one.logarithmic and math.isfinite(one.shift)]
    return f"{100.0 * math.expm1(max(shifts)):.1g}%" if shifts else "a tenth of its noise"
