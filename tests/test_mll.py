"""The drop-in behaves as GPyTorch's own marginal log likelihood does, and its random numbers are the caller's."""

from __future__ import annotations

import copy

import gpytorch
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from gpytorch.mlls import AddedLossTerm
from gpytorch.priors import GammaPrior, LogNormalPrior

import rtgp
from gp_models import airports, estimated, exact, gradients, make

N = 70
X, Y = airports(N)
Y_SHIFTED = Y + 0.7  # so that a mean has something to do


class Penalty(AddedLossTerm):
    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def loss(self, *params: object) -> torch.Tensor:
        return -0.5 * self._module.raw_lengthscale.square().sum()


class PenalisedKernel(RBFKernel):
    """Adds a loss term in every forward pass, as inducing-point kernels do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_added_loss_term("penalty")

    def forward(self, x1, x2, diag=False, **params):
        self.update_added_loss_term("penalty", Penalty(self))
        return super().forward(x1, x2, diag=diag, **params)


def with_priors():
    kernel = ScaleKernel(
        RBFKernel(ard_num_dims=2, lengthscale_prior=LogNormalPrior(0.0, 1.0)), outputscale_prior=GammaPrior(2.0, 0.15)
    )
    return {"kernel": kernel, "likelihood": GaussianLikelihood(noise_prior=GammaPrior(1.1, 0.05))}


def fixed_noise(learn: bool):
    noise = torch.linspace(0.05, 0.5, N, dtype=torch.float64)
    return {"likelihood": FixedNoiseGaussianLikelihood(noise, learn_additional_noise=learn)}


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def two_kernels():
    return torch.nn.ModuleList([ScaleKernel(RBFKernel(ard_num_dims=2)), ScaleKernel(MaternKernel(nu=1.5))])


CASES = {
    "constant mean": lambda: {"mean": ConstantMean()},
    "linear mean": lambda: {"mean": LinearMean(2)},
    "zero mean": lambda: {"mean": ZeroMean()},
    "priors": with_priors,
    "constant mean with a prior": lambda: {"mean": ConstantMean(gpytorch.priors.NormalPrior(0.0, 1.0))},
    "fixed noise": lambda: fixed_noise(False),
    "fixed and learned noise": lambda: fixed_noise(True),
    "noise with a bound": lambda: {"likelihood": GaussianLikelihood(noise_constraint=GreaterThan(0.05))},
    "deep kernel": lambda: {"features": network()},
    "deep kernel, any kernel": lambda: {"features": network(), "kernel": ScaleKernel(PeriodicKernel())},
    "sum of kernels": lambda: {"kernel": ScaleKernel(RBFKernel()) + ScaleKernel(LinearKernel())},
    "product of kernels": lambda: {"kernel": ScaleKernel(RBFKernel() * MaternKernel(nu=0.5))},
    "sum in forward": lambda: {"kernel": two_kernels(), "covariance": lambda m, z: m.kernel[0](z) + m.kernel[1](z)},
    "product in forward": lambda: {
        "kernel": two_kernels(),
        "covariance": lambda m, z: (m.kernel[0] * m.kernel[1])(z),
    },
    "multiple in forward": lambda: {"covariance": lambda m, z: m.kernel(z) * 2.5},
    "added loss term": lambda: {"kernel": PenalisedKernel()},
}


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], rtol: float = 1e-8) -> None:
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=rtol, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}"
        )


class TestFollowsGPyTorch:
    @pytest.mark.parametrize("case", CASES)
    def test_value_and_every_gradient(self, case):
        model = make(X, Y_SHIFTED, **CASES[case]())
        wanted_value, wanted = exact(model, Y_SHIFTED)
        value, found = estimated(rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky"), Y_SHIFTED)
        torch.testing.assert_close(value, wanted_value, rtol=1e-10, atol=0.0)
        assert value.dtype == wanted_value.dtype
        assert value.shape == wanted_value.shape
        assert wanted
        assert_same(found, wanted)

    def test_gradient_reaches_the_network_of_a_deep_kernel(self):
        model = make(X, Y, features=network())
        _, found = estimated(rtgp.MarginalLogLikelihood(model.likelihood, model, generator=seeded(0)), Y)
        assert all(float(found[f"features.{i}.{kind}"].abs().max()) > 0 for i in (0, 2) for kind in ("weight",))

    def test_divides_by_the_number_of_points(self):
        model = make(X, Y)
        value, _ = estimated(rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky"), Y)
        with gpytorch.settings.fast_computations(False, False, False):
            whole = model.likelihood(model(X)).log_prob(Y)
        assert float(value) == pytest.approx(float(whole.detach()) / N, rel=1e-10)

    @pytest.mark.parametrize("method", ["cholesky", "cg", "rr-cg"])
    def test_passes_inputs_on_to_the_likelihood(self, method):
        """BoTorch calls mll(output, y, X)."""
        model = make(X, Y, **fixed_noise(True))
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=seeded(0))
        with_inputs = mll(model(X), Y, X)
        mll.reset()
        mll._generator.manual_seed(0)
        torch.testing.assert_close(with_inputs, mll(model(X), Y), rtol=0, atol=0)

    def test_noise_given_at_the_call(self):
        model = make(X, Y, **fixed_noise(False))
        noise = torch.full((N,), 0.3, dtype=torch.float64)
        with gpytorch.settings.fast_computations(False, False, False):
            wanted = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(X), Y, noise=noise)
        found = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")(model(X), Y, noise=noise)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=0)

    def test_is_one_of_gpytorchs_own(self):
        """Code that asks for an exact marginal likelihood, such as BoTorch's, must take it."""
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model)
        assert isinstance(mll, gpytorch.mlls.ExactMarginalLogLikelihood)
        reference = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        assert mll.state_dict().keys() == reference.state_dict().keys()

    def test_float32_stays_float32(self):
        model = make(X.float(), Y.float())
        value, found = estimated(rtgp.MarginalLogLikelihood(model.likelihood, model, generator=seeded(0)), Y.float())
        assert value.dtype == torch.float32
        assert {g.dtype for g in found.values()} == {torch.float32}

    def test_works_without_gradients(self):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, draws="frozen", generator=seeded(0))
        with torch.no_grad():
            alone = mll(model(X), Y)
        assert not alone.requires_grad
        torch.testing.assert_close(mll(model(X), Y).detach(), alone, rtol=0, atol=0)

    def test_fixed_parameters_get_no_gradient(self):
        model = make(X, Y)
        model.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
        _, found = estimated(rtgp.MarginalLogLikelihood(model.likelihood, model, generator=seeded(0)), Y)
        assert "kernel.base_kernel.raw_lengthscale" not in found
        assert "kernel.raw_outputscale" in found


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def central_differences(mll: rtgp.MarginalLogLikelihood, step: float = 1e-4) -> dict[str, torch.Tensor]:
    """Of the value, in every parameter (fourth order)."""
    found = {}
    for name, parameter in mll.model.named_parameters():
        slope = torch.zeros_like(parameter)
        for k in range(parameter.numel()):
            values = {}
            for shift in (-2, -1, 1, 2):
                with torch.no_grad():
                    parameter.view(-1)[k] += shift * step
                    values[shift] = float(mll(mll.model(X), Y_SHIFTED))
                    parameter.view(-1)[k] -= shift * step
            slope.view(-1)[k] = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)
        found[name] = slope
    return found


