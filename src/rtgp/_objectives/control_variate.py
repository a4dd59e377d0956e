"""The gradient of one run, with a control variate whose coefficients earlier runs have taught.

The coefficients minimise the noise in the metric of the last average-information matrix. A run teaches the coefficients
of later calls only: a gradient multiplied by what its own draw has taught would be biased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rtgp._objectives.control_coefficients import DEFAULT, Coefficients, CoefficientSettings, by_cost
from rtgp._objectives.gradient_terms import Term, evaluated
from rtgp._objectives.krylov_run import KrylovRun
from rtgp._objectives.protocol import Batch, EstimateRequest, gradient_of
from rtgp._preconditioners import Control
from rtgp._preconditioners.neighbour_control import NeighbourControl
from rtgp._state import State, saved_tensor


@dataclass(frozen=True)
class Slopes:
    """The terms of the gradient that have noise, and what reduces it.

    Attributes
    ----------
    surrogate : Tensor
        A scalar whose gradient is the estimate's.
    contrast : Tensor | None
        One whose gradient has mean zero and the covariance of the estimate's; None where it is not wanted.
    noise : float
        What that noise costs; 0 where there is no metric to tell.
    """

    surrogate: Tensor
    contrast: Tensor | None = None
    noise: float = 0.0


class ControlVariate:
    """The coefficients of a control variate and the metric in which they are learnt, kept between calls."""

    def __init__(self, settings: CoefficientSettings = DEFAULT) -> None:
        self._coefficients = Coefficients(settings)
        self.reset()

    def reset(self) -> None:
        self._coefficients.reset()
        self._by_cost: Tensor | None = None  # of the last information matrix

    def of_another(self) -> None:
        """Forget what was learnt of the last control variate, since there is another one."""
        self._coefficients.reset()

    def measure_by(self, information: Tensor) -> None:
        """Measure the cost of noise by this average-information matrix from here on."""
        if bool(torch.isfinite(information).all()):
            self._by_cost = by_cost(information, self._coefficients.settings)

    def state_dict(self) -> State:
        state: State = dict(self._coefficients.state_dict())
        if self._by_cost is not None:
            state["by_cost"] = self._by_cost
        return state

    def load_state_dict(self, state: State) -> None:
        self.reset()
        self._coefficients.load_state_dict(state)
        if "by_cost" in state:
            p = len(saved_tensor(state, "by_cost", (None, None)))
            self._by_cost = saved_tensor(state, "by_cost", (p, p)).cpu()

    def slopes(
        self,
        run: KrylovRun,
        vectors: tuple[Tensor, Tensor],
        control: Control | None,
        guess: float,
        batch: Batch,
        request: EstimateRequest,
        contrast: bool,
    ) -> Slopes:
        """The terms of the gradient, with the control variate.

        The gradient is sum u^T dA v by the `vectors` u, v (n, k). `control` is the preconditioner's control variate,
        None where it has none. `guess` is the coefficient where nothing has been learnt.

        All bilinear forms go through one pass over K. The coefficients learn from the contrast, for the calls to come.
        Where M is dA itself they learn only in calls that make a new metric, for its scatter takes another bilinear
        form.
        """
        system, c = run.system, self._coefficients.values(guess)  # (2,): of the kernel's part and of the noise's
        learning = not isinstance(control, NeighbourControl) or request.information is not None
        terms = _terms(run, vectors, control, c, contrast, learning)
        found = evaluated(terms, system, batch)  # (2,) each
        surrogate = found[0].sum()
        if control is not None and bool(c.any()):
            surrogate = surrogate - c.to(found[0]) @ run.controlled(control, batch)
        if not contrast:
            return Slopes(surrogate)
        plain = scatter = found[1].sum()
        parts: Tensor | None = None
        if control is not None and learning:
            parts = run.contrasted(control, batch, found[2] if isinstance(control, NeighbourControl) else None)
            scatter = plain - c.to(parts) @ parts
        elif control is not None:
            plain = scatter = plain - c.to(found[1]) @ run.contrasted(control, batch, torch.zeros_like(found[1]))
        return Slopes(surrogate, scatter, self._cost(plain, parts, c, guess, request))

    def _cost(self, plain: Tensor, parts: Tensor | None, c: Tensor, guess: float, request: EstimateRequest) -> float:
        """The cost of the noise that is left. It teaches the coefficients where the parts of the control variate are
        known.
        """
        size = sum(parameter.numel() for parameter in request.parameters)
        if self._by_cost is None or self._by_cost.shape[1] != size:
            return 0.0
        if parts is None:
            slope = self._by_cost @ gradient_of(plain, request.parameters)
            return float(slope.square().sum())
        x, *y = self._in_metric((plain, *parts), request.parameters)
        noise = float((x - c @ torch.stack(y)).square().sum())
        if not request.hold:
            self._coefficients.learn(x, torch.stack(y), guess, noise)
        return noise

    def _in_metric(self, scalars: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
        assert self._by_cost is not None
        return [self._by_cost @ gradient_of(scalar, parameters) for scalar in scalars]


def _terms(
    run: KrylovRun,
    vectors: tuple[Tensor, Tensor],
    control: Control | None,
    c: Tensor,
    contrast: bool,
    learning: bool,
) -> list[Term]:
    """The gradient; the contrast, if it is wanted; the contrast of the control variate, where that is learnt from."""
    first, second, _ = run.y_solves()
    free = isinstance(control, NeighbourControl)  # M is dA itself: taken from v, it costs nothing
    gradient = Term(*vectors, solve=0.5 * (first + second))
    if free:
        gradient = replace(gradient, less=run.probes.dual, taken=c)
    if not contrast:
        return [gradient]
    scatter = Term(*run.contrast_vectors(), solve=0.5 * (first - second))
    if free and not learning:
        scatter = replace(scatter, less=run.probes.dual[:, : scatter.u.shape[1] - run.outputs], taken=c)
    if free and learning:
        return [gradient, scatter, Term(*run.contrast_control_vectors())]
    return [gradient, scatter]
