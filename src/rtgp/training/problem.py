"""A model with its data and objective: what every optimiser evaluates."""

from __future__ import annotations

import hashlib
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import gpytorch
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.priors import Prior
from torch import Tensor

from rtgp.distributed.errors import DisagreementError, RankError
from rtgp.errors import (
    ConvergenceError,
    InputError,
    OutOfMemoryError,
    PrecisionWarning,
    RTGPError,
    UnsupportedModelError,
)
from rtgp.methods import Cholesky, Method
from rtgp.mll import MarginalLogLikelihood
from rtgp.objectives import EstimateStats
from rtgp.objectives.protocol import gradient_of
from rtgp.state import saved_tensor
from rtgp.training.coordinates import Coordinate, Log, Plain, logarithmic
from rtgp.training.errors import CheckpointError, TrainingError
from rtgp.training.headway import Headway, exact_possible, replaceable
from rtgp.training.history import hyperparameters
from rtgp.training.priors import absolute, prior_hessian

_log = logging.getLogger("rtgp")
_COMPARING = 4  # probes at the most, for the comparison of two starts


@dataclass(frozen=True)
class Evaluation:
    """One estimate of the objective and its gradient (which is in the leaves' .grad)."""

    objective: float  # what is minimised, per point: priors and added loss terms included
    loss: float  # negative log marginal likelihood per point
    gradient_norm: float
    stats: EstimateStats
    gradient: Tensor  # (p,): of the objective in the coordinates of training, float64 on the CPU
    contrast: Tensor | None  # (p,): of mean zero and the gradient's covariance (`LossEstimate`)
    information: Tensor | None  # (p, p): the average-information matrix and the priors' curvature, per point


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
    ) -> None:
        self.model, self.likelihood, self.X, self.y = model, likelihood, X, y
        self._seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self.mll = MarginalLogLikelihood(likelihood, model, method, self.generator, draws)
        self.changes: list[str] = []  # what obstacles have made of the method, in words
        self._headway = Headway()
        self._runs: list[int] = []  # iterations of the last evaluations
        self.parameters = {name: p for name, p in self.mll.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise UnsupportedModelError(
                "Expected a model with parameters to train. Every parameter has requires_grad=False: set it to True."
            )
        self._coordinates: list[Coordinate] = [
            logarithmic(self.mll, name, parameter) if logarithms else Plain(parameter)
            for name, parameter in self.parameters.items()
        ]
        self.leaves = [coordinate.leaf for coordinate in self._coordinates]  # what optimisers move
        self._good = self.snapshot()

    @property
    def n(self) -> int:
        return self.X.shape[0]

    @property
    def method(self) -> Method:
        """By which the likelihood is estimated now."""
        return self.mll.method

    @property
    def exact(self) -> bool:
        """Whether its estimates have no noise."""
        return isinstance(self.method, Cholesky)

    def overcome(self, error: RTGPError, last_resort: bool) -> bool:
        """Whether something could be changed after an evaluation failed, so that it is worth another try.

        First the precision, the rank or what is stored. Cholesky takes the place of conjugate gradients that make no
        headway. last_resort: there is no step that could be taken back; then also Cholesky after any other failure, and
        a jitter, which changes the model.
        """
        slow = isinstance(error, ConvergenceError)
        if slow and self._take_cholesky(f"conjugate gradients made no headway ({_first_sentence(error)})"):
            return True
        change = None if self.exact and not last_resort else self.mll.overcome(error)
        if change is not None:
            self._change(f"{change} ({_first_sentence(error)})")
            return True
        hopeless = isinstance(error, (OutOfMemoryError, InputError)) or not last_resort
        return not hopeless and self._take_cholesky(_first_sentence(error))

    def consider_cholesky(self, steps_left: int, too_noisy: bool) -> bool:
        """Take Cholesky where the last runs have cost more than it would, or where noise that cannot be averaged out
        would keep conjugate gradients busy for all the steps that are left, and these cost more; whether it was
        taken."""
        runs = self._runs[-self._headway.recent :]
        if len(runs) < self._headway.recent or not self._exact_possible():
            return False
        mean, most = sum(runs) / len(runs), self._break_even()
        if mean > most:
            return self._take_cholesky(f"{mean:.0f} iterations a step, and a factorisation costs as much as {most}")
        exact_steps = self._headway.exact_steps * self._headway.cost(self.n, *self._size(), self.X.device)
        return (
            too_noisy
            and mean * steps_left > exact_steps
            and self._take_cholesky("the noise of the gradients is too much to be averaged out in the steps left")
        )

    def _take_cholesky(self, why: str) -> bool:
        if not self._exact_possible():
            return False
        self._go_over()
        self._change(f"by Cholesky from here on: {why}")
        return True

    def _go_over(self) -> None:
        self.mll.reset()
        self.mll = MarginalLogLikelihood(self.likelihood, self.model, Cholesky(), self.generator, self.mll.draws)

    def _change(self, words: str) -> None:
        self.changes.append(words)
        _log.info("%s", words)

    def _exact_possible(self) -> bool:
        return exact_possible(self.method, self.n, self.X.device)

    def _size(self) -> tuple[int, int]:
        """Rank of the preconditioner and columns of a run: of the last, or what is usual."""
        last, columns = self.mll.last, 2 + getattr(self.method, "probes", 0)
        if last is not None and last.columns:
            return last.rank, last.columns
        return math.isqrt(2 * self.n * columns), columns

    def _break_even(self) -> int:
        return self._headway.break_even(self.n, *self._size(), self.X.device)

    def _most_iterations(self) -> int | None:
        if not replaceable(self.method) or self.mll.draws == "frozen":
            return None
        return self._headway.limit(self.n, *self._size(), self.X.device, self._exact_possible())

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
        return self.mll.knows_information(self.model(self.X), self.y)

    def evaluate(self, contrast: bool = False, information: float | None = None) -> Evaluation:
        """Estimate at the current parameters. If it fails, they are put back to the last that gave a finite one.

        contrast: whether that is wanted; information: the tolerance of the average-information matrix if it is.
        """
        self.push()
        draws = self.generator.get_state()
        try:
            found = self._evaluate(contrast, information)
        except Exception:
            self.generator.set_state(draws)  # another try has the same: new ones would leave out those that fail
            self.restore(self._good)
            raise
        self._good = self.snapshot()
        return found

    def draw_seed(self) -> int:
        """For `evaluate_with`."""
        return int(torch.randint(2**62, (), generator=self.generator))

    def evaluate_with(self, seed: int, contrast: bool = False) -> Evaluation:
        """`evaluate` with the draws of a seed; the generator of the training is left where it is."""
        state = self.generator.get_state()
        self.generator.manual_seed(seed)
        try:
            return self.evaluate(contrast)
        finally:
            self.generator.set_state(state)

    def _evaluate(self, contrast: bool, information: float | None) -> Evaluation:
        for parameter in self.parameters.values():
            parameter.grad = None
        most = self._most_iterations()
        estimate = self.mll.evaluate(
            self.model(self.X), self.y, contrast=contrast, information=information, most_iterations=most
        )
        objective = -estimate.objective
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
        self._runs = [*self._runs, stats.iterations][-self._headway.recent :]
        found = Evaluation(
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
        """With respect to the coordinates of training, (p,)."""
        return gradient_of(scalar, list(self.parameters.values())) * self._slope()

    def _metric(self, information: Tensor) -> Tensor:
        """In the coordinates of training, with the priors' part. Never negative."""
        slope = self._slope()
        scale = slope * slope[:, None]
        hessian = prior_hessian(self.model, list(self.parameters.values()))
        return information * scale + (0.0 if hessian is None else absolute(hessian * scale / self.n))

    def rewind(self) -> None:
        """Back to the state before the first evaluation; the parameters stay."""
        self.generator.manual_seed(self._seed)
        self.mll.reset()

    def estimates(self, count: int) -> list[tuple[float, float]]:
        """Independent estimates of the loss at the current parameters, also where training had its draws frozen, each
        with its own standard error: 0 or NaN where it states none."""
        mll = self.mll
        if mll.draws == "frozen":
            mll = MarginalLogLikelihood(self.likelihood, self.model, mll.method, self.generator)
        found = []
        with nullcontext() if mll is self.mll else mll, torch.no_grad():
            for _ in range(count):
                mll.evaluate(self.model(self.X), self.y, most_iterations=self._most_iterations())
                stats = _stats(mll)
                found.append((_loss(stats, self.n), stats.value_error / self.n))
        return found

    def objective_at(self, values: list[Tensor], seed: int) -> float | None:
        """An estimate of the objective at other parameters, by the draws of a seed, which leaves everything as it is;
        None where it cannot be computed."""
        before, method = self.snapshot(), self.method
        if hasattr(method, "probes"):
            method = replace(method, probes=min(method.probes, _COMPARING))  # type: ignore[type-var]
        mll = MarginalLogLikelihood(self.likelihood, self.model, method, torch.Generator().manual_seed(seed))
        try:
            self.restore(values)
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore", PrecisionWarning)  # training will say so where it goes on
                most = self._most_iterations()
                found = float(-mll.evaluate(self.model(self.X), self.y, most_iterations=most).objective)
        except (RankError, DisagreementError):
            raise
        except RTGPError:
            return None
        finally:
            mll.reset()
            self.restore(before)
        return found if math.isfinite(found) else None

    def perturbed(self, generator: torch.Generator, spread: float) -> list[Tensor]:
        """Where training is, with every logarithm moved at random: each parameter as a whole by up to `spread`, its
        entries by a quarter of that."""
        moved = []
        for coordinate in self._coordinates:
            leaf = coordinate.leaf.detach().clone()
            if isinstance(coordinate, Log):
                common = 2.0 * torch.rand((), generator=generator, dtype=torch.float64) - 1.0
                own = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
                leaf += spread * (common + 0.25 * own).to(leaf)
            moved.append(leaf)
        return moved

    def state_dict(self) -> dict[str, Any]:
        """Everything a later process needs to go on bit for bit."""
        return {
            "tensors": {name: value.clone() for name, value in self.mll.state_dict().items()},
            "leaves": self.snapshot(),
            "exact": self.exact,
            "changes": list(self.changes),
            "runs": list(self._runs),
            "objective": self.mll._objective.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
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
                "folder to begin anew."
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state["tensors"][name])
        if bool(state.get("exact", self.exact)) and not self.exact:
            self._go_over()
        self.changes, self._runs = list(map(str, state.get("changes", []))), list(map(int, state.get("runs", [])))
        if any(run < 0 for run in self._runs):
            raise ValueError("'runs' must not be negative")
        self.mll._objective.load_state_dict(state["objective"])
        self.generator.set_state(saved_tensor(state, "generator", (len(self.generator.get_state()),), torch.uint8))
        self.restore(state["leaves"])
        self._good = self.snapshot()

    def fingerprint(self) -> dict[str, str]:
        """What makes this problem another than the next: data, model and likelihood, not the parameters' values."""
        shapes = {name: (tuple(p.shape), str(p.dtype)) for name, p in self.parameters.items()}
        return {
            "data": hashlib.sha256(_bytes(self.X) + _bytes(self.y)).hexdigest(),
            "shape of the data": f"{tuple(self.X.shape)} {self.X.dtype}",
            "parameters": ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in shapes.items()),
            "model": _structure(self.mll),
            "fixed numbers of the model": _fixed_numbers(self.mll),
        }


def _first_sentence(error: Exception) -> str:
    return str(error).split(". ")[0].rstrip(".")


def _flat(pieces: list[Tensor]) -> Tensor:
    return torch.cat([piece.detach().reshape(-1).double().cpu() for piece in pieces])


def _stats(mll: MarginalLogLikelihood) -> EstimateStats:
    assert mll.last is not None
    return mll.last


def _loss(stats: EstimateStats, n: int) -> float:
    return 0.5 * ((stats.log_det + stats.quadratic) / n + math.log(2.0 * math.pi))


def _bytes(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().numpy().tobytes()


def _structure(root: Any) -> str:
    """Model, likelihood, mean and kernels by name, and a digest of all modules with their plain settings (such as nu),
    which their printed form leaves out."""
    words = []
    for name, module in root.named_modules():
        if module is root:
            continue
        settings = vars(module) if isinstance(module, gpytorch.Module) else {}
        plain = {
            key: value
            for key, value in settings.items()
            if not key.startswith("_") and key != "training" and isinstance(value, (bool, int, float, str))
        }
        words.append(f"{name}: {type(module).__name__}{plain or ''}")
    kinds = (type(root.model), type(root.likelihood))
    parts = [module for module in root.modules() if isinstance(module, (Mean, Kernel))]
    names = [*(kind.__name__ for kind in kinds), *(_kernel_name(module) for module in parts)]
    return f"{', '.join(names)}; digest {hashlib.sha256(chr(10).join(words).encode()).hexdigest()[:16]}"


def _kernel_name(module: Any) -> str:
    nu = getattr(module, "nu", None)
    return type(module).__name__ + (f"(nu={nu})" if isinstance(nu, (int, float)) else "")


def _fixed_numbers(root: Any) -> str:
    """A digest for each group of them: what is not trained and yet decides the optimum."""
    noise = getattr(getattr(root.likelihood, "noise_covar", None), "noise", None)
    known = {"noise": noise} if isinstance(noise, Tensor) and not noise.requires_grad else {}
    fixed = {name: p for name, p in root.named_parameters() if not p.requires_grad}
    bounds: dict[str, Tensor] = {}
    priors: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}
    for path, module in root.named_modules():
        own = dict(module.named_buffers(recurse=False))
        if isinstance(module, Prior):  # some keep their parameters as plain attributes
            own.update({name: value for name, value in vars(module).items() if isinstance(value, Tensor)})
        group = bounds if isinstance(module, Interval) else priors if isinstance(module, Prior) else others
        group.update({f"{path}.{name}": value for name, value in own.items()})
    groups = {"known noise": known, "fixed parameters": fixed, "bounds": bounds, "priors": priors, "others": others}
    return ", ".join(f"{kind} {_digest(numbers)}" for kind, numbers in groups.items() if numbers) or "none"


def _digest(numbers: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(numbers):
        digest.update(name.encode() + _bytes(numbers[name]))
    return digest.hexdigest()[:8]


def check_data(model: Any, X: Any, y: Any) -> tuple[Tensor, Tensor]:
    """X (n, d) and y (n,) in the dtype and on the device of the model's parameters."""
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    dtype = torch.get_default_dtype() if like is None else like.dtype
    device = torch.device("cpu") if like is None else like.device
    given = isinstance(X, Tensor) and X.is_floating_point()
    try:
        X = torch.as_tensor(X, device=device) if given else torch.as_tensor(X, dtype=dtype, device=device)
        y = torch.as_tensor(y, device=device).to(X.dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Expected X and y as tensors or arrays of numbers. {error}") from error
    X = X[:, None] if X.ndim == 1 else X
    if X.ndim != 2 or y.ndim != 1 or X.shape[0] != y.shape[0]:
        raise InputError(
            "Expected X of shape (n, d) and y of shape (n,) with the same n. "
            f"Got {tuple(X.shape)} and {tuple(y.shape)}" + ("; pass y.reshape(-1)." if y.ndim == 2 else ".")
        )
    return X, y


@contextmanager
def in_float64(model: Any, likelihood: Any, X: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Work on the model in float64, in place, and put it back into its own precision at the end."""
    dtypes = {t.dtype for m in (model, likelihood) for t in (*m.parameters(), *m.buffers()) if t.is_floating_point()}
    if dtypes != {torch.float32} or X.dtype != torch.float32:
        yield X, y
        return
    wide = X.double(), y.double()
    model.double(), likelihood.double()
    model.set_train_data(*wide, strict=False)
    try:
        yield wide
    finally:
        model.float(), likelihood.float()
        model.set_train_data(X, y, strict=False)