FROZEN = {
    "automatic": rtgp.RRCG(),
    "no preconditioner": rtgp.RRCG(preconditioner=None),
    "the paper's": rtgp.RRCG.paper(),
    "gaussian probes": rtgp.RRCG(probe_kind="gaussian", probes=4),
    "tiled": rtgp.RRCG(operator="tiled", preconditioner=rtgp.PivotedCholesky(3, "greedy")),
    "plain CG to the end": rtgp.CG(iterations=500, preconditioner=None),
}


class TestFrozenDraws:
    @pytest.mark.parametrize("setting", FROZEN)
    def test_gradient_is_the_derivative_of_the_value(self, setting):
        model = make(X, Y_SHIFTED, **with_priors())
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, FROZEN[setting], seeded(3), draws="frozen")
        _, found = estimated(mll, Y_SHIFTED)
        for name, slope in central_differences(mll).items():
            torch.testing.assert_close(found[name], slope, rtol=1e-5, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")

    def test_repeated_calls_are_bitwise_equal(self):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, draws="frozen")
        first, second = estimated(mll, Y), estimated(mll, Y)
        assert torch.equal(first[0], second[0])
        assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])

    def test_the_surface_does_not_depend_on_the_way_travelled(self):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, draws="frozen", generator=seeded(1))
        before, _ = estimated(mll, Y)
        here = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.5
        estimated(mll, Y)
        model.load_state_dict(here)
        assert torch.equal(estimated(mll, Y)[0], before)

    def test_is_close_to_the_exact_value(self):
        model = make(X, Y)
        value, _ = estimated(
            rtgp.MarginalLogLikelihood(model.likelihood, model, draws="frozen", generator=seeded(2)), Y
        )
        assert abs(float(value - exact(model, Y)[0])) < 0.05

    def test_reset_draws_a_new_surface(self):
        model = make(X, Y)
        method = rtgp.RRCG(preconditioner=None, probes=2)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, draws="frozen", generator=seeded(1))
        before, _ = estimated(mll, Y)
        mll.reset()
        after, _ = estimated(mll, Y)
        assert float(after) != float(before)


