"""BoTorch's `fit_gpytorch_mll` trains an `rtgp.MarginalLogLikelihood` by `rtgp.fit`.

BoTorch's own routine is L-BFGS with a line search, which needs a smooth surface. Fresh draws are noisy, and `rtgp.fit`
is made for them. So they go there. Everything else stays with BoTorch: likelihoods of its own, frozen draws, and calls
that name an optimizer or a closure.

Versions of BoTorch with a registry by type (`FitGPyTorchMLL`) take the routine there. Later ones have none, and their
hook is a method of the model, which would change how that model trains with BoTorch's own likelihood. There the routine
stands in front of the fallback that all likelihoods without a hook come to.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import botorch.fit

from rtgp._mll import MarginalLogLikelihood
from rtgp._objectives.reading import own_data
from rtgp._traces import draw_seed
from rtgp.errors import SettingError
from rtgp.training import fit

_OPTIONS = {"maxiter"}
_KNOWN = {"options", "timeout_sec", "seed", "tolerance", "callback"}


def fit_mll(mll: MarginalLogLikelihood, optimizer_kwargs: dict[str, Any] | None = None) -> MarginalLogLikelihood:
    """Train the model of a likelihood in place; as BoTorch's routines it returns it in eval mode.

    By the method that the likelihood was given; where it was given none, by `rtgp.fit`'s "auto": Cholesky where that is
    the cheaper, RR-CG beyond. Both aim at the same optimum.

    optimizer_kwargs: BoTorch's `options={"maxiter": ...}` and `timeout_sec`, and of `rtgp.fit` seed, tolerance and
    callback.
    """
    given = dict(optimizer_kwargs or {})
    options = dict(given.pop("options", None) or {})
    unknown = sorted((given.keys() - _KNOWN) | (options.keys() - _OPTIONS))
    if unknown:
        raise SettingError(
            f"The 'optimizer_kwargs' of an rtgp.MarginalLogLikelihood may be options={{'maxiter': ...}}, timeout_sec, "
            f"seed, tolerance and callback. Got {', '.join(unknown)} instead: leave these out, or pass an 'optimizer' "
            "and draws='frozen' to use BoTorch's."
        )
    seconds, callback = given.pop("timeout_sec", None), given.pop("callback", None)
    if seconds is not None:
        callback = _until(time.monotonic() + float(seconds), callback)
    mll.train()
    X, y = own_data(mll.model)
    seed = given.pop("seed", None)
    fit(
        mll.model,
        mll.likelihood,
        X,
        y,
        method=mll.method if mll.method_asked_for else "auto",
        steps=options.get("maxiter"),
        seed=draw_seed(mll.generator) if seed is None else seed,
        callback=callback,
        **given,
    )
    mll.reset()
    found: MarginalLogLikelihood = mll.eval()
    return found


def _until(end: float, callback: Callable[..., Any] | None) -> Callable[..., bool]:
    def over(row: Any, model: Any) -> bool:
        asked = callback is not None and bool(callback(row, model))
        return asked or time.monotonic() >= end

    return over


def takes(mll: Any, closure: Any, optimizer: Any, closure_kwargs: Any) -> bool:
    """Whether a call of `fit_gpytorch_mll` is ours."""
    ours = isinstance(mll, MarginalLogLikelihood) and mll.draws == "fresh"
    return ours and closure is None and optimizer is None and closure_kwargs is None


def register() -> None:
    """Once, whatever is imported twice."""
    registry = getattr(botorch.fit, "FitGPyTorchMLL", None)
    if registry is not None:
        if (MarginalLogLikelihood, object, object) not in registry.funcs:
            registry.register(MarginalLogLikelihood, object, object)(_in_front_of(botorch.fit._fit_fallback))
    elif not hasattr(botorch.fit._fit_fallback, "before_rtgp"):
        botorch.fit._fit_fallback = _in_front_of(botorch.fit._fit_fallback)


def _in_front_of(fallback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fallback)
    def routed(mll: Any, *types: Any, **how: Any) -> Any:
        if takes(mll, *(how.get(name) for name in ("closure", "optimizer", "closure_kwargs"))):
            return fit_mll(mll, how.get("optimizer_kwargs"))
        return fallback(mll, *types, **how)

    routed.before_rtgp = fallback  # type: ignore[attr-defined]
    return routed
