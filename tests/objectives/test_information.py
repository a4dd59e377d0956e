"""The average-information matrix against dense algebra, with derivatives of K by finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean, ZeroMean

import reference
import rtgp
from gp_models import Model, make

N = 40
STEP = 1e-5  # of the finite differences: an error of about 1e-10
TIGHT = rtgp.RRCG(tolerance=1e-10)


def data(n: int = N):
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    y = torch.sin(5 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(n, dtype=torch.float64, generator=generator)
    return x, y


def known_noise() -> torch.Tensor:
    return torch.linspace(0.02, 0.3, N, dtype=torch.float64)


def ard(kind=RBFKernel, **settings):
    return ScaleKernel(kind(ard_num_dims=2, **settings))


CASES = {
    "ard, outputscale, noise, constant mean": dict,
    "one lengthscale": lambda: {"kernel": RBFKernel()},
    "matern 1/2": lambda: {"kernel": ard(MaternKernel, nu=0.5)},
    "matern 3/2": lambda: {"kernel": ard(MaternKernel, nu=1.5)},
    "matern 5/2": lambda: {"kernel": ard(MaternKernel, nu=2.5)},
    "linear mean": lambda: {"mean": LinearMean(2)},
    "zero mean": lambda: {"mean": ZeroMean()},
    "known noise": lambda: {"likelihood": FixedNoiseGaussianLikelihood(known_noise())},
    "known noise and more": lambda: {
        "likelihood": FixedNoiseGaussianLikelihood(known_noise(), learn_additional_noise=True)
    },
    "sum": lambda: {"kernel": ard() + ScaleKernel(MaternKernel(nu=1.5, active_dims=(1,)))},
    "product": lambda: {"kernel": ScaleKernel(RBFKernel(active_dims=(0,)) * MaternKernel(nu=2.5, active_dims=(1,)))},
    "without a formula": lambda: {"kernel": ScaleKernel(PeriodicKernel()) + LinearKernel()},
}


def shared_kernel():
    """One kernel twice: its parameters act through both places."""
    kernel = RBFKernel(ard_num_dims=2)
    return {"kernel": ScaleKernel(kernel) + ScaleKernel(kernel * MaternKernel(nu=1.5))}


CASES["one kernel in two places"] = shared_kernel


def trained(mll: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in mll.parameters() if parameter.requires_grad]


def information(model: Model, method, tolerance: float = 1e-10, seed: int = 0) -> np.ndarray:
    """Of the whole likelihood, not divided by n."""
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, torch.Generator().manual_seed(seed))
    found = mll.evaluate(model(*model.train_inputs), model.train_targets, information=tolerance).information
    return len(model.train_targets) * found.numpy()


def brute_force(model: Model) -> np.ndarray:
    """From GPyTorch's own dense matrices, moved by a small step in every trainable number."""
    x, y = model.train_inputs[0], model.train_targets
    entries = [(p, i) for p in trained(model) for i in range(p.numel())]

    def dense() -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            marginal = model.likelihood(model(x), x)
            return marginal.covariance_matrix.numpy().copy(), marginal.mean.numpy().copy()

    def derivative(parameter: torch.Tensor, i: int) -> list[np.ndarray]:
        ends = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                parameter.view(-1)[i] += sign * STEP
            ends.append(dense())
            with torch.no_grad():
                parameter.view(-1)[i] -= sign * STEP
        return [(up - down) / (2 * STEP) for up, down in zip(*ends, strict=True)]

    K_hat, mean = dense()
    covariances, means = zip(*(derivative(*entry) for entry in entries), strict=True)
    return reference.average_information(K_hat, y.numpy() - mean, np.array(covariances), np.array(means))


