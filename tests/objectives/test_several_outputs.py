"""Several outputs that share one kernel and noise: one K and more columns.

Each objective is held against the sum over the outputs of what it says of each alone; RR-CG's expectation against
Cholesky's by enumerating all truncations, as in `test_enumeration.py`.
"""

from __future__ import annotations

import math

import gpytorch
import pytest
import torch

import rtgp
import rtgp._objectives.krylov as krylov
from objectives.test_enumeration import all_directions, exact, mean_over_pairs, primed
from rtgp._kernels import read_kernel
from rtgp._objectives import Batch, CholeskyObjective, EstimateRequest
from rtgp._objectives.information import combined
from rtgp._objectives.vecchia import VecchiaObjective, VecchiaSettings
from rtgp._preconditioners import Neighbours, PivotedCholesky
from rtgp.errors import InputError, UnsupportedModelError
from rtgp.truncation import ExponentialDecay, ResidualDriven

OUTPUTS = 3


def make_batch(n=12, outputs=OUTPUTS, shift=0.0, per_point=False):
    """A model with a mean of its own for each output. shift: of its hyperparameters."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    y = torch.stack([torch.sin((1 + k) * x[:, k % 2]) for k in range(outputs)], dim=1)
    y += 0.3 * torch.randn(y.shape, dtype=torch.float64, generator=generator)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2)).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.7 + shift, 1.1 - shift]])
    kernel.outputscale = 1.3 + shift
    noise = torch.tensor(0.3 - shift / 2, dtype=torch.float64)
    if per_point:
        noise = noise * (0.3 + torch.rand(n, dtype=torch.float64, generator=generator))
    noise.requires_grad_()
    means = torch.linspace(0.1, 0.3, outputs, dtype=torch.float64).requires_grad_()
    return Batch(read_kernel(kernel, x), noise, y - means), [*kernel.parameters(), noise, means]


def each_alone(batch):
    return [Batch(batch.form, batch.noise, batch.residual[:, k]) for k in range(batch.outputs)]


def gradient(scalar, parameters):
    found = torch.autograd.grad(scalar, parameters, retain_graph=True, allow_unused=True)
    return torch.cat(
        [torch.zeros(p.numel()) if g is None else g.reshape(-1) for p, g in zip(parameters, found, strict=True)]
    )


def request(parameters):
    return EstimateRequest(information=1e-12, parameters=parameters, iterations=None, once=True)


OBJECTIVES = {
    "cholesky": CholeskyObjective,
    "vecchia": lambda: VecchiaObjective(VecchiaSettings(5)),
    # A preconditioner that is chosen would follow the number of columns, and the value by probes with it.
    "rr-cg to the end": lambda: rtgp.RRCG(
        tolerance=1e-13, operator="dense", preconditioner=PivotedCholesky(8)
    ).make_objective(frozen=True),
}


class TestTheSumOverOutputs:
    @pytest.mark.parametrize("per_point", [False, True], ids=["one noise", "noise of each point"])
    @pytest.mark.parametrize("make", OBJECTIVES.values(), ids=OBJECTIVES)
    def test_value_and_gradient(self, make, per_point):
        """With the same draws, and every series to its end."""
        batch, parameters = make_batch(40, per_point=per_point)
        together = make()(batch, torch.Generator().manual_seed(1))
        alone = [make()(one, torch.Generator().manual_seed(1)) for one in each_alone(batch)]
        torch.testing.assert_close(together.value, sum(one.value for one in alone), rtol=1e-10, atol=1e-10)
        wanted = sum(gradient(one.surrogate, parameters) for one in alone)
        torch.testing.assert_close(gradient(together.surrogate, parameters), wanted, rtol=1e-8, atol=1e-8)
        assert together.stats.outputs == OUTPUTS
        assert together.stats.log_det == pytest.approx(alone[0].stats.log_det, rel=1e-10)
        assert together.stats.quadratic == pytest.approx(sum(one.stats.quadratic for one in alone), rel=1e-10)

    def test_a_single_column_is_one_output(self):
        batch, parameters = make_batch(30, outputs=1)
        other = Batch(batch.form, batch.noise, batch.residual[:, 0])
        for make in OBJECTIVES.values():
            first, second = (make()(b, torch.Generator().manual_seed(1)) for b in (batch, other))
            assert float(first.value) == float(second.value)
            assert torch.equal(gradient(first.surrogate, parameters), gradient(second.surrogate, parameters))

    @pytest.mark.parametrize("make", [CholeskyObjective, OBJECTIVES["rr-cg to the end"]], ids=["cholesky", "rr-cg"])
    def test_information(self, make):
        batch, parameters = make_batch(40, per_point=True)
        found = make()(batch, torch.Generator().manual_seed(1), request(parameters)).information
        wanted = sum(CholeskyObjective()(one, None, request(parameters)).information for one in each_alone(batch))
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-7)

    def test_gpytorch_agrees(self):
        """Value and gradient of a GPyTorch model of shape (t, n), by its own likelihood and by this one."""
        x = torch.rand(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        y = torch.stack([torch.sin(6 * x[:, 0]), x[:, 1] ** 2, x.sum(1)])
        model = shared_model(x, y)
        theirs = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        with gpytorch.settings.fast_computations(False, False, False):
            wanted = theirs(model(x), y).mean()
            slope = gradient(wanted, list(model.parameters()))
        ours = rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.Cholesky())
        found = ours(model(x), y)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(gradient(found, list(model.parameters())), slope, rtol=1e-8, atol=1e-8)


class SharedModel(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=y.shape[:1])
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5))

    def forward(self, x):
        return rtgp.SharedOutputs(self.mean_module(x), self.covar_module(x))


def shared_model(x, y):
    model = SharedModel(x, y, gpytorch.likelihoods.GaussianLikelihood()).double()
    with torch.no_grad():
        model.mean_module.constant.copy_(torch.linspace(0.1, 0.4, len(y)))
    return model


class TestEnumeration:
    """The expectation over all pairs of truncations is Cholesky's value and gradient, with every shape of P."""

    n = 12

    @pytest.fixture(autouse=True)
    def exact_probes(self, monkeypatch):
        monkeypatch.setattr(krylov, "draw_probes", all_directions)

    def objective(self, kind, stale, control, per_point):
        objective = primed(kind, stale, False, control is not None, self.n, per_point, control)
        if stale:  # another state than that of one output: the start and the coefficients of several
            objective(make_batch(self.n, shift=0.1, per_point=per_point)[0], torch.Generator().manual_seed(1))
        return objective

    @pytest.mark.parametrize("per_point", [False, True], ids=["one noise", "noise of each point"])
    @pytest.mark.parametrize("control", [None, (0.3, 0.8)], ids=["no control variate", "control variate"])
    @pytest.mark.parametrize("stale", [False, True], ids=["fresh", "stale"])
    @pytest.mark.parametrize("kind", [None, PivotedCholesky(6), Neighbours(3)], ids=["none", "rank 6", "neighbours"])
    def test_the_coupled_pair_has_the_exact_expectation(self, kind, stale, control, per_point):
        batch, parameters = make_batch(self.n, per_point=per_point)
        rule = ResidualDriven(tau=0.3)
        mean, truncations = mean_over_pairs(self.objective(kind, stale, control, per_point), rule, batch, parameters)
        assert truncations > 1
        wanted = exact(batch, parameters)
        assert float(((mean - wanted) / wanted.abs().clamp_min(1.0)).abs().max()) < 1e-10

    def test_another_rule(self):
        batch, parameters = make_batch(self.n)
        rule = ExponentialDecay(rate=0.4, minimum=3)
        mean, _ = mean_over_pairs(self.objective(PivotedCholesky(4), True, None, False), rule, batch, parameters)
        wanted = exact(batch, parameters)
        assert float(((mean - wanted) / wanted.abs().clamp_min(1.0)).abs().max()) < 1e-10

    def test_one_log_determinant_too_few_is_found(self):
        """The test has power: the loss with the log-determinant counted once is far off."""
        batch, _ = make_batch(self.n)
        found = CholeskyObjective()(batch)
        assert abs((OUTPUTS - 1) * found.stats.log_det) > 1.0