METHODS = {"cg": rtgp.CG(), "rr-cg": rtgp.RRCG(), "paper": rtgp.RRCG.paper(), "white": rtgp.RRCG(preconditioner=None)}


class TestRandomNumbers:
    @pytest.mark.parametrize("method", METHODS)
    def test_a_generator_makes_a_run_repeatable(self, method):
        model = make(X, Y)

        def run(seed):
            mll = rtgp.MarginalLogLikelihood(model.likelihood, model, METHODS[method], seeded(seed))
            return [estimated(mll, Y) for _ in range(3)]

        for first, second in zip(run(0), run(0), strict=True):
            assert torch.equal(first[0], second[0])
            assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])
        assert float(run(0)[0][0]) != float(run(1)[0][0])

    @pytest.mark.parametrize("method", METHODS)
    def test_successive_calls_draw_anew(self, method):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, METHODS[method], seeded(0))
        assert len({float(estimated(mll, Y)[0]) for _ in range(4)}) == 4

    @pytest.mark.parametrize("draws", ["fresh", "frozen"])
    def test_without_a_generator_torchs_own_is_used(self, draws):
        model = make(X, Y)

        def run(seed):
            torch.manual_seed(seed)
            return float(estimated(rtgp.MarginalLogLikelihood(model.likelihood, model, draws=draws), Y)[0])

        assert run(0) == run(0)
        assert run(0) != run(1)

    @pytest.mark.parametrize("draws", ["fresh", "frozen"])
    @pytest.mark.parametrize("method", ["cholesky", "cg", "rr-cg"])
    def test_given_a_generator_torchs_own_is_left_alone(self, method, draws):
        model = make(X, Y)
        before = torch.get_rng_state()
        estimated(rtgp.MarginalLogLikelihood(model.likelihood, model, method, seeded(0), draws), Y)
        assert torch.equal(torch.get_rng_state(), before)

    def test_no_gpytorch_setting_is_changed(self):
        def settings():
            flags = {}
            for module in (gpytorch.settings,):
                for name in dir(module):
                    flag = getattr(module, name)
                    for attribute in ("_state", "_global_value", "_global_float_value", "_global_double_value"):
                        if isinstance(flag, type) and hasattr(flag, attribute):
                            flags[name, attribute] = getattr(flag, attribute)
            return flags

        before, dtype = settings(), torch.get_default_dtype()
        assert len(before) > 20
        for method in ("cholesky", "cg", "rr-cg"):
            model = make(X, Y, kernel=ScaleKernel(PeriodicKernel()))
            estimated(rtgp.MarginalLogLikelihood(model.likelihood, model, method, seeded(0)), Y)
        assert settings() == before
        assert torch.get_default_dtype() == dtype


