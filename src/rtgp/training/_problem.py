"""A model with its data and objective: what every optimiser evaluates."""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rtgp._methods import Cholesky, Method
from rtgp._mll import MarginalLogLikelihood
from rtgp._objectives import EstimateStats
from rtgp._objectives.protocol import gradient_of
from rtgp._objectives.reading import output, rows_of
from rtgp._precision import SILENT, Notices
from rtgp._state import saved_tensor
from rtgp._traces import draw_seed
from rtgp.distributed._errors import DisagreementError, RankError
from rtgp.errors import ConvergenceError, RTGPError, UnsupportedModelError
from rtgp.training._coordinates import CoordinateSettings, coordinates_of
from rtgp.training._errors import CheckpointError, TrainingError
from rtgp.training._evaluation import Evaluation
from rtgp.training._history import hyperparameters
from rtgp.training._obstacles import Situation
from rtgp.training._priors import absolute, prior_hessian
from rtgp.training._switch_to_cholesky import SwitchSettings

_log = logging.getLogger("rtgp")


@dataclass(frozen=True)
class ProblemSettings:
    """How a problem is evaluated beside the optimiser's steps. Chosen, not fitted.

    Attributes
    ----------
    comparing : int
        Probes for the comparison of two starts, at the most.
    final_estimates : int
        Number of estimates of the loss at the final parameters, where it is noisy. From four on their scatter tells an
        error.
    coordinates : CoordinateSettings
        In which training moves.
    """

    comparing: int = 4
    final_estimates: int = 4
    coordinates: CoordinateSettings = field(default_factory=CoordinateSettings)


