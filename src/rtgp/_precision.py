"""float32 or float64: decided and reported here, and nowhere else.

The size of an error is measured elsewhere: the rounding of entries by the diagonal (`PrecisionLimits`), that of
products by the system (`rtgp._solvers.system`), how much of either reaches a solution by a sparse inverse
(`rtgp._preconditioners.amplification`). What is done about it is decided here, by pure functions of these numbers and
of `PrecisionSettings`. All other code obeys, and none asks whether a warning was given.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._kernels.sample_statistics import mean_correlation, size_of_entries
from rtgp._state import State, saved_count, saved_flag, saved_number, saved_scalar, saved_tensor
from rtgp.errors import ConvergenceError, InputError, NotPositiveDefiniteError, PrecisionWarning

DTYPES = {"float32": torch.float32, "float64": torch.float64}  # by the names that users give


@dataclass(frozen=True)
class PrecisionSettings:
    """By what is decided whether float32 serves. Errors are in units of the noise.

    Attributes
    ----------
    rounding : float
        Error of K up to which float32 serves without a further look: gradients were within 1e-3 of those in float64 in
        every case tried. Beyond it, what reaches a solution decides.
    felt : float
        Error of K, as far as it reaches a solution, up to which float32 serves. Of 108 systems of six sets (n = 2,500)
        60 were within it. There y^T A^-1 y was off by at most 5e-5 of itself and the log-determinant by 2e-6 per point
        (benchmarks/results/float32.csv).
    products : float
        Error of an entry of A v, as far as it reaches a solution, up to which float32 serves. An error e adds about e^2
        per point to the value (keggundirected, 6,000 points: 2e-5 at e = 0.003, 5e-4 at 0.03, 0.012 at 0.11), and twice
        that to its derivative by the log of the outputscale.
    growth : float
        Growth of the expected error of products from which on it is measured again.
    columns : int
        Columns of the product by which it is measured. A single one would be multiplied by another routine.
    alike : float
        Mean correlation of the points from which on the rounding errors of K have a common part: lengthscales of about
        five times the range of the inputs.
    common : float
        Factor by which such errors exceed independent ones, times the square root of n. With lengthscales of 10 to 1000
        times the range, a rounding of 0.05 with this factor was an error of 0.01 at most.
    sample : int
        Points by which correlations and the size of the entries are judged.
    condition : float
        Bound of the condition number up to which float64 serves: values and gradients were within 4e-4 of those in more
        digits.
    factor : float
        Bound of the condition number up to which a Cholesky factor may be in float32. At 3e5 its gradients were off by
        up to 1e-2 of their terms, at 3e8 by all.
    prediction : float
        Error of K up to which predictions may be in float32: variances were within 5e-4 of those in float64 (at 1e-3,
        up to 4e-3). A variance is a small difference of large numbers; a gradient is a sum, and bears more.
    prediction_felt : float
        The same for predictions by conjugate gradients, of the error as far as it reaches a solution. Of 96 systems of
        four sets (n = 1,200) 75 were within it. There variances were off by at most 2e-4 of themselves and means by
        5e-3 standard deviations (benchmarks/results/float32_predictions.csv). The rounding of a single number beside
        the noise must be within `prediction` too: a variance may be as small as the noise.
    """

    rounding: float = 0.05
    felt: float = 3e-3
    products: float = 0.015
    growth: float = 1.25
    columns: int = 8
    alike: float = 0.99
    common: float = 10.0
    sample: int = 128
    condition: float = 1e14
    factor: float = 1e5
    prediction: float = 1e-4
    prediction_felt: float = 3e-4


DEFAULT = PrecisionSettings()


# What is measured.


@dataclass(frozen=True)
class PrecisionLimits:
    """How far a precision may serve a kernel matrix in units of its noise. Only the trace is looked at."""

    size: int
    dtype: torch.dtype
    signal: float  # the mean of its diagonal
    condition: float  # an upper bound of the condition number of A = S K S + I: 1 + trace(S K S), since A >= I
    rounding: float  # what rounding the matrix may add to it

    @staticmethod
    def of(diagonal: Tensor, dtype: torch.dtype) -> PrecisionLimits:
        """The limits from the size and the signal of a kernel matrix.

        Independent rounding errors of at most eps/2 in n x n entries make a matrix of norm about eps sqrt(n) / 2 times
        the entries' size. The smallest eigenvalues, those of the noise, feel it first.
        """
        n, trace = diagonal.shape[0], float(diagonal.sum(dtype=torch.float64))
        return PrecisionLimits(n, dtype, trace / n, 1.0 + trace, 0.5 * torch.finfo(dtype).eps * trace / math.sqrt(n))


def common_rounding(form: KernelForm, settings: PrecisionSettings = DEFAULT) -> float:
    """By what factor the norm of the rounding errors of K exceeds that of independent ones."""
    alike = form.size > 1 and mean_correlation(form, settings.sample) > settings.alike
    return settings.common * math.sqrt(form.size) if alike else 1.0


def felt_of_entries(form: KernelForm, noise: Tensor, measure: Measure, settings: PrecisionSettings = DEFAULT) -> Felt:
    """A function of an error of entries: the part of it that reaches a solution."""

    def felt(rounding: float) -> float:
        alike = common_rounding(form, settings)
        return alike * rounding * size_of_entries(form, settings.sample) * measure(form, noise, None).part

    return felt


def limits_of(form: KernelForm, noise: Tensor, dtype: torch.dtype | None = None) -> PrecisionLimits:
    """The limits of a kernel with noise () or (n,), in its own precision or in another."""
    signal = form.diagonal().double() / noise.detach().double()
    return PrecisionLimits.of(signal, form.dtype if dtype is None else dtype)


@dataclass(frozen=True)
class Reach:
    """How much of an error in a system reaches its solution."""

    size: int  # points
    place: Tensor  # of the hyperparameters where it was measured
    part: float


class Products(Protocol):
    """A system whose products can be tried (`rtgp._solvers.NoiseUnits`)."""

    dtype: torch.dtype

    def expected_product_error(self) -> float: ...

    def product_error(self, columns: int) -> float: ...

    def limits(self) -> PrecisionLimits: ...


# What is decided.


@dataclass(frozen=True)
class Precision:
    """The working precision, and why.

    Attributes
    ----------
    dtype : torch.dtype
        To work in.
    reason : str
        Why not in the model's own, or why even this one is too coarse; "" where the model's own serves.
    coarse : torch.dtype | None
        A precision found too coarse, which the user is to know; None: nothing to say.
    words : str
        What is then said.
    """

    dtype: torch.dtype
    reason: str = ""
    coarse: torch.dtype | None = None
    words: str = ""


Felt = Callable[[float], float]  # an error -> as much of it as reaches a solution


def decide(
    limits: PrecisionLimits,
    wide: bool = False,
    factor: float = 1.0,
    felt: Felt | None = None,
    settings: PrecisionSettings = DEFAULT,
) -> Precision:
    """The precision for solves with a kernel matrix, by the rounding of its entries.

    With `wide`, its entries can be computed in float64 too, where `limits` are those of float32. Its rounding errors
    exceed independent ones by `factor`. `felt` tells how much of these errors reaches a solution; None: all.
    """
    if not math.isfinite(limits.signal):
        raise InputError(
            "Expected a finite kernel matrix. The kernel gives NaN or infinity between a training point and itself: "
            "look at its formula, lower the learning rate, or use float64."
        )
    rounding = factor * limits.rounding
    if rounding > settings.rounding and (felt is None or felt(rounding) > settings.felt):
        return _too_coarse(limits, f"rounding the kernel matrix amounts to {rounding:.2g} times the noise", wide)
    # In float64 the condition number says more.
    if limits.dtype == torch.float64 and limits.condition > settings.condition:
        return _too_coarse(limits, f"its condition number may be {limits.condition:.1e}", wide)
    return Precision(limits.dtype)


def decide_by_products(
    error: float,
    limits: PrecisionLimits,
    wide: bool = False,
    felt: Felt | None = None,
    settings: PrecisionSettings = DEFAULT,
) -> Precision:
    """The precision for solves by products with the matrix, of which one was tried.

    The solver reports an error that is not finite.
    """
    if not error > settings.products or (felt is not None and not felt(error) > settings.products):
        return Precision(limits.dtype)
    return _too_coarse(limits, f"rounding in its products amounts to {error:.2g} times the noise", wide)


def decide_factor(limits: PrecisionLimits, wide: bool = False, settings: PrecisionSettings = DEFAULT) -> Precision:
    """The precision for a Cholesky factor, which needs more digits than a solve.

    It is float64 from a small condition number on. The user is told only where float32 would not serve for anything.
    """
    found = decide(limits, wide, settings=settings)
    if found.coarse is None and wide and limits.condition > settings.factor:
        return Precision(torch.float64, f"its condition number may be {limits.condition:.1e}, too much for a factor")
    return found


def decide_prediction(
    limits: PrecisionLimits, felt: Felt | None = None, settings: PrecisionSettings = DEFAULT
) -> Precision:
    """The precision for variances.

    `felt` tells how much of the rounding of entries reaches a prediction by solves; None for predictions by a factor.
    """
    if limits.dtype == torch.float64 or limits.rounding <= settings.prediction:
        return Precision(limits.dtype)
    single = 0.5 * torch.finfo(limits.dtype).eps * limits.signal
    if felt is not None and single <= settings.prediction and felt(limits.rounding) <= settings.prediction_felt:
        return Precision(limits.dtype)
    return Precision(torch.float64, f"rounding the kernel matrix amounts to {limits.rounding:.2g} times the noise")


def decide_after(error: Exception, dtype: torch.dtype) -> Precision | None:
    """The precision for work that failed in this one; None where another cannot help."""
    if dtype == torch.float64 or not isinstance(error, (ConvergenceError, NotPositiveDefiniteError)):
        return None
    reason = str(error).split(". ")[0].rstrip(".")
    words = f"{dtype} is too coarse for this system: {reason}. {_GOES_ON}."
    return Precision(torch.float64, reason, dtype, words)


_GOES_ON = "It is computed in float64 from here on, which takes longer and more memory"


def _too_coarse(limits: PrecisionLimits, what: str, wide: bool) -> Precision:
    remedy = "Gradients may be off. Use float64 (model.double()), or raise the lower bound of the noise"
    if wide:
        remedy = _GOES_ON
    elif limits.dtype == torch.float64:
        remedy = "Gradients may be off. Raise the lower bound of the noise"
    words = (
        f"{limits.dtype} is too coarse for this system: {what} "
        f"(signal {limits.signal:.1e} times the noise, n = {limits.size}). {remedy}."
    )
    return Precision(torch.float64 if wide else limits.dtype, what, limits.dtype, words)


# What is said.


class Notices:
    """What the user has been told in one fit: once of each precision that it is too coarse. It decides nothing.

    All that a fit evaluates shares one object. A silent one is for what the user did not ask for, such as a trial.
    """

    def __init__(self, silent: bool = False) -> None:
        self._silent = silent
        self._told: set[torch.dtype] = set()

    def say(self, found: Precision) -> None:
        if self._silent or found.coarse is None or found.coarse in self._told:
            return
        self._told.add(found.coarse)
        warnings.warn(found.words, PrecisionWarning, stacklevel=2)


SILENT = Notices(silent=True)


# What is remembered, and obeyed.


@dataclass(frozen=True)
class PrecisionState:
    """What later calls take from earlier ones.

    Attributes
    ----------
    coarse : bool
        The model's own precision was found too coarse: float64 is taken since, where the kernel has it.
    coarse_in_float64 : bool
        So was float64, which was taken in its place.
    measured : float
        The expected error of products where it was last looked at.
    """

    coarse: bool = False
    coarse_in_float64: bool = False
    measured: float = 0.0
    reach: Reach | None = None


Measure = Callable[[KernelForm, Tensor, Reach | None], Reach]  # form, noise, what is known -> what holds here


class WorkingPrecision:
    """The precision in which one objective works. `state` is all it holds between calls.

    Parameters
    ----------
    measure : Measure | None
        How much of an error reaches a solution; None: all of it.
    """

    def __init__(self, settings: PrecisionSettings = DEFAULT, measure: Measure | None = None) -> None:
        self.settings, self._measure = settings, measure
        self.reset()

    def reset(self) -> None:
        self.state = PrecisionState()
        self.reason = ""  # of the last call: why not in the model's own precision
        self._widenable = False  # whether the last call was in float32 and had a form in float64
        self._to_say: Precision | None = None  # what a failure has changed: said where the work goes on

    def keep_only_findings(self) -> None:
        """Go over to another system: what was found is expected of it too, what was measured is not."""
        self.state = replace(self.state, measured=0.0, reach=None)

    def form(self, form: KernelForm, noise: Tensor, notices: Notices) -> KernelForm:
        """The kernel as solves take it.

        It is in the model's precision, and in float64 from the first call on in which that cannot serve.
        """

        def found(limits: PrecisionLimits, wide: bool) -> Precision:
            factor = common_rounding(form, self.settings) if wide else 1.0
            return decide(limits, wide, factor, self._felt_of_entries(form, noise), self.settings)

        return self._in(form, noise, notices, found)

    def form_to_factor(self, form: KernelForm, noise: Tensor, notices: Notices) -> KernelForm:
        """The kernel as a Cholesky factor takes it."""
        return self._in(form, noise, notices, lambda limits, wide: decide_factor(limits, wide, self.settings))

    def _in(
        self, form: KernelForm, noise: Tensor, notices: Notices, judge: Callable[[PrecisionLimits, bool], Precision]
    ) -> KernelForm:
        if self._to_say is not None:
            notices.say(self._to_say)
            self._to_say = None
        wide = form.widened() if form.dtype != torch.float64 else None
        self._widenable = wide is not None
        if self.state.coarse:
            dtype = form.dtype if wide is None else wide.dtype
            found = Precision(dtype, self.reason or f"an earlier call has found that {form.dtype} is too coarse")
        else:
            found = self._found(judge(limits_of(form, noise), wide is not None), notices)
        self.reason = found.reason
        if wide is None or found.dtype != torch.float64:
            return form
        if not self.state.coarse_in_float64:
            beyond = decide(limits_of(form, noise, torch.float64), settings=self.settings)
            self.state = replace(self.state, coarse_in_float64=beyond.coarse is not None)
            notices.say(beyond)
        return wide

    def goes_over(self, system: Products, form: KernelForm, noise: Tensor, notices: Notices) -> bool:
        """Whether rounding in the products of this system, made of `form`, is too much: then `self.form` gives float64.

        It is measured in the first call, and again where it is expected to have grown.
        """
        if self.state.coarse or system.dtype == torch.float64:
            return False
        expected = system.expected_product_error()
        if expected <= self.settings.growth * self.state.measured:
            return False
        self.state = replace(self.state, measured=expected)
        error = system.product_error(self.settings.columns)
        found = decide_by_products(error, system.limits(), self._widenable, self._felt(form, noise), self.settings)
        self._found(found, notices)
        self.reason = found.reason
        return found.dtype != system.dtype

    def overcome(self, error: Exception) -> str | None:
        """Take float64 after a call that failed, if the form can be had in it.

        What has changed is returned, in words.
        """
        found = None if self.state.coarse or not self._widenable else decide_after(error, torch.float32)
        if found is None:
            return None
        self.state, self.reason, self._to_say = replace(self.state, coarse=True), found.reason, found
        return "computed in float64 from here on"

    def _found(self, found: Precision, notices: Notices) -> Precision:
        if found.coarse is not None:
            self.state = replace(self.state, coarse=True)
            notices.say(found)
        return found

    def _felt(self, form: KernelForm, noise: Tensor) -> Felt | None:
        measure = self._measure
        if measure is None:
            return None

        def reaching(error: float) -> float:
            reach = measure(form, noise, self.state.reach)
            self.state = replace(self.state, reach=reach)
            return error * reach.part

        return reaching

    def _felt_of_entries(self, form: KernelForm, noise: Tensor) -> Felt | None:
        """The part of the rounding that reaches a solution, for entries of the diagonal's size; others are rounded
        less.
        """
        felt = self._felt(form, noise)
        return None if felt is None else lambda rounding: felt(rounding * size_of_entries(form, self.settings.sample))

    def findings(self) -> State:
        """For a checkpoint: what was found. `reach_state` is the rest."""
        state = self.state
        return {"warned": state.coarse, "warned of float64": state.coarse_in_float64, "measured": state.measured}

    def reach_state(self) -> State:
        reach = self.state.reach
        if reach is None:
            return {}
        part = torch.tensor(reach.part, dtype=torch.float64)
        return {"reach_size": reach.size, "reach_place": reach.place, "reach": part}

    def load_state_dict(self, state: State) -> None:
        self.reset()
        state = {"warned of float64": False, "measured": 0.0, **state}  # not in checkpoints of older versions
        reach = None
        if "reach" in state:
            place = saved_tensor(state, "reach_place", (None,)).cpu()
            reach = Reach(saved_count(state, "reach_size"), place, saved_scalar(state, "reach", (0.0, 1.0)))
        self.state = PrecisionState(
            saved_flag(state, "warned"),
            saved_flag(state, "warned of float64"),
            saved_number(state, "measured", (0.0, math.inf)),
            reach,
        )


# What is in float64 always.


def in_float64(form: KernelForm) -> KernelForm:
    """The kernel in float64, for what is in float64 by design: small factorisations, Fourier features, local densities.

    A kernel whose entries cannot be computed in it stays what it is.
    """
    wide: KernelForm | None = form.widened()
    return form if wide is None else wide


@contextmanager
def model_in_float64(
    model: Any, likelihood: Any, X: Tensor, y: Tensor, hold: Callable[[Any, Tensor, Tensor], None]
) -> Iterator[tuple[Tensor, Tensor]]:
    """A context for line searches, which compare close values.

    The model is in float64 within it, in place, and back in its own precision at the end. `hold` makes data those of
    the model.
    """
    dtypes = {t.dtype for m in (model, likelihood) for t in (*m.parameters(), *m.buffers()) if t.is_floating_point()}
    if dtypes != {torch.float32} or X.dtype != torch.float32:
        yield X, y
        return
    wide = X.double(), y.double()
    model.double(), likelihood.double()
    hold(model, *wide)
    try:
        yield wide
    finally:
        model.float(), likelihood.float()
        hold(model, X, y)
