"""A batch of models has an objective for each, and what they hold is kept apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rtgp
import zoo_second
from rtgp._objectives.several import separate_states
from zoo_second import Animal

RANDOM = rtgp.RRCG(probes=4, preconditioner=rtgp.PivotedCholesky(2))


def made(name: str, seed: int = 0, method: object = RANDOM) -> tuple[Animal, rtgp.MarginalLogLikelihood]:
    animal = zoo_second.build(name)
    generator = torch.Generator().manual_seed(seed)
    return animal, rtgp.MarginalLogLikelihood(animal.likelihood, animal.model, method, generator)  # type: ignore[arg-type]


def gradient(animal: Animal, mll: rtgp.MarginalLogLikelihood) -> Tensor:
    animal.model.zero_grad()
    animal.loss(mll).backward()
    parameters = [p for p in animal.model.parameters() if p.grad is not None]
    return torch.cat([p.grad.reshape(-1) for p in parameters])


def test_one_value_for_each_model_of_the_batch() -> None:
    animal, mll = made("batch of batches")
    assert mll(animal.output(), animal.y).shape == (2, 3)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(
    "name", ["batch of models", "multitask", "Hadamard multitask", "missing targets of tasks", "KISS-GP", "SGPR"]
)
def test_the_estimate_is_unbiased(name: str) -> None:
    """Where probes are drawn, over 150 calls: each component of the gradient within 4.5 standard errors of the exact
    one. False alarm for a new seed: 7e-6 for each component, of which there are at most 20."""
    animal, mll = made(name)
    _, exact = made(name, method=rtgp.Cholesky())
    exact.model, exact.likelihood = animal.model, animal.likelihood
    wanted = gradient(animal, exact)
    found = torch.stack([gradient(animal, mll) for _ in range(150)])
    error = found.std(0) / len(found) ** 0.5
    assert bool(((found.mean(0) - wanted).abs() <= 4.5 * error + 1e-6 * wanted.abs().max()).all())
    assert float(found.std(0).max()) > 0.0


def test_a_state_is_taken_up_by_another_process() -> None:
    """Bit for bit: every model of the batch goes on with its own preconditioner and warm start."""
    animal, first = made("batch of models")
    gradient(animal, first)
    state = first.objective_state()
    assert len(separate_states(state)) == 2
    _, second = made("batch of models")
    second.model, second.likelihood = animal.model, animal.likelihood
    second.load_objective_state(state)
    for generators in (first._generator, second._generator):
        assert generators is not None
        generators.manual_seed(3)
    assert torch.equal(gradient(animal, first), gradient(animal, second))


def test_states_must_be_whole() -> None:
    with pytest.raises(ValueError, match="numbered from 0"):
        separate_states({"a": 1.0, "system2.a": 1.0})


def test_a_smaller_batch_follows_a_larger_one() -> None:
    """In one process, with one marginal likelihood: nothing of the third model is kept."""
    animal, mll = made("one model, batch of targets")
    gradient(animal, mll)
    assert len(mll._objectives) == 3
    animal.model.set_train_data(animal.model.train_inputs[0][:2], animal.y[:2], strict=False)
    gradient(animal, mll)
    assert len(mll._objectives) == 2
