"""Vecchia's likelihood: exact with all earlier points, and with few against NumPy point by point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gpytorch import kernels
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import LinearMean

import reference
import rtgp
from gp_models import airports, estimated, exact, gradients, make
from rtgp._mll import MarginalLogLikelihood
from rtgp._objectives import Batch
from rtgp._objectives.vecchia import VecchiaObjective, VecchiaSettings
from rtgp.errors import SettingError

N = 50
KERNELS = {
    "rbf": None,
    "matern12": lambda: kernels.ScaleKernel(kernels.MaternKernel(nu=0.5)),
    "sum": lambda: kernels.ScaleKernel(kernels.RBFKernel()) + kernels.ScaleKernel(kernels.MaternKernel(nu=1.5)),
    "generic": lambda: kernels.ScaleKernel(kernels.RQKernel(ard_num_dims=2)),
}


def batch_of(model) -> Batch:
    mll = MarginalLogLikelihood(model.likelihood, model, "vecchia")
    return mll._read(model(model.train_inputs[0]), model.train_targets)


def objective(neighbours: int, rows: int | None = None) -> VecchiaObjective:
    return VecchiaObjective(VecchiaSettings(neighbours, rows))


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("known", [False, True], ids=["one noise", "known noise"])
@pytest.mark.parametrize("name", KERNELS)
def test_with_all_earlier_points_it_is_the_exact_likelihood(name: str, known: bool) -> None:
    x, y = airports(N)
    noise = torch.linspace(0.05, 0.3, N, dtype=torch.float64)
    make_kernel = KERNELS[name]
    model = make(
        x, y,
        likelihood=FixedNoiseGaussianLikelihood(noise) if known else None,
        kernel=None if make_kernel is None else make_kernel(),
        mean=LinearMean(2),
    )  # fmt: skip
    value, slopes = exact(model, y)
    found, ours = estimated(MarginalLogLikelihood(model.likelihood, model, rtgp.Vecchia(N - 1)), y)
    torch.testing.assert_close(found, value, rtol=1e-8, atol=1e-9)
    assert ours.keys() == slopes.keys()
    for name in slopes:
        torch.testing.assert_close(ours[name], slopes[name], rtol=1e-6, atol=1e-8)


def conditional_loss(K_hat: np.ndarray, residual: np.ndarray, neighbours: np.ndarray, i: int) -> float:
    """-log p(y_i | y_c), by the textbook formula."""
    cross = K_hat[i, neighbours] @ np.linalg.inv(K_hat[np.ix_(neighbours, neighbours)]) if len(neighbours) else []
    mean = float(np.dot(cross, residual[neighbours]))
    variance = K_hat[i, i] - float(np.dot(cross, K_hat[neighbours, i]))
    return 0.5 * (np.log(2 * np.pi * variance) + (residual[i] - mean) ** 2 / variance)


@pytest.mark.parametrize("rows", [None, 20])
def test_few_neighbours_one_by_one(rows: int | None) -> None:
    x, y = airports(N)
    model = make(x, y)
    made = objective(5, rows)
    batch = batch_of(model)
    value = float(made(batch, generator()).value)
    index = made.state_dict()["index"].numpy()
    assert index.shape == (N if rows is None else rows, 6)
    with torch.no_grad():
        K_hat = model.likelihood(model.forward(x)).covariance_matrix.numpy()
    residual = batch.residual.detach().numpy()
    losses = [conditional_loss(K_hat, residual, row[:-1][row[:-1] != row[-1]], row[-1]) for row in index]
    assert value == pytest.approx(N * np.mean(losses), rel=1e-10)


@pytest.mark.parametrize("rows", [None, 30])
def test_gradients_are_differences_of_values(rows: int | None) -> None:
    x, y = airports(N)
    model = make(x, y, kernel=kernels.ScaleKernel(kernels.MaternKernel(nu=1.5, ard_num_dims=2)))
    made = objective(4, rows)
    made(batch_of(model), generator()).surrogate.backward()
    for name, slope in gradients(model).items():
        parameter = dict(model.named_parameters())[name]
        for k in range(parameter.numel()):
            values = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    parameter.view(-1)[k] += step
                    values.append(float(made(batch_of(model)).value))
                    parameter.view(-1)[k] -= step
            assert float(slope.view(-1)[k]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-6), name


def test_the_density_of_a_gaussian_process() -> None:
    """It is that of N(0, (G^T G)^-1)."""
    x, y = airports(N)
    model = make(x, y)
    made, batch = objective(6), batch_of(model)
    value = float(made(batch, generator()).value)
    index = made.state_dict()["index"].numpy()
    neighbours = np.where(index[:, :-1] == index[:, -1:], -1, index[:, :-1])
    with torch.no_grad():
        K_hat = model.likelihood(model.forward(x)).covariance_matrix.numpy()
    G = reference.inverse_factor(K_hat, neighbours)
    expected = reference.negative_log_likelihood(np.linalg.inv(G.T @ G), batch.residual.detach().numpy())
    assert value == pytest.approx(expected, rel=1e-9)


def test_it_is_deterministic_and_held() -> None:
    x, y = airports(N)
    model = make(x, y)
    made = objective(5)
    first = float(made(batch_of(model), generator(1)).value)
    assert float(made(batch_of(model), generator(2)).value) == first  # the order is held
    assert float(objective(5)(batch_of(model), generator(2)).value) != first
    again = objective(5)
    again.load_state_dict(made.state_dict())
    assert float(again(batch_of(model), generator(2)).value) == first
    made.reset()
    assert made.state_dict() == {}


def test_the_mean_over_rows_is_that_of_all() -> None:
    """With its standard error. |z| < 4: a false alarm in 16,000."""
    x, y = airports(400)
    model = make(x, y)
    with torch.no_grad():
        whole = objective(8)(batch_of(model), generator(1))
        part = objective(8, 200)(batch_of(model), generator(1))
    assert whole.stats.value_error == 0.0
    assert abs(float(part.value - whole.value)) < 4 * part.stats.value_error + 5.0  # another order of the rest


def test_equal_points_and_one_point() -> None:
    x, y = airports(20)
    for points, targets in ((x[:1].repeat(20, 1), y), (x[:1], y[:1]), (x[:2], y[:2])):
        model = make(points, targets)
        value, slopes = exact(model, targets)
        found, ours = estimated(MarginalLogLikelihood(model.likelihood, model, "vecchia"), targets)
        torch.testing.assert_close(found, value, rtol=1e-8, atol=1e-9)
        for name in slopes:
            torch.testing.assert_close(ours[name], slopes[name], rtol=1e-6, atol=1e-8)


def test_a_float32_model_is_computed_in_float64() -> None:
    x, y = airports(N, dtype=torch.float32)
    model = make(x, y)
    mll = MarginalLogLikelihood(model.likelihood, model, rtgp.Vecchia(5), generator())
    value = mll(model(x), y)
    value.backward()
    wide = make(x, y).double()
    other = MarginalLogLikelihood(wide.likelihood, wide, rtgp.Vecchia(5), generator())
    assert mll.last.dtype == torch.float64
    assert float(value.detach()) == pytest.approx(float(other(wide(x.double()), y.double()).detach()), abs=1e-5)


@pytest.mark.parametrize("wrong", [{"neighbours": 0}, {"neighbours": None}, {"neighbours": 2.0}, {"rows": 0}])
def test_settings_check_themselves(wrong: dict) -> None:
    with pytest.raises(SettingError, match=f"'{next(iter(wrong))}' parameter of Vecchia must be a positive integer"):
        rtgp.Vecchia(**wrong)


@pytest.mark.parametrize(
    "change",
    [{"size": 0}, {"size": 3}, {"index": torch.zeros(N, 6, dtype=torch.int32)}, {"index": torch.zeros(N, 6)}],
)
def test_a_state_that_makes_no_sense_is_refused(change: dict) -> None:
    x, y = airports(N)
    made = objective(5)
    made(batch_of(make(x, y)), generator())
    with pytest.raises(ValueError, match=r"index|size"):
        objective(5).load_state_dict({**made.state_dict(), **change})


def test_fit_is_by_lbfgs_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    x, y = airports(150)
    model = make(x, y)
    result = rtgp.fit(model, model.likelihood, x, y, method="vecchia", seed=0)
    assert result.optimizer == "lbfgs"
    assert result.loss_error == 0.0
    assert "neighbours" in result.message
    exact_model = make(x, y)
    best = rtgp.fit(exact_model, exact_model.likelihood, x, y, method="cholesky", seed=0)
    assert abs(result.loss - best.loss) < 0.05
    interrupted = make(x, y)
    stop = {"method": "vecchia", "seed": 0, "checkpoint": tmp_path, "checkpoint_every": 1}
    rtgp.fit(interrupted, interrupted.likelihood, x, y, callback=lambda row, _: row["step"] == 2, **stop)
    rtgp.fit(interrupted, interrupted.likelihood, x, y, **stop)
    for one, two in zip(model.parameters(), interrupted.parameters(), strict=True):
        assert torch.equal(one, two)
