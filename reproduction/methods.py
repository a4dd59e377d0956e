"""The methods that the items compare, by name, each as a function of its size.

Everything an item trains or samples is made from this one table, so that the whole comparison can be swapped: with
"cg" in the place of "rr-cg", or "rff" in that of "ss-rff", the items must no longer come out as reproduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rtgp._methods import CG, RFF, RRCG, SSRFF, Cholesky, Method
from rtgp._preconditioners import PivotedCholesky
from rtgp.truncation import ExponentialDecay


class Factory(Protocol):
    """Makes the settings of a method from its size (0 where there is none to set).

    CG: iterations; RR-CG: expected iterations; RFF: features; SS-RFF: features at the base of its ladder.
    """

    def __call__(self, size: int, preconditioned: bool = True) -> Method: ...


RATE = 0.05  # of the paper's truncation distribution: a standard deviation of 20


def truncation(iterations: int) -> ExponentialDecay:
    """Eq. 14 with E[J] = iterations (to within 1/2) and the paper's rate, or a faster one for a mean below 1/rate."""
    if iterations >= 1 / RATE:
        return ExponentialDecay(RATE, iterations - round(1 / RATE) or 1)
    return ExponentialDecay(1 / iterations, 1)


def _cholesky(size: int = 0, preconditioned: bool = True) -> Method:
    return Cholesky()


def _cg(size: int, preconditioned: bool = True) -> Method:
    return CG(size, preconditioner=_paper_preconditioner(preconditioned))


def _rr_cg(size: int, preconditioned: bool = True) -> Method:
    return RRCG.paper(truncation=truncation(size), preconditioner=_paper_preconditioner(preconditioned))


def _rr_cg_ours(size: int = 0, preconditioned: bool = True) -> Method:
    return RRCG()


def _rff(size: int, preconditioned: bool = True) -> Method:
    return RFF(features=size)


def _ss_rff(size: int, preconditioned: bool = True) -> Method:
    """The paper's, with `size` features at the base (500 there) and steps of a fifth of them (at least 10)."""
    return SSRFF.paper(minimum=size, step=max(10, size // 10 * 2))


def _ss_rff_ours(size: int = 0, preconditioned: bool = True) -> Method:
    return SSRFF()


def _paper_preconditioner(wanted: bool) -> PivotedCholesky | None:
    return PivotedCholesky(5, "greedy") if wanted else None


METHODS: Mapping[str, Factory] = {
    "cholesky": _cholesky,
    "cg": _cg,
    "rr-cg": _rr_cg,
    "rr-cg-ours": _rr_cg_ours,
    "rff": _rff,
    "ss-rff": _ss_rff,
    "ss-rff-ours": _ss_rff_ours,
}
LABELS = {
    "cholesky": "Cholesky",
    "cg": "CG",
    "rr-cg": "RR-CG",
    "rr-cg-ours": "RRCG()",
    "rff": "RFF",
    "ss-rff": "SS-RFF",
    "ss-rff-ours": "SSRFF()",
    "svgp": "SVGP",
    "poe": "POE",
    "sggp": "sgGP",
    "rr-cg-matern32": "RR-CG, Matern-3/2",
    "cholesky-paper": "Cholesky, paper's schedule",
}
