"""Methods by name, and what is asked of a method by those that are given one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from rtgp._methods.facts import AnyMethod, Method
from rtgp._methods.likelihoods import CG, RFF, RRCG, SSRFF, Cholesky
from rtgp.distributed import active
from rtgp.errors import SettingError

# The methods to compare with enter themselves here: `rtgp._baselines`.
METHODS: dict[str, type[Any]] = {
    "cholesky": Cholesky,
    "cg": CG,
    "rr-cg": RRCG,
    "rff": RFF,
    "ss-rff": SSRFF,
}


def resolve_method(method: str | AnyMethod) -> AnyMethod:
    """A method from its name, or the object itself."""
    if isinstance(method, str):
        if method not in METHODS:
            names = ", ".join(repr(name) for name in METHODS)
            raise SettingError(
                f"The 'method' parameter must be one of {names}, or a settings object. Got {method!r} instead."
            )
        made: AnyMethod = METHODS[method]()
        return made
    if not isinstance(method, AnyMethod):
        raise SettingError(
            "The 'method' parameter must be a name or a settings object such as rtgp.RRCG(). "
            f"Got {method!r:.100} instead."
        )
    return method


M = TypeVar("M")


def on_one_process(method: M) -> M:
    """The same method on one process. What is computed does not depend on how many there are."""
    if isinstance(method, AnyMethod) and method.spread_operator != "auto":
        return replace(method, operator="auto")  # type: ignore[type-var]
    return method


def spread_operator(method: AnyMethod) -> str:
    """The operator of a method that is spread over ranks, while there are some; "auto" otherwise.

    So what was learned on many processes predicts on one.
    """
    return method.spread_operator if active() else "auto"


def likelihood_method(method: str | AnyMethod) -> Method:
    """The same, of those that estimate the likelihood of a model they are given."""
    found = resolve_method(method)
    if not isinstance(found, Method):
        raise SettingError(
            f"{type(found).__name__} is a model of its own, not an estimate of the likelihood of a given one: use "
            f"rtgp.GPRegressor(method={found!r}), which makes the model, trains it and predicts from it."
        )
    return found


def plain_cg(method: str | AnyMethod) -> CG | None:
    """The same where it is plain CG, whose bias can be measured."""
    found = resolve_method(method)
    return found if isinstance(found, CG) else None


def roulette(method: object) -> RRCG | None:
    """The same where it is RR-CG."""
    return method if isinstance(method, RRCG) else None
