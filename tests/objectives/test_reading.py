"""The only reader of models: whose data are taken, in which units, and what is said where they cannot be."""

from __future__ import annotations

import copy

import gpytorch
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.transforms.input import ChainedInputTransform, InputPerturbation, Warp
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from torch import Tensor

import rtgp
import zoo_models
from gp_models import Model
from rtgp._objectives import reading
from rtgp.errors import InputError, UnsupportedModelError

N = 40
X = 5.0 + 20.0 * torch.rand(N, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = 30.0 + 7.0 * torch.sin(X[:, :1] / 5.0)


UNSCALED = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")


def botorch(**settings: object) -> SingleTaskGP:
    settings = {"input_transform": Normalize(2), "outcome_transform": Standardize(1), **settings}
    return SingleTaskGP(X, Y, **settings)


def plain(likelihood: Likelihood | None = None) -> Model:
    return Model(X, Y[:, 0], GaussianLikelihood() if likelihood is None else likelihood).double()


def fit(model: gpytorch.models.GP, x: object, y: object) -> rtgp.FitResult:
    return rtgp.fit(model, model.likelihood, x, y, rtgp.Cholesky(), steps=3)


class TestDataOfAModelWithTransforms:
    def test_its_own_are_taken(self) -> None:
        model = botorch()
        fit(model, model.train_inputs[0], model.train_targets)
        assert torch.equal(model.train().train_inputs[0], X)

    def test_the_inputs_as_the_user_has_them_are_taken(self) -> None:
        model = botorch()
        fit(model, X, model.train_targets)

    def test_raw_targets_are_refused(self) -> None:
        """Taken as they are, they would replace the standardised ones."""
        model = botorch()
        before = model.train_targets.clone()
        for y in (Y, Y[:, 0], Y.float(), Y.numpy()):
            with pytest.raises(InputError, match=r"outcome transform \(Standardize\).*pass model.train_inputs"):
                fit(model, X, y)
        assert torch.equal(model.train_targets, before)

    @pytest.mark.parametrize("y", [Y, Y[:, 0]], ids=["column", "flat"])
    def test_raw_targets_are_refused_by_the_likelihood(self, y: Tensor) -> None:
        model = botorch()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")
        mll(model(X), model.train_targets)
        with pytest.raises(InputError, match=r"outcome transform \(Standardize\).*pass model.train_targets"):
            mll(model(X), y)

    def test_other_inputs_are_refused(self) -> None:
        model = botorch()
        with pytest.raises(InputError, match="Got other inputs"):
            fit(model, X + 1.0, model.train_targets)
        with pytest.raises(InputError, match="Got other targets"):
            fit(model, X[:10], model.train_targets[:10])

    @UNSCALED
    def test_targets_of_one_column_are_taken(self) -> None:
        model = botorch(outcome_transform=None)
        fit(model, X, Y)
        assert model.train_targets.shape == (N,)
        standardised = botorch()
        fit(standardised, X, standardised.train_targets[:, None])

    def test_a_second_fit_reads_the_inputs_of_before_the_transform(self) -> None:
        """In eval mode a model holds transformed inputs; taken for its data, they would be transformed twice."""
        model = botorch()
        for _ in range(2):
            fit(model, model.train_inputs[0], model.train_targets)
            assert torch.equal(model._original_train_inputs, X)
        mean = rtgp.posterior(model, model.likelihood).mean(X)
        assert float((mean - Y[:, 0]).abs().max()) < 0.1 * model.outcome_transform.stdvs.item()

    def test_a_diagnosis_after_a_fit(self) -> None:
        model = botorch()
        fit(model, X, model.train_targets)
        with torch.no_grad():
            model.likelihood.noise = 0.1
        found = rtgp.diagnose(model, draws=2)
        assert found.n == N

    def test_the_range_of_a_subset_is_that_of_all_points(self) -> None:
        model = botorch()
        own, _, x, _ = reading.on_subset(model, model.likelihood, X, model.train_targets, torch.arange(5))
        with torch.no_grad():
            found = own(x).lazy_covariance_matrix.to_dense()
            wanted = model(X).lazy_covariance_matrix.to_dense()[:5, :5]
        torch.testing.assert_close(found, wanted)

    @UNSCALED
    def test_an_input_transform_that_makes_more_points(self) -> None:
        model = botorch(input_transform=InputPerturbation(torch.tensor([[0.0, 0.1]]).double().expand(3, 2)))
        fit(model, X, model.train_targets)
        with pytest.raises(UnsupportedModelError, match="one point of each"):
            rtgp.posterior(model, model.likelihood).mean(X)


class TestDataOfOthers:
    def test_the_same_in_another_form(self) -> None:
        model = plain()
        for x, y in ((X, Y[:, 0]), (X.clone(), Y[:, 0].clone()), (X.numpy(), Y[:, 0].numpy()), (X.tolist(), Y[:, 0])):
            fit(model, x, y)

    def test_other_data_are_taken_with_a_warning(self) -> None:
        model = plain()
        with pytest.warns(FutureWarning, match=r"targets.*differ.*model.set_train_data"):
            fit(model, X, -Y[:, 0])
        assert torch.equal(model.train_targets, -Y[:, 0])

    def test_a_model_without_data_is_given_some(self) -> None:
        model = Model(X, Y[:, 0], GaussianLikelihood()).double()
        model.train_inputs = model.train_targets = None
        fit(model, X, Y[:, 0])
        assert torch.equal(model.train_targets, Y[:, 0])

    def test_several_outputs(self) -> None:
        two = SingleTaskGP(X, torch.cat([Y, -Y], 1), input_transform=Normalize(2))
        fit(two, two.train_inputs[0], two.train_targets)  # a batch of models
        with pytest.raises(InputError, match=r"the model's own training data.*batch of models.*set_train_data"):
            fit(two, X, torch.cat([Y, -Y], 1))
        with pytest.raises(UnsupportedModelError, match="several outputs"):
            fit(plain(), X, torch.cat([Y, -Y], 1))


class TestOrder:
    def test_exchanged_arguments_are_recognised(self) -> None:
        model = plain()
        with pytest.raises(UnsupportedModelError, match=r"rtgp.fit\(model, likelihood, X, y\).*exchange them"):
            rtgp.fit(model.likelihood, model, X, Y[:, 0])
        with pytest.raises(UnsupportedModelError, match=r"MarginalLogLikelihood\(likelihood, model\).*exchange them"):
            rtgp.MarginalLogLikelihood(model, model.likelihood)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedModelError, match=r"rtgp.posterior\(model, likelihood\).*exchange them"):
            rtgp.posterior(model.likelihood, model)

    def test_something_else_in_place_of_the_model(self) -> None:
        model = plain()
        with pytest.raises(UnsupportedModelError, match="Got Linear instead"):
            rtgp.fit(torch.nn.Linear(1, 1), model.likelihood, X, Y[:, 0])


