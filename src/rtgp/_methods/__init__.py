"""Methods: small frozen objects that check themselves, tell their facts and make an objective."""

from rtgp._methods.facts import AnyMethod, Method
from rtgp._methods.likelihoods import CG, RFF, RRCG, SSRFF, Cholesky
from rtgp._methods.names import (
    METHODS,
    likelihood_method,
    on_one_process,
    plain_cg,
    resolve_method,
    roulette,
    spread_operator,
)
from rtgp._methods.vecchia import Vecchia

__all__ = [
    "CG",
    "METHODS",
    "RFF",
    "RRCG",
    "SSRFF",
    "AnyMethod",
    "Cholesky",
    "Method",
    "Vecchia",
    "likelihood_method",
    "on_one_process",
    "plain_cg",
    "resolve_method",
    "roulette",
    "spread_operator",
]
