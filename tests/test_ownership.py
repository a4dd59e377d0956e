"""Memory is given back by whoever took it: nothing that a call made waits for the garbage collector."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

import rtgp
from gp_models import Model
from left_over import OnPurposeError, left_over
from rtgp._memory import enough_memory
from rtgp._objectives import KrylovObjective
from rtgp._ownership import without_cycles, without_frames
from rtgp.errors import InputError, NotPositiveDefiniteError, RTGPError
from rtgp.training._history import Row
from rtgp.training._problem import Problem
from solvers import plain_recurrence
from solvers.test_recording import Counting, with_recorder

LIKELIHOOD = ["cholesky", "cg", "rr-cg", "rff", "ss-rff", "sggp", "vecchia"]
ALL = [*LIKELIHOOD, "svgp", "poe"]


def data(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return x, torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)


def model_of(n: int) -> Model:
    return Model(*data(n), GaussianLikelihood()).double()


def fit(n: int, method: str = "rr-cg", **settings: Any) -> None:
    model = model_of(n)
    rtgp.fit(model, model.likelihood, *data(n), method=method, **{"steps": 3, **settings})


def fitted(method: str, n: int = 60, **settings: Any) -> rtgp.GPRegressor:
    x, y = data(n)
    return rtgp.GPRegressor(method=method, steps=3, random_state=0, **settings).fit(x.numpy(), y.numpy())


@pytest.fixture(autouse=True)
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():  # few steps, few points: of no interest here
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module", autouse=True)
def _first_use() -> None:
    """Modules are imported on first use; and torch imports its compiler with the first optimiser of a process, in whose
    frames it catches the callers'."""
    fit(20, optimizer="adam")
    fitted("svgp", 20)
    rtgp.diagnose(*data(20), draws=2)


@pytest.mark.parametrize("method", LIKELIHOOD)
def test_after_a_fit(method: str) -> None:
    assert left_over(lambda: fit(60, method)) == []


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam"}, {"optimizer": "lbfgs"}], ids=["auto", "adam", "lbfgs"])
def test_after_a_fit_that_begins_on_a_subset(settings: dict[str, Any]) -> None:
    assert left_over(lambda: fit(210, **settings)) == []


def stop(row: Row, model: Any) -> bool:
    return row["step"] >= 1


def fail(row: Row, model: Any) -> bool:
    raise OnPurposeError


def interrupt(row: Row, model: Any) -> bool:
    raise KeyboardInterrupt


@pytest.mark.parametrize("callback", [stop, fail, interrupt])
@pytest.mark.parametrize("method", ["cholesky", "rr-cg"])
def test_after_a_fit_that_ends_early(method: str, callback: Callable[[Row, Any], bool]) -> None:
    assert left_over(lambda: fit(60, method, callback=callback), OnPurposeError, KeyboardInterrupt) == []


def test_after_a_fit_that_fails_within_an_evaluation() -> None:
    def broken() -> None:
        model = model_of(60)
        with torch.no_grad():
            model.kernel.raw_outputscale.fill_(torch.nan)
        rtgp.fit(model, model.likelihood, *data(60), method="rr-cg", steps=3)

    assert left_over(broken, InputError) == []


def test_after_a_line_search_that_met_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    evaluate = Problem.evaluate

    def sometimes(self: Problem, *settings: Any) -> Any:
        calls.append(0)
        if len(calls) == 3:
            raise NotPositiveDefiniteError("on purpose")
        return evaluate(self, *settings)

    monkeypatch.setattr(Problem, "evaluate", sometimes)
    assert left_over(lambda: fit(60, "cholesky", steps=6)) == []
    assert len(calls) > 3


@pytest.mark.parametrize("method", ALL)
def test_after_a_prediction(method: str) -> None:
    x, _ = data(30)

    def predict() -> None:
        regressor = fitted(method)
        regressor.predict(x.numpy(), return_std=True)
        regressor.predict(x.numpy())

    assert left_over(predict) == []


@pytest.mark.parametrize("settings", [{"method": "cholesky"}, {"method": "cg"}, {"variance": "lanczos", "rank": 20}])
def test_after_a_posterior(settings: dict[str, Any]) -> None:
    def predict() -> None:
        model = model_of(100).eval().float()
        at = rtgp.posterior(model, model.likelihood, **settings)
        at.mean(data(30)[0].float()), at.variance(data(30)[0].float()), at.sample(data(30)[0].float(), 2)

    assert left_over(predict) == []


def test_a_posterior_that_was_released_predicts_the_same() -> None:
    model, (x, _) = model_of(60).eval(), data(30)
    at = rtgp.posterior(model, model.likelihood)
    mean, ready = at.mean(x), weakref.ref(at._cache)
    at.release(), at.release()
    assert ready() is None
    torch.testing.assert_close(at.mean(x), mean, rtol=0, atol=0)


@pytest.mark.parametrize("method", LIKELIHOOD)
def test_after_a_loop_of_ones_own(method: str) -> None:
    def loop() -> None:
        model = model_of(60).train()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (-mll(model(*model.train_inputs), model.train_targets)).backward()
            optimizer.step()

    assert left_over(loop) == []


def test_after_solves_and_diagnosis() -> None:
    x, y = data(60)
    matrix = (x @ x.T + torch.eye(60, dtype=torch.float64)).requires_grad_()

    def solve() -> None:
        rtgp.solve(matrix, y).sum().backward()
        rtgp.logdet(matrix).backward()
        matrix.grad = None

    assert left_over(solve) == []
    assert left_over(lambda: rtgp.diagnose(x, y, draws=2)) == []