NOISE = {
    "learned": GaussianLikelihood(),
    "known": FixedNoiseGaussianLikelihood(torch.linspace(0.1, 0.2, N)),
    "known and more": FixedNoiseGaussianLikelihood(torch.linspace(0.1, 0.2, N), learn_additional_noise=True),
}


@pytest.mark.parametrize("name", NOISE)
def test_the_noise_is_that_of_the_likelihood(name: str) -> None:
    likelihood = copy.deepcopy(NOISE[name]).double()
    model = plain(likelihood)
    found = reading.read_output(model, likelihood, model(X), Y[:, 0]).noise
    torch.testing.assert_close(found.detach().expand(N), reading.noise_level(likelihood).expand(N))
    assert (reading.known_noise(likelihood) is None) == (name == "learned")


def test_a_copy_shares_what_model_and_likelihood_share() -> None:
    model = plain()
    own, likelihood = reading.copied(model, model.likelihood)
    assert own.likelihood is likelihood
    assert likelihood is not model.likelihood


def test_a_model_that_has_predicted_can_be_copied() -> None:
    model = plain().eval()
    mean = model(X[:3] + 0.1).mean  # GPyTorch keeps what it has computed, with its history
    model.kept = mean * 2.0
    own, _ = reading.copied(model)
    torch.testing.assert_close(own(X[:3] + 0.1).mean, mean)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("name", ["rbf", "noise by point", "botorch, both transforms", "botorch, warped inputs"])
def test_what_is_read_is_the_covariance_of_the_model(name: str, mode: bool) -> None:
    """In training mode as in eval mode, against GPyTorch's own."""
    animal = zoo_models.build(name, 0)
    model = animal.model
    with torch.no_grad():
        wanted: Tensor = model.likelihood(model(animal.X)).covariance_matrix
    model.train(mode)
    with torch.no_grad():
        batch = reading.read(model, model.likelihood)
        everything = slice(0, batch.form.size)
        found = batch.form.block(everything, everything) + torch.diag(batch.noise.expand(batch.form.size))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)


def test_a_chain_of_transforms_predicts_as_botorch_does() -> None:
    warp = Warp(d=2, indices=[0, 1], bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    model = botorch(input_transform=ChainedInputTransform(norm=Normalize(2), warp=warp))
    fit(model, X, model.train_targets)
    new = X[:7] * 0.9 + 1.0
    found = rtgp.posterior(model, model.likelihood)
    wanted = model.posterior(new)
    scale = model.outcome_transform.stdvs.item()
    torch.testing.assert_close(found.mean(new), wanted.mean[:, 0].detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.variance(new), wanted.variance[:, 0].detach(), rtol=1e-3, atol=1e-4 * scale**2)


def test_known_noise_of_a_subset() -> None:
    likelihood = FixedNoiseGaussianLikelihood(torch.linspace(0.1, 0.2, N, dtype=torch.float64))
    model = Model(X, Y[:, 0], likelihood, ScaleKernel(RBFKernel())).double()
    index = torch.tensor([3, 9, 1])
    _, own, x, y = reading.on_subset(model, likelihood, X, Y[:, 0], index)
    assert torch.equal(reading.known_noise(own), likelihood.noise[index])
    assert torch.equal(x, X[index])
    assert torch.equal(y, Y[index, 0])
    assert likelihood.noise.shape == (N,)