def test_the_contrast_has_the_scatter_of_the_gradient():
    """Over 200 seeds, in every parameter of the covariance: the variance of the gradient and the mean square of the
    contrast agree within a factor of 1.8. Their ratio scatters by some 14%; a false alarm is below 1e-3."""
    batch, parameters = make_batch(40)
    method = rtgp.RRCG(operator="dense", probes=6, preconditioner=PivotedCholesky(4), control_variate=False)
    objective = method.make_objective()
    slopes, contrasts = [], []
    for seed in range(200):
        found = objective(batch, torch.Generator().manual_seed(seed), EstimateRequest(contrast=True))
        slopes.append(gradient(found.surrogate, parameters))
        contrasts.append(gradient(found.contrast, parameters))
    scatter, predicted = torch.stack(slopes).var(0), torch.stack(contrasts).square().mean(0)
    kernel = slice(0, len(scatter) - OUTPUTS)  # the means have no trace term
    ratio = (predicted / scatter)[kernel]
    assert float(ratio.log().abs().max()) < math.log(1.8)


class TestCost:
    """Four outputs take the products of one, with three more columns in each."""

    def test_of_conjugate_gradients(self):
        counted = {}
        for outputs in (1, 4):
            batch, parameters = make_batch(60, outputs=outputs)
            objective = rtgp.RRCG(operator="dense", preconditioner=PivotedCholesky(8)).make_objective()
            asked = EstimateRequest(contrast=True, information=0.1, parameters=parameters)
            found = objective(batch, torch.Generator().manual_seed(0), asked)
            counted[outputs] = found.stats
        assert counted[4].columns == counted[1].columns + 3
        assert counted[4].iterations <= counted[1].iterations + 2

    def test_of_the_information_matrix(self):
        """In a training it takes one solve for each parameter, not t, and one for all means, which are constants."""
        columns = {}
        for once in (False, True):
            batch, parameters = make_batch(40, outputs=4)
            objective = rtgp.RRCG(operator="dense").make_objective()
            widths = []

            def recorded(product, rhs, *args, widths=widths, **kwargs):
                widths.append(rhs.shape[1])
                return conjugate_gradients(product, rhs, *args, **kwargs)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(krylov, "conjugate_gradients", recorded)
                asked = EstimateRequest(information=0.1, parameters=parameters, once=once)
                objective(batch, torch.Generator().manual_seed(0), asked)
            columns[once] = widths
        kernel_and_noise = 4
        assert sorted(columns[False][1:]) == [1, 4, kernel_and_noise]  # means, targets, the others
        assert sorted(columns[True][1:]) == [1, 4, 4 * kernel_and_noise]

    def test_the_combination_is_exact_for_copies_of_one_output(self):
        batch, parameters = make_batch(40, outputs=1)
        copies = Batch(batch.form, batch.noise, batch.residual.expand(-1, 4))
        asked = EstimateRequest(information=1e-12, parameters=parameters, iterations=None)
        objective = OBJECTIVES["rr-cg to the end"]
        one, four = (objective()(b, torch.Generator().manual_seed(1), asked).information for b in (batch, copies))
        torch.testing.assert_close(four, 4.0 * one, rtol=1e-6, atol=1e-6)

    def test_the_combination_is_near_for_outputs_of_the_model(self):
        """Draws of the prior: the matrix of the combination has the sum's diagonal, within a factor of 1.5."""
        batch, parameters = make_batch(300, outputs=4)
        with torch.no_grad():
            everything = slice(0, 300)
            matrix = batch.form.block(everything, everything).double() + 0.3 * torch.eye(300)
            drawn = torch.linalg.cholesky(matrix) @ torch.randn(
                300, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
            )
        batch = Batch(batch.form, batch.noise, drawn - parameters[-1])
        objective = OBJECTIVES["rr-cg to the end"]
        found = {}
        for once in (False, True):
            asked = EstimateRequest(information=1e-8, parameters=parameters, iterations=None, once=once)
            found[once] = objective()(batch, torch.Generator().manual_seed(1), asked).information.diagonal()
        ratio = found[False] / found[True]
        assert float(ratio.log().abs().max()) < math.log(1.5)

    def test_the_combination_of_one_is_itself(self):
        alpha = torch.randn(7, 1)
        assert combined(alpha, alpha) is alpha