class Problem:
    """The negative log marginal likelihood per point as a function of the model's trainable parameters."""

    def __init__(
        self,
        model: Any,
        likelihood: Any,
        X: Tensor,
        y: Tensor,
        method: Method,
        seed: int,
        draws: str = "fresh",
        logarithms: bool = True,
        switch: SwitchSettings | None = None,
        settings: ProblemSettings | None = None,
        notices: Notices | None = None,
    ) -> None:
        self.model, self.likelihood, self.X, self.y = model, likelihood, X, y
        self._seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self.notices = Notices() if notices is None else notices  # what the user has been told
        self.mll = MarginalLogLikelihood(likelihood, model, method, self.generator, draws, _notices=self.notices)
        self.gone_over = False  # whether Cholesky has taken the place of another method
        self.changes: list[str] = []  # what obstacles have made of the method, in words
        self._switch, self.settings = switch or SwitchSettings(), settings or ProblemSettings()
        self._runs: list[int] = []  # iterations of the last evaluations
        self.parameters = {name: p for name, p in self.mll.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise UnsupportedModelError(
                "Expected a model with parameters to train. Every parameter has requires_grad=False: set it to True."
            )
        self._coordinates = coordinates_of(self.mll, self.parameters, logarithms, self.settings.coordinates)
        self.leaves = [coordinate.leaf for coordinate in self._coordinates]  # what optimisers move
        self._good = self.snapshot()

    @property
    def n(self) -> int:
        """Targets, over all outputs, tasks and models of a batch: what is given per point is divided by them."""
        return self.y.numel()

    @property
    def rows(self) -> int:
        """Of the system of one model: what the cost goes with."""
        return rows_of(self.likelihood, self.y)

    def output(self) -> Any:
        """Of the model on its training inputs."""
        return output(self.model, self.X)

    @property
    def method(self) -> Method:
        """By which the likelihood is estimated now."""
        return self.mll.method

    @property
    def exact(self) -> bool:
        """Whether its estimates have no noise."""
        return self.method.exact

    @property
    def noiseless(self) -> bool:
        """Whether its estimates are the same in every call, be they exact or not."""
        return self.method.noiseless

    def take_cholesky(self, why: str) -> None:
        """Estimate by Cholesky from here on."""
        self._go_over()
        self.change(f"by Cholesky from here on: {why}")

    def _go_over(self) -> None:
        self.gone_over = True
        self.mll.reset()
        self.mll = MarginalLogLikelihood(
            self.likelihood, self.model, Cholesky(), self.generator, self.mll.draws, _notices=self.notices
        )

    def change(self, words: str) -> None:
        """Note what an obstacle has changed."""
        self.changes.append(words)
        _log.info("%s", words)

    @property
    def situation(self) -> Situation:
        """What obstacles are judged by."""
        mll, runs = self.mll, tuple(self._runs)
        return Situation(mll.method, self.rows, self.X.device, mll.draws == "frozen", mll.last, runs, self._switch)

    def hyperparameters(self) -> dict[str, float]:
        return hyperparameters(self.mll)

    def snapshot(self) -> list[Tensor]:
        """Where training is, in its coordinates."""
        return [leaf.detach().clone() for leaf in self.leaves]

    def restore(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for leaf, value in zip(self.leaves, values, strict=True):
                leaf.copy_(value)
        self.push()

    def push(self) -> None:
        """Bring the model's parameters to where training is."""
        for coordinate in self._coordinates:
            coordinate.push()

    def advance(self) -> None:
        """Bring the model's parameters to where an optimiser has gone, or back if that is nowhere."""
        if not all(bool(torch.isfinite(leaf).all()) for leaf in self.leaves):
            self.restore(self._good)
            raise TrainingError(
                "Expected the optimiser to take a finite step. Got NaN or infinity; the parameters are those of the "
                "last good step. Lower the learning rate."
            )
        self.push()

    def take_parameters(self, other: Problem) -> None:
        """Go to where another problem of the same model is."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(other.parameters[name])
        self.pull()

    def pull(self) -> None:
        """Go to where the model's parameters are."""
        for coordinate in self._coordinates:
            coordinate.pull()
        self._good = self.snapshot()

    @property
    def point(self) -> Tensor:
        """Where training is, as one vector (p,)."""
        return torch.cat([leaf.detach().reshape(-1).double().cpu() for leaf in self.leaves])

    def move_to(self, point: Tensor) -> None:
        self.restore(self.pieces(point))

    def pieces(self, point: Tensor) -> list[Tensor]:
        """A vector (p,) as values of the leaves."""
        pieces = torch.split(point, [leaf.numel() for leaf in self.leaves])
        return [piece.reshape(leaf.shape) for piece, leaf in zip(pieces, self.leaves, strict=True)]

    def knows_information(self) -> bool:
        """Whether the average-information matrix covers every trainable parameter."""
        return self.mll.knows_information(self.output(), self.y)

    def evaluate(
        self,
        contrast: bool = False,
        information: float | None = None,
        hold: bool = False,
        complete: bool = False,
    ) -> Evaluation:
        """Estimate at the current parameters. If it fails, they are put back to the last that gave a finite estimate.

        With `contrast` that is computed too, and with `information` (a tolerance) the average-information matrix. With
        `hold` the objective keeps what it holds between calls. With `complete` nothing is truncated.
        """
        self.push()
        draws = self.generator.get_state()
        try:
            found = self._evaluate(contrast, information, hold, complete)
        except Exception:
            self.generator.set_state(draws)  # another try has the same: new ones would leave out those that fail
            self.restore(self._good)
            raise
        self._good = self.snapshot()
        return found

    def draw_seed(self) -> int:
        """A seed for `evaluate_with`."""
        return draw_seed(self.generator)

    def evaluate_with(
        self, seed: int, contrast: bool = False, hold: bool = False, complete: bool = False
    ) -> Evaluation:
        """`evaluate` with the draws of a seed; the generator of the training is left where it is."""
        state = self.generator.get_state()
        self.generator.manual_seed(seed)
        try:
            return self.evaluate(contrast, hold=hold, complete=complete)
        finally:
            self.generator.set_state(state)

    def _evaluate(self, contrast: bool, information: float | None, hold: bool, complete: bool) -> Evaluation:
        for parameter in self.parameters.values():
            parameter.grad = None
        most = self.situation.most_iterations
        estimate = self.mll.evaluate(
            self.output(),
            self.y,
            contrast=contrast,
            information=information,
            most_iterations=most,
            hold=hold,
            complete=complete,
        )
        objective = -estimate.objective.mean()
        scatter = None if estimate.contrast is None else self._gradient_of(estimate.contrast)
        torch.autograd.backward(objective)
        norm = 0.0
        for (name, parameter), coordinate in zip(self.parameters.items(), self._coordinates, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            coordinate.pull_gradient()
            gradient = coordinate.leaf.grad
            assert gradient is not None
            square = float(gradient.double().square().sum())
            if not math.isfinite(square):
                raise TrainingError(
                    f"Expected a finite gradient. That of '{name}' holds NaN or infinity; it has not been applied, and "
                    "the parameters are those of the last good step. Train in float64 (model.double() and data in "
                    "float64), lower the learning rate, or constrain the noise from below."
                )
            norm += square
        metric = None if estimate.information is None else self._metric(estimate.information)
        for part, what in ((scatter, "scatter of the gradient"), (metric, "information matrix")):
            if part is not None and not bool(torch.isfinite(part).all()):
                raise TrainingError(
                    f"Expected a finite {what}. It holds NaN or infinity; no step has been taken, and the parameters "
                    "are those of the last good step. Train in float64, or take optimizer='adam'."
                )
        stats = _stats(self.mll)
        if not complete:
            self._runs = [*self._runs, stats.iterations][-self._switch.recent :]
        found = Evaluation(
            point=self.point,
            n=self.n,
            objective=float(objective.detach()),
            loss=_loss(stats, self.n),
            gradient_norm=math.sqrt(norm),
            stats=stats,
            gradient=_flat([leaf.grad for leaf in self.leaves if leaf.grad is not None]),
            contrast=scatter,
            information=metric,
        )
        if not (math.isfinite(found.objective) and math.isfinite(found.loss)):
            raise TrainingError(
                f"Expected a finite objective. Got {found.objective}; the parameters are those of the last good step. "
                "Train in float64, lower the learning rate, or constrain the noise from below."
            )
        return found

    def _slope(self) -> Tensor:
        return _flat([coordinate.slope() for coordinate in self._coordinates])

    def _gradient_of(self, scalar: Tensor) -> Tensor:
        """The gradient by the coordinates of training, (p,)."""
        return gradient_of(scalar, list(self.parameters.values())) * self._slope()

    def _metric(self, information: Tensor) -> Tensor:
        """The metric in the coordinates of training, with the priors' part. Never negative."""
        slope = self._slope()
        scale = slope * slope[:, None]
        hessian = prior_hessian(self.model, list(self.parameters.values()))
        return information * scale + (0.0 if hessian is None else absolute(hessian * scale / self.n))

    def rewind(self) -> None:
        """Back to the state before the first evaluation; the parameters stay."""
        self.generator.manual_seed(self._seed)
        self.mll.reset()

    def estimates(self, count: int) -> list[tuple[float, float]]:
        """Independent estimates of the loss at the current parameters, each with its standard error.

        They are independent also where training had its draws frozen. An error is 0 or NaN where an estimate states
        none.
        """
        mll = self.mll
        if mll.draws == "frozen" and not self.noiseless:
            given = self.likelihood, self.model, mll.method, self.generator
            mll = MarginalLogLikelihood(*given, _notices=self.notices)
        found = []
        with nullcontext() if mll is self.mll else mll, torch.no_grad():
            for _ in range(count):
                mll.evaluate(self.output(), self.y, most_iterations=self.situation.most_iterations)
                stats = _stats(mll)
                found.append((_loss(stats, self.n), stats.value_error / self.n))
        return found

    def objective_at(self, values: list[Tensor], seed: int) -> float | None:
        """An estimate of the objective at other parameters, by the draws of a seed. Everything is left as it is.

        By Cholesky where conjugate gradients make no progress there. None where it cannot be computed.
        """
        before, exact_possible = self.snapshot(), self.situation.exact_possible
        try:
            self.restore(values)
            try:
                return self._objective_by(self.method.with_probes_at_most(self.settings.comparing), seed)
            except ConvergenceError:
                return self._objective_by(Cholesky(), seed) if exact_possible else None
        except (RankError, DisagreementError):
            raise
        except RTGPError:
            return None
        finally:
            self.restore(before)

    def _objective_by(self, method: Method, seed: int) -> float | None:
        draws = torch.Generator().manual_seed(seed)
        mll = MarginalLogLikelihood(self.likelihood, self.model, method, draws, _notices=SILENT)
        try:
            with torch.no_grad():
                most = self.situation.most_iterations
                estimate = mll.evaluate(self.output(), self.y, most_iterations=most, once=True)
                found = float(-estimate.objective.mean())
        finally:
            mll.reset()
        return found if math.isfinite(found) else None

    def perturbed(self, generator: torch.Generator, spread: float) -> list[Tensor]:
        """Where training is, with every logarithm moved at random.

        Each parameter moves as a whole by up to `spread`, and its entries by a quarter of that.
        """
        moved = []
        for coordinate in self._coordinates:
            leaf = coordinate.leaf.detach().clone()
            if coordinate.logarithmic:
                common = 2.0 * torch.rand((), generator=generator, dtype=torch.float64) - 1.0
                own = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
                leaf += spread * (common + 0.25 * own).to(leaf)
            moved.append(leaf)
        return moved

    def logarithms_of(self, kind: str) -> list[int]:
        """The entries of `point` that are logarithms of parameters of a kind, such as "lengthscale"."""
        found: list[int] = []
        begin = 0
        for name, coordinate in zip(self.parameters, self._coordinates, strict=True):
            end = begin + coordinate.leaf.numel()
            if coordinate.logarithmic and name.endswith(kind):
                found += range(begin, end)
            begin = end
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything a later process needs to go on bit for bit."""
        return {
            "tensors": {name: value.clone() for name, value in self.mll.state_dict().items()},
            "leaves": self.snapshot(),
            "coordinates": [coordinate.kind for coordinate in self._coordinates],
            "exact": self.exact,
            "changes": list(self.changes),
            "runs": list(self._runs),
            "objective": self.mll.objective_state(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        kinds = [coordinate.kind for coordinate in self._coordinates]
        # Version 0.1 wrote no kinds, and knew no other coordinates than these.
        if list(state.get("coordinates", kinds)) != kinds or ("coordinates" not in state and "inside" in kinds):
            raise CheckpointError(
                "Expected a checkpoint whose parameters move in the coordinates of this version. Got others: remove "
                "the checkpoint folder to start again."
            )
        own = self.mll.state_dict()
        pairs = [
            *zip(self.leaves, state["leaves"], strict=True),
            *((own[name], state["tensors"][name]) for name in own),
        ]
        fits = all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
        # Everything, bounds and other buffers too: finite, or the model's own (an upper bound may be infinite).
        if not fits or not all(bool((torch.isfinite(b) | (b == a.to(b.device))).all()) for a, b in pairs):
            raise CheckpointError(
                "Expected finite parameters of the model's shapes in the checkpoint. Got others: remove the checkpoint "
                "folder to start again."
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state["tensors"][name])
        if bool(state.get("exact", self.exact)) and not self.exact:
            self._go_over()
        self.changes, self._runs = list(map(str, state.get("changes", []))), list(map(int, state.get("runs", [])))
        if any(run < 0 for run in self._runs):
            raise ValueError("'runs' must not be negative")
        self.mll.load_objective_state(state["objective"])
        self.generator.set_state(saved_tensor(state, "generator", (len(self.generator.get_state()),), torch.uint8))
        self.restore(state["leaves"])
        self._good = self.snapshot()


def _flat(pieces: list[Tensor]) -> Tensor:
    return torch.cat([piece.detach().reshape(-1).double().cpu() for piece in pieces])


def _stats(mll: MarginalLogLikelihood) -> EstimateStats:
    assert mll.last is not None
    return mll.last


def _loss(stats: EstimateStats, n: int) -> float:
    return 0.5 * ((stats.outputs * stats.log_det + stats.quadratic) / n + stats.rows / n * math.log(2.0 * math.pi))