def test_the_check_has_power() -> None:
    """A loop that holds a system, or a tensor, is found."""

    def cycle() -> None:
        model = model_of(60).train()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model)
        mll(model(*model.train_inputs), model.train_targets)
        mll.itself = [mll]

    names = left_over(cycle)
    assert any("KrylovObjective" in name for name in names)
    assert any("Tensor" in name for name in names)
    gc.collect()


def test_a_likelihood_that_was_released_goes_on() -> None:
    model = model_of(60).train()
    with rtgp.MarginalLogLikelihood(model.likelihood, model, generator=torch.Generator().manual_seed(0)) as mll:
        first = mll(model(*model.train_inputs), model.train_targets)
    (objective,) = [part for part in vars(mll).values() if isinstance(part, KrylovObjective)]
    assert "last_solve" not in objective.state_dict()
    mll.release()
    mll._generator.manual_seed(0)
    torch.testing.assert_close(mll(model(*model.train_inputs), model.train_targets), first, rtol=0, atol=0)
    assert "last_solve" in objective.state_dict()


@pytest.mark.parametrize("callback", [None, stop, fail, interrupt])
def test_a_fit_releases_what_a_card_has_recorded(
    callback: Callable[[Row, Any], bool] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Counting()
    plain_recurrence.install(monkeypatch)
    with_recorder(monkeypatch, recorder)
    alive: list[int] = []

    def watch(row: Row, model: Any) -> bool | None:
        alive.append(recorder.alive)
        return None if callback is None else callback(row, model)

    error = None
    method = rtgp.RRCG(preconditioner=None, probe_kind="rademacher", operator="dense")
    monkeypatch.setattr("rtgp._solvers.cg._CHUNK", {"cpu": 4})
    try:
        fit(60, method, callback=watch)
    except (OnPurposeError, KeyboardInterrupt) as caught:
        error = caught  # with its traceback, as a notebook keeps it
    assert (error is None) is (callback in (None, stop))
    assert max(alive) > 0
    assert recorder.alive == 0


@pytest.mark.parametrize("method", ALL)
def test_a_fitted_estimator_holds_what_predicts_and_nothing_else(method: str) -> None:
    regressor = fitted(method, 100)
    found = list(_reachable(regressor))
    names = {type(one).__name__ for one in found if type(one).__module__.startswith("rtgp.")}
    assert not {name for name in names if "Objective" in name or "Precondition" in name or "LowRank" in name}
    assert not names & {"MarginalLogLikelihood", "Problem", "Session", "NoiseUnits", "Recordings", "Policy"}
    tensors = [one for one in found if isinstance(one, Tensor)]
    assert all(tensor.grad_fn is None and tensor.grad is None for tensor in tensors)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    inputs = 100 * 3 * 8
    # Data in two precisions at most; SVGP's inducing points, 100 of them, come with a matrix.
    assert sum(storages.values()) <= 4 * inputs + (100 * 100 * 4 if method == "svgp" else 0) + 4096
    size = len(pickle.dumps(regressor))
    regressor.predict(data(30)[0].numpy(), return_std=True)
    assert len(pickle.dumps(regressor)) == size


def _reachable(root: object) -> Iterator[object]:
    """Everything that an object holds, but classes, modules and functions."""
    seen, waiting = {id(root)}, [root]
    skipped = (type, type(gc), type(_reachable), type(len))
    while waiting:
        one = waiting.pop()
        yield one
        for inner in gc.get_referents(one):
            if id(inner) not in seen and not isinstance(inner, skipped):
                seen.add(id(inner))
                waiting.append(inner)


def test_a_module_without_cycles() -> None:
    """Freed with its last reference; so are its copies; and its hook still works."""
    gc.disable()
    try:
        for make in (lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))):
            model = make(without_cycles(model_of(20)))
            # Functions such as Softplus are shared by all constraints.
            dead = [weakref.ref(part) for part in model.modules() if isinstance(part, gpytorch.Module)]
            assert all(len(part._load_state_dict_pre_hooks) >= 1 for part in (model, model.kernel))
            del model
            assert [ref for ref in dead if ref() is not None] == []
    finally:
        gc.enable()
    kernel = without_cycles(gpytorch.kernels.RBFKernel(ard_num_dims=2))
    other = copy.deepcopy(kernel)
    wide = gpytorch.kernels.RBFKernel(ard_num_dims=3).state_dict()
    with pytest.raises(RuntimeError, match="size mismatch"):
        kernel.load_state_dict(wide)
    other.load_strict_shapes(False)
    other.load_state_dict(wide)
    assert other.raw_lengthscale.shape == (1, 3)
    assert kernel.raw_lengthscale.shape == (1, 2)


def test_running_out_of_memory_frees_what_was_taken() -> None:
    taken: list[weakref.ref[Any]] = []

    def greedy() -> None:
        part = np.zeros(1000)
        taken.append(weakref.ref(part))
        raise MemoryError

    try:
        with enough_memory("The test", "Take less"):
            greedy()
    except RTGPError:
        assert taken[0]() is None  # here, where one would try something smaller
    else:
        pytest.fail("no error")


def test_an_error_that_is_kept_holds_no_frames() -> None:
    try:
        try:
            raise ValueError("the cause")
        except ValueError as error:
            raise InputError("on purpose") from error
    except InputError as error:
        kept = without_frames(error)
    assert kept.__traceback__ is None
    assert kept.__cause__ is not None
    assert kept.__cause__.__traceback__ is None