conjugate_gradients = krylov.conjugate_gradients


class TestState:
    def test_goes_on_bit_for_bit(self):
        batch, parameters = make_batch(40)
        first, second = (rtgp.RRCG(operator="dense").make_objective() for _ in range(2))
        first(batch, torch.Generator().manual_seed(0))
        second.load_state_dict(first.state_dict())
        a, b = (one(batch, torch.Generator().manual_seed(1)) for one in (first, second))
        assert float(a.value) == float(b.value)
        assert torch.equal(gradient(a.surrogate, parameters), gradient(b.surrogate, parameters))

    def test_another_number_of_outputs_begins_anew(self):
        objective = rtgp.RRCG(operator="dense").make_objective()
        for outputs in (3, 1, 4):
            batch, _ = make_batch(40, outputs=outputs)
            assert objective(batch, torch.Generator().manual_seed(0)).stats.outputs == outputs


class TestRefused:
    def test_methods_of_one_output(self):
        x = torch.rand(30, 2, dtype=torch.float64)
        model = shared_model(x, torch.rand(3, 30, dtype=torch.float64))
        for method in (rtgp.RFF(features=20), rtgp.SSRFF(), rtgp.SGGP()):
            mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
            with pytest.raises(UnsupportedModelError, match=r"one output at a time\. Got 3 that share one kernel"):
                mll(model(x), model.train_targets)

    def test_a_diagnosis(self):
        x = torch.rand(30, 2, dtype=torch.float64)
        model = shared_model(x, torch.rand(3, 30, dtype=torch.float64))
        with pytest.raises(UnsupportedModelError, match="one output for a diagnosis"):
            rtgp.diagnose(model)

    def test_nan(self):
        x, y = torch.rand(30, 2, dtype=torch.float64), torch.rand(3, 30, dtype=torch.float64)
        y[1, 4] = torch.nan
        model = shared_model(x, y)
        with pytest.raises(InputError, match="row 4"):
            rtgp.MarginalLogLikelihood(model.likelihood, model)(model(x), y)