class TestStateBetweenCalls:
    def test_statistics_of_the_last_estimate(self):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, generator=seeded(0))
        assert mll.last is None
        value, _ = estimated(mll, Y)
        last = mll.last
        assert last.method == "rr-cg"
        assert last.dtype == torch.float64
        assert 1 <= last.iterations == max(last.truncations) <= N
        assert last.truncations[2] == max(last.truncations[:2])
        assert last.columns == 11
        assert last.rank > 0
        assert 0 <= last.residual < 1
        assert last.condition > 1
        parts = -0.5 * (last.log_det + last.quadratic + N * torch.log(torch.tensor(2 * torch.pi)).double()) / N
        assert float(value) == pytest.approx(float(parts), rel=1e-6)

    def test_exact_statistics(self):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")
        estimated(mll, Y)
        covariance = model.likelihood(model(X)).covariance_matrix.detach()
        residual = Y - model(X).mean.detach()
        assert mll.last.log_det == pytest.approx(float(torch.logdet(covariance)), rel=1e-8)
        assert mll.last.quadratic == pytest.approx(float(residual @ torch.linalg.solve(covariance, residual)), rel=1e-8)

    def test_preconditioner_is_reused_and_rebuilt(self):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.RRCG(refresh=3), seeded(0))
        rebuilt = []
        for _ in range(7):
            estimated(mll, Y)
            rebuilt.append(mll.last.rebuilt)
        assert rebuilt == [True, False, False, True, False, False, True]

    def test_reset_forgets_preconditioner_and_warm_start(self):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, generator=seeded(0))
        first, _ = estimated(mll, Y)
        estimated(mll, Y)
        assert not mll.last.rebuilt
        mll.reset()
        mll._generator.manual_seed(0)
        again, _ = estimated(mll, Y)
        assert mll.last.rebuilt
        assert torch.equal(first, again)  # as if it had never been called

    def test_warm_start_saves_iterations_at_a_standstill(self):
        model = make(X, Y)
        counts = {}
        for warm in (False, True):
            method = rtgp.RRCG(preconditioner=None, warm_start=warm, truncation=rtgp.truncation.ResidualDriven(1e-3))
            mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, seeded(0))
            for _ in range(3):
                estimated(mll, Y)
            counts[warm] = mll.last.quadratic
        wanted = float(exact_quadratic(model))
        assert abs(counts[True] - wanted) <= abs(counts[False] - wanted) + 1e-6 * wanted

    @pytest.mark.parametrize("draws", ["fresh", "frozen"])
    @pytest.mark.parametrize("method", METHODS)
    def test_the_number_of_points_may_change(self, method, draws):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, METHODS[method], seeded(0), draws)
        estimated(mll, Y)
        for n in (50, 70):
            model.set_train_data(X[:n], Y[:n], strict=False)
            value, found = estimated(mll, Y[:n])
            assert abs(float(value - exact(model, Y[:n])[0])) < 0.3
            assert all(bool(torch.isfinite(g).all()) for g in found.values())

    @pytest.mark.parametrize("draws", ["fresh", "frozen"])
    def test_the_precision_may_change(self, draws):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "rr-cg", seeded(0), draws)
        estimated(mll, Y)
        model.float().set_train_data(X.float(), Y.float(), strict=False)
        value, _ = estimated(mll, Y.float())
        assert value.dtype == torch.float32

    def test_other_data_of_the_same_size(self):
        """A stale preconditioner and warm start are still those of a positive definite P and of any start."""
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.RRCG(probes=200, refresh=10), seeded(0))
        estimated(mll, Y)
        other = Y.flip(0)
        model.set_train_data(X.roll(5, 0), other, strict=False)
        value, _ = estimated(mll, other)
        assert not mll.last.rebuilt
        assert abs(float(value - exact(model, other)[0])) < 0.2

    def test_can_be_copied(self):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, draws="frozen", generator=seeded(0))
        value, _ = estimated(mll, Y)
        twin = copy.deepcopy(mll)
        assert torch.equal(estimated(twin, Y)[0], value)

    def test_the_graph_of_one_call_does_not_leak_into_the_next(self):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, generator=seeded(0))
        for _ in range(3):
            mll(model(X), Y).backward()
        assert gradients(model)


def exact_quadratic(model) -> torch.Tensor:
    covariance = model.likelihood(model(X)).covariance_matrix.detach()
    residual = Y - model(X).mean.detach()
    return residual @ torch.linalg.solve(covariance, residual)
