"""A model with its data and objective: what every optimiser evaluates."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rtgp.errors import InputError, UnsupportedModelError
from rtgp.methods import Method
from rtgp.mll import MarginalLogLikelihood
from rtgp.objectives import EstimateStats
from rtgp.training.coordinates import Coordinate, Plain, logarithmic
from rtgp.training.errors import TrainingError
from rtgp.training.history import hyperparameters


@dataclass(frozen=True)
class Evaluation:
    """One estimate of the objective and its gradient (which is in the parameters' .grad)."""

    objective: float  # what is minimised, per point: priors and added loss terms included
    loss: float  # negative log marginal likelihood per point
    gradient_norm: float
    stats: EstimateStats


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

    def take_parameters(self, other: Problem) -> None:
        """Go to where another problem of the same model is."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(other.parameters[name])
        for coordinate in self._coordinates:
            coordinate.pull()
        self._good = self.snapshot()

    def evaluate(self) -> Evaluation:
        """Estimate at the current parameters. If it fails, they are put back to the last that gave a finite one."""
        self.push()
        try:
            found = self._evaluate()
        except Exception:
            self.restore(self._good)
            raise
        self._good = self.snapshot()
        return found

    def _evaluate(self) -> Evaluation:
        for parameter in self.parameters.values():
            parameter.grad = None
        objective = -self.mll(self.model(self.X), self.y)
        objective.backward()
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
        stats = _stats(self.mll)
        found = Evaluation(float(objective.detach()), _loss(stats, self.n), math.sqrt(norm), stats)
        if not (math.isfinite(found.objective) and math.isfinite(found.loss)):
            raise TrainingError(
                f"Expected a finite objective. Got {found.objective}; the parameters are those of the last good step. "
                "Train in float64, lower the learning rate, or constrain the noise from below."
            )
        return found

    def rewind(self) -> None:
        """Back to the state before the first evaluation; the parameters stay."""
        self.generator.manual_seed(self._seed)
        self.mll.reset()

    def losses(self, count: int) -> list[float]:
        """Independent estimates of the loss at the current parameters, also where training had its draws frozen."""
        mll = self.mll
        if mll.draws == "frozen":
            mll = MarginalLogLikelihood(self.likelihood, self.model, mll.method, self.generator)
        found = []
        with torch.no_grad():
            for _ in range(count):
                mll(self.model(self.X), self.y)
                found.append(_loss(_stats(mll), self.n))
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything a later process needs to go on bit for bit."""
        return {
            "tensors": dict(self.mll.state_dict()),
            "leaves": self.leaves,
            "objective": self.mll._objective.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in self.mll.state_dict().items():
                tensor.copy_(state["tensors"][name])
        self.mll._objective.load_state_dict(state["objective"])
        self.generator.set_state(state["generator"])
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
        }


def _stats(mll: MarginalLogLikelihood) -> EstimateStats:
    assert mll.last is not None
    return mll.last


def _loss(stats: EstimateStats, n: int) -> float:
    return 0.5 * ((stats.log_det + stats.quadratic) / n + math.log(2.0 * math.pi))


def _bytes(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().numpy().tobytes()


def _structure(root: torch.nn.Module) -> str:
    """The modules and, of GPyTorch's, the plain settings (such as nu), which their printed form leaves out."""
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
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16] + f" ({type(root.model).__name__})"


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
