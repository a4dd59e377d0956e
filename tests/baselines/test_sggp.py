"""sgGP: the likelihood of sets of neighbours, against NumPy set by set, and where it is the exact one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood

import reference
import rtgp
from gp_models import airports, gradients, make
from rtgp._baselines.sggp import NeighbourObjective, NeighbourSettings, nearest
from rtgp._mll import MarginalLogLikelihood
from rtgp._objectives import Batch, EstimateRequest
from rtgp.errors import NotPositiveDefiniteError, SettingError

N = 50


def batch_of(model) -> Batch:
    mll = MarginalLogLikelihood(model.likelihood, model, "sggp")
    return mll._read(model(model.train_inputs[0]), model.train_targets)


def test_neighbours_are_the_nearest() -> None:
    x, _ = airports(N)
    sets = nearest(x, 6).numpy()
    distances = np.linalg.norm(x.numpy()[:, None] - x.numpy()[None], axis=2)
    assert sets.shape == (N, 7)
    assert (sets[:, 0] == np.arange(N)).all()
    for i in range(N):
        assert set(sets[i]) == set(np.argsort(distances[i])[:7])


def test_the_value_is_that_of_the_sets_one_by_one() -> None:
    x, y = airports(N)
    model = make(x, y)
    mll = MarginalLogLikelihood(model.likelihood, model, rtgp.SGGP(neighbours=6))
    value = -N * float(mll(model(x), y).detach())
    with torch.no_grad():
        K_hat = model.likelihood(model.forward(x)).covariance_matrix.numpy()
        residual = (y - model.mean_module(x)).numpy()
    expected = [
        reference.negative_log_likelihood(K_hat[np.ix_(rows, rows)], residual[rows]) for rows in nearest(x, 6).numpy()
    ]
    assert value == pytest.approx(N / 7 * np.mean(expected), rel=1e-9)


@pytest.mark.parametrize("known", [False, True])
def test_with_all_points_as_neighbours_it_is_the_exact_likelihood(known: bool) -> None:
    x, y = airports(N)
    noise = torch.linspace(0.05, 0.3, N, dtype=torch.float64)
    found = []
    for method in (rtgp.SGGP(neighbours=N - 1), "cholesky"):
        model = make(x, y, likelihood=FixedNoiseGaussianLikelihood(noise) if known else None)
        mll = MarginalLogLikelihood(model.likelihood, model, method)
        value = mll(model(x), y)
        value.backward()
        found.append((float(value.detach()), gradients(model)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-10)
    assert found[0][1].keys() == found[1][1].keys()
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][name], rtol=1e-7, atol=1e-9)


def test_a_minibatch_is_unbiased_for_the_sum_over_all_sets() -> None:
    """Exactly: the mean over every draw of one centre, and of its gradient, is the estimate with all centres."""
    x, y = airports(N)
    model = make(x, y)
    batch, sets = batch_of(model), nearest(x, 5)
    parameters = list(model.parameters())
    every = NeighbourObjective._estimate(batch, sets, None)
    whole = torch.autograd.grad(every.surrogate, parameters, retain_graph=True)
    values, total = [], [torch.zeros_like(p) for p in parameters]
    for i in range(N):
        one = NeighbourObjective._estimate(batch, sets[[i]], None)
        values.append(float(one.value))
        for into, gradient in zip(
            total, torch.autograd.grad(one.surrogate, parameters, retain_graph=True), strict=True
        ):
            into += gradient / N
    assert np.mean(values) == pytest.approx(float(every.value), rel=1e-10)
    for one, two in zip(total, whole, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


def test_standard_error_and_contrast_have_the_scatter_of_the_draws() -> None:
    """400 draws of 10 of 50 centres: a sample variance is off by 7% of itself; the bars are at about 5
    sigma: false alarm 1e-5."""
    x, y = airports(N)
    model = make(x, y)
    batch, objective = batch_of(model), NeighbourObjective(NeighbourSettings(5, 10))
    generator = torch.Generator().manual_seed(0)
    found = [objective(batch, generator, EstimateRequest(contrast=True)) for _ in range(400)]
    values = np.array([float(one.value) for one in found])
    errors = np.array([one.stats.value_error for one in found])
    assert np.mean(errors**2) == pytest.approx(values.var(ddof=1), rel=0.4)
    parameters = [p for p in model.parameters() if p.numel() == 1]

    def derivatives(scalar: torch.Tensor) -> list[float]:
        return [float(g) for g in torch.autograd.grad(scalar, parameters, retain_graph=True)]

    gradients = np.array([derivatives(one.surrogate) for one in found])
    contrasts = np.array([derivatives(one.contrast) for one in found])
    assert (abs(contrasts.mean(0)) < 5.0 * contrasts.std(0) / 20.0).all()
    # Of 10 centres drawn without replacement from 50, the mean scatters by 1 - 10 / 50 less than half minus half.
    np.testing.assert_allclose(contrasts.var(0), gradients.var(0) / 0.8, rtol=0.4)
    stats = found[0].stats
    parts = 0.5 * (stats.log_det + stats.quadratic + N * np.log(2.0 * np.pi))
    assert float(found[0].value) == pytest.approx(parts, rel=1e-10)


def test_state_reset_and_reproducibility() -> None:
    x, y = airports(N)
    model = make(x, y)
    values = []
    for seed in (0, 0, 1):
        generator = torch.Generator().manual_seed(seed)
        mll = MarginalLogLikelihood(model.likelihood, model, rtgp.SGGP(centres=10), generator)
        values.append(float(mll(model(x), y).detach()))
        state = mll._objective.state_dict()
        mll.reset()
        assert mll._objective.state_dict() == {}
        mll._objective.load_state_dict(state)
        assert torch.equal(mll._objective.state_dict()["sets"], state["sets"])
    assert values[0] == values[1] != values[2]


def test_bad_input() -> None:
    x, y = airports(10)
    model = make(x, y)
    with pytest.raises(SettingError, match=r"'neighbours' parameter of SGGP must be below.*Got 10 for 10 points"):
        MarginalLogLikelihood(model.likelihood, model, rtgp.SGGP(neighbours=10))(model(x), y)
    assert torch.isfinite(MarginalLogLikelihood(model.likelihood, model, "sggp")(model(x), y))  # 15: clamped to 9
    for wrong in ({"neighbours": 0}, {"neighbours": 2.5}, {"centres": None}, {"centres": True}):
        with pytest.raises(SettingError, match=f"'{next(iter(wrong))}' parameter of SGGP must be a positive integer"):
            rtgp.SGGP(**wrong)
    twice = torch.cat([x, x])
    model = make(twice, torch.cat([y, y]))
    model.likelihood.noise_covar.register_constraint("raw_noise", rtgp_constraint())
    model.likelihood.noise = 1e-19
    with pytest.raises(NotPositiveDefiniteError, match="sets of neighbours"):
        MarginalLogLikelihood(model.likelihood, model, "sggp")(model(twice), torch.cat([y, y]))


def rtgp_constraint():
    from gpytorch.constraints import Positive

    return Positive()


def test_fit_trains_and_checkpoints_like_any_other(tmp_path) -> None:
    x, y = airports(300)
    model = make(x, y)
    result = rtgp.fit(model, model.likelihood, x, y, method=rtgp.SGGP(), steps=30, seed=0)
    assert result.optimizer == "adam"
    assert "sets of neighbours" in result.message
    assert float(result.history.rows[-1]["loss"]) < float(result.history.rows[0]["loss"])
    with pytest.raises(SettingError, match="cannot be 'average-information' with SGGP"):
        rtgp.fit(model, model.likelihood, x, y, method="sggp", optimizer="average-information")
    ends = []
    for stop in (True, False):
        model = make(x, y)
        callback = (lambda row, _: row["step"] == 7) if stop else None
        settings = {"method": rtgp.SGGP(centres=50), "steps": 12, "checkpoint": tmp_path, "checkpoint_every": 4}
        rtgp.fit(model, model.likelihood, x, y, callback=callback, **settings)
        ends.append([p.detach().clone() for p in model.parameters()])
    whole = make(x, y)
    rtgp.fit(whole, whole.likelihood, x, y, method=rtgp.SGGP(centres=50), steps=12)
    assert all(torch.equal(a, b) for a, b in zip(ends[1], whole.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