class TestAgainstDenseAlgebra:
    @pytest.mark.parametrize("method", [rtgp.Cholesky(), TIGHT], ids=["cholesky", "rr-cg"])
    @pytest.mark.parametrize("case", CASES)
    def test_every_model(self, case, method):
        model = make(*data(), **CASES[case]())
        wanted = brute_force(model)
        np.testing.assert_allclose(information(model, method), wanted, rtol=1e-6, atol=1e-7 * np.abs(wanted).max())

    @pytest.mark.parametrize("method", [rtgp.Cholesky(), TIGHT], ids=["cholesky", "rr-cg"])
    def test_fixed_parameters_have_no_rows(self, method):
        model = make(*data())
        whole = information(model, method)
        names = [name for name, _ in model.named_parameters()]
        model.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
        kept = [k for k, name in enumerate([*names[:-1], names[-1], names[-1]]) if "lengthscale" not in name]
        np.testing.assert_allclose(information(model, method), whole[np.ix_(kept, kept)], rtol=1e-8)

    @pytest.mark.parametrize("method", [rtgp.Cholesky(), TIGHT], ids=["cholesky", "rr-cg"])
    def test_none_without_gradients(self, method):
        """Mean and noise are differentiated by autograd: without it the matrix would be a part of itself."""
        model = make(*data())
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, torch.Generator().manual_seed(0))
        with torch.no_grad():
            found = mll.evaluate(model(*model.train_inputs), model.train_targets, information=1e-3)
        assert found.information is None

    def test_float32_is_near(self):
        model = make(*data())
        wanted = information(model, rtgp.Cholesky())
        narrow = make(*(t.float() for t in data()))
        narrow.load_state_dict(model.state_dict())
        found = information(narrow, rtgp.RRCG(), tolerance=1e-4)
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-3 * np.abs(wanted).max())

    def test_never_negative_at_a_coarse_tolerance(self):
        for seed in range(5):
            found = information(make(*data()), rtgp.RRCG(), tolerance=0.3, seed=seed)
            assert np.array_equal(found, found.T)
            assert np.linalg.eigvalsh(found)[0] > -1e-3 * np.abs(found).max()


class TestGenerator:
    """The metric of a step must not know the probes: else the mean of a step is not that of the gradient."""

    @pytest.mark.parametrize("tolerance", [1e-2, 1e-6])
    def test_decides_no_more_than_the_tolerance(self, tolerance):
        model = make(*data())
        wanted = information(model, rtgp.Cholesky())
        scale = np.sqrt(np.outer(wanted.diagonal(), wanted.diagonal()))
        for seed in range(8):
            found = information(model, rtgp.RRCG(), tolerance, seed)
            assert np.abs((found - wanted) / scale).max() < 3 * tolerance

    def test_roulette_and_probes_are_not_in_it(self):
        """With one preconditioner the matrix is the same to rounding, however the probes of the call come out."""
        model = make(*data())
        generator = torch.Generator().manual_seed(0)
        method = rtgp.RRCG(refresh=1000, warm_start=False)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator)
        mll(model(*model.train_inputs), model.train_targets)
        state = mll._objective.state_dict()
        found = []
        for seed in range(4):
            mll._objective.load_state_dict(state)
            generator.manual_seed(seed)
            found.append(
                mll.evaluate(model(*model.train_inputs), model.train_targets, information=1e-2).information.numpy()
            )
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])

    def test_asking_for_it_leaves_the_estimate_alone(self):
        model = make(*data())
        found = []
        for wanted in (None, 1e-3):
            mll = rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.RRCG(), torch.Generator().manual_seed(4))
            for _ in range(3):
                model.zero_grad()
                value = mll.evaluate(model(*model.train_inputs), model.train_targets, information=wanted).objective
                value.backward()
                found.append([float(value.detach()), *(p.grad.clone() for p in model.parameters())])
        for one, two in zip(found[:3], found[3:], strict=True):
            assert one[0] == two[0]
            assert all(torch.equal(a, b) for a, b in zip(one[1:], two[1:], strict=True))


class Network(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


class TestCovers:
    def covered(self, **parts) -> bool:
        model = make(*data(), **parts)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")
        return mll.knows_information(model(*model.train_inputs), model.train_targets)

    @pytest.mark.parametrize("case", CASES)
    def test_all_of_a_plain_model(self, case):
        assert self.covered(**CASES[case]())

    def test_not_the_network_of_a_deep_kernel(self):
        assert not self.covered(features=Network())
        assert not self.covered(features=Network(), kernel=ScaleKernel(PeriodicKernel()) + LinearKernel())

    def test_a_network_that_is_fixed(self):
        network = Network().requires_grad_(False)
        assert self.covered(features=network)

    def test_not_a_factor_from_outside_the_kernel(self):
        """Such a parameter is in no kernel, and acts on K all the same."""

        class Weighted(ConstantMean):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.tensor(0.3))

        def scaled(model, z):
            return model.kernel(z) * model.mean_module.weight.exp()

        assert not self.covered(mean=Weighted(), covariance=scaled)

    def test_nothing_to_train_in_the_kernel(self):
        model = make(*data())
        model.kernel.requires_grad_(False)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")
        assert mll.knows_information(model(*model.train_inputs), model.train_targets)

    def test_a_likelihood_of_the_noise_alone(self):
        model = make(*data(), likelihood=GaussianLikelihood())
        model.requires_grad_(False)
        model.likelihood.noise_covar.raw_noise.requires_grad_(True)
        assert information(model, rtgp.Cholesky()).shape == (1, 1)
        np.testing.assert_allclose(information(model, TIGHT), information(model, rtgp.Cholesky()), rtol=1e-6)
