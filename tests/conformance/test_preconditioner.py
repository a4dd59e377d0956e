"""One suite for the Preconditioner protocol; every implementation runs it, against dense NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import gpytorch
import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from distributed import cases as ranks_cases
from distributed.ranks import run
from rtgp._kernels import KernelForm, read_kernel
from rtgp._preconditioners import Identity, LowRank, Preconditioner, SparseInverse
from rtgp._preconditioners.combined import LowRankAndNeighboursInverse
from rtgp._preconditioners.low_rank import Scaled
from rtgp._preconditioners.nearest import nearest_earlier
from rtgp._preconditioners.saved import preconditioner_from_state
from rtgp._preconditioners.sparse_inverse import random_order
from rtgp.distributed import Group

N = 24
RANK = 7
TOLERANCE = {torch.float64: 1e-10, torch.float32: 3e-5}  # relative to the largest entry


@lru_cache(maxsize=1)
def problem() -> tuple[KernelForm, Tensor, Tensor]:
    """A kernel on N points, two of them equal; a noise for each; A = S K S + I."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    x[-1] = x[3]
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2)).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.4, 0.7]])
    kernel.outputscale = 2.0
    noise = 0.02 + 0.3 * torch.rand(N, generator=generator, dtype=torch.float64)
    form, s = read_kernel(kernel, x), noise.rsqrt()
    return form, noise, s[:, None] * form.block(slice(0, N), slice(0, N)).detach() * s + torch.eye(N).double()


def pattern(count: int) -> Tensor:
    return nearest_earlier(problem()[0], random_order(N, torch.Generator().manual_seed(1)), count)


def thin_factor() -> Tensor:
    """L (N, RANK): exact columns of S K S, so that A - L L^T is positive definite."""
    return torch.from_numpy(reference.greedy_pivoted_cholesky(problem()[2].numpy() - np.eye(N), RANK))


Made = tuple[Preconditioner, np.ndarray]


def identity(dtype: torch.dtype) -> Made:
    return Identity(N), np.eye(N)


def low_rank(dtype: torch.dtype) -> Made:
    factor = thin_factor()
    return LowRank(factor, dtype), (factor @ factor.T).numpy() + np.eye(N)


def scaled(dtype: torch.dtype) -> Made:
    inner, P = low_rank(dtype)
    return Scaled(inner, 0.37), 0.37 * P


def sparse(count: int, dtype: torch.dtype) -> Made:
    form, noise, A = problem()
    neighbours = pattern(count)
    G = reference.inverse_factor(A.numpy(), neighbours.numpy())
    return SparseInverse.of(form, noise, neighbours, dtype), np.linalg.inv(G.T @ G)


def both(count: int, dtype: torch.dtype) -> Made:
    form, noise, A = problem()
    factor = thin_factor()
    made = LowRankAndNeighboursInverse.of(form, noise, factor, pattern(min(4 * count, N - 1)), count, dtype)
    thin = (factor @ factor.T).numpy()
    # Which of the candidates it takes is tried in test_nearest.py.
    itself = torch.arange(N)[:, None]
    neighbours = torch.where(made.sparse.index == itself, -1, made.sparse.index)[:, :-1]
    G = reference.inverse_factor(A.numpy() - thin, neighbours.numpy())
    return made, thin + np.linalg.inv(G.T @ G)


@dataclass(frozen=True)
class Case:
    """make: a preconditioner for a dtype, and the dense P it stands for."""

    name: str
    make: Callable[[torch.dtype], Made]
    saved: bool = True


# A new preconditioner joins the suite by one line here.
CASES = [
    Case("identity", identity, saved=False),
    Case("low rank", low_rank),
    Case("scaled low rank", scaled),
    *[Case(f"{m} neighbours", lambda dtype, m=m: sparse(m, dtype)) for m in range(1, N)],
    *[Case(f"low rank and {m} neighbours", lambda dtype, m=m: both(m, dtype)) for m in (1, 4, N - 1)],
]
cases = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def vectors(r: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(N, r, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def dense(product: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float64) -> np.ndarray:
    return product(torch.eye(N, dtype=dtype)).double().numpy()


def assert_close(got: np.ndarray, wanted: np.ndarray, dtype: torch.dtype = torch.float64) -> None:
    np.testing.assert_allclose(
        got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(np.abs(wanted).max(initial=0.0), 1e-300)
    )


@dtypes
@cases
def test_it_is_a_root_of_the_dense_matrix(case: Case, dtype: torch.dtype) -> None:
    """F^-1 P F^-T = I with F^-T the transpose of F^-1, and the determinant is that of P."""
    made, P = case.make(dtype)
    assert isinstance(made, Preconditioner)
    assert made.size == N
    whiten, transposed = dense(made.whiten, dtype), dense(made.whiten_transpose, dtype)
    assert_close(transposed, whiten.T, dtype)
    assert_close(whiten @ P @ whiten.T, np.eye(N), dtype)
    assert_close(whiten.T @ whiten, np.linalg.inv(P), dtype)
    found = made.logdet()
    assert found.dtype == torch.float64
    assert found.shape == ()
    assert found.device.type == "cpu"
    # Small numbers stay in float64, whatever the vectors are.
    np.testing.assert_allclose(float(found), np.linalg.slogdet(P)[1], rtol=0, atol=1e-9)


@cases
def test_the_matrix_is_symmetric_positive_definite(case: Case) -> None:
    made, _ = case.make(torch.float64)
    inverse = dense(lambda v: made.solve(v)[0])
    assert_close(inverse, inverse.T)
    assert np.linalg.eigvalsh(inverse).min() > 0.0
    sign, logdet = np.linalg.slogdet(inverse)
    assert sign == 1.0
    np.testing.assert_allclose(-logdet, float(made.logdet()), rtol=0, atol=1e-9)


@dtypes
@cases
@pytest.mark.parametrize("r", [1, 3])
def test_solve(case: Case, dtype: torch.dtype, r: int) -> None:
    """P^-1 v and v^T P^-1 v."""
    made, P = case.make(dtype)
    v = vectors(r, dtype)
    solved, squares = made.solve(v)
    wanted = np.linalg.solve(P, v.double().numpy())
    assert solved.dtype == dtype
    assert solved.shape == (N, r)
    assert squares.dtype == torch.float64
    assert squares.shape == (r,)
    assert_close(solved.double().numpy(), wanted, dtype)
    assert_close(squares.numpy(), (v.double().numpy() * wanted).sum(0), dtype)
    assert bool((made.solve(torch.zeros(N, r, dtype=dtype))[1] == 0.0).all())


@cases
def test_inverse_diagonal(case: Case) -> None:
    made, P = case.make(torch.float32)
    found = made.inverse_diagonal()
    assert found.dtype == torch.float64
    assert_close(found.numpy(), np.diag(np.linalg.inv(P)))


@cases
def test_float32_against_float64(case: Case) -> None:
    """One preconditioner of a float32 run serves vectors of both kinds; what it keeps is the same."""
    made, other = case.make(torch.float32)[0], case.make(torch.float64)[0]
    v = vectors(5, torch.float32)
    for name in ("whiten", "whiten_transpose"):
        single, double = getattr(made, name)(v), getattr(made, name)(v.double())
        assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
        assert_close(single.double().numpy(), double.numpy(), torch.float32)
        assert torch.equal(double, getattr(other, name)(v.double()))
    assert torch.equal(made.logdet(), other.logdet())


@dtypes
@cases
def test_products_are_values_of_their_own(case: Case, dtype: torch.dtype) -> None:
    """Vectors are left alone, whatever their layout; results are no view of them or of what is held."""
    made, _ = case.make(dtype)
    for v in (vectors(3, dtype), vectors(3, dtype).T.contiguous().T, vectors(6, dtype)[:, ::2]):
        kept = v.clone()
        for product in (made.whiten, made.whiten_transpose, lambda w: made.solve(w)[0]):
            first = product(v)
            assert torch.equal(v, kept)
            before = first.clone()
            first.fill_(torch.nan)
            assert torch.equal(v, kept)
            assert torch.equal(product(v), before)
    before = made.inverse_diagonal().clone()
    made.inverse_diagonal().fill_(torch.nan)
    assert torch.equal(made.inverse_diagonal(), before)


SAVED = [case for case in CASES if case.saved]
saved_cases = pytest.mark.parametrize("case", SAVED, ids=[case.name for case in SAVED])


def loaded(state: dict[str, Tensor], dtype: torch.dtype = torch.float64, size: int | None = N) -> Preconditioner:
    return preconditioner_from_state(state, dtype, Group.alone(), size)[0]


@dtypes
@saved_cases
def test_saved_and_loaded_to_the_bit(case: Case, dtype: torch.dtype) -> None:
    made, _ = case.make(dtype)
    again = loaded({name: value.clone() for name, value in made.state_dict().items()}, dtype)
    assert type(again) is type(made)
    assert (again.size, again.rank, again.neighbours) == (made.size, made.rank, made.neighbours)
    v = vectors(3, dtype)
    assert torch.equal(again.whiten(v), made.whiten(v))
    assert torch.equal(again.whiten_transpose(v), made.whiten_transpose(v))
    assert torch.equal(again.logdet(), made.logdet())
    assert torch.equal(again.inverse_diagonal(), made.inverse_diagonal())
    for name, value in again.state_dict().items():
        assert torch.equal(value, made.state_dict()[name])


@saved_cases
def test_a_state_of_another_size_is_refused(case: Case) -> None:
    with pytest.raises(ValueError, match="must be a tensor of shape"):
        loaded(case.make(torch.float64)[0].state_dict(), size=N + 1)


@saved_cases
def test_a_damaged_state_is_refused(case: Case) -> None:
    """Every entry in turn: missing, cut short, of another type, not finite."""
    state = case.make(torch.float64)[0].state_dict()
    for name, value in state.items():
        # Without its mark a state is one of another kind, or of none.
        if name not in ("combined_factor", "scale"):
            with pytest.raises(ValueError, match=r"is missing|must"):
                loaded({key: entry for key, entry in state.items() if key != name})
        damages = [value.to(torch.float16), value.double() * torch.nan]
        damages += [value[:-1], value[None]] if value.ndim else [value[None]]
        for damaged in damages:
            with pytest.raises(ValueError, match=f"'{name}'|neighbours_values|preconditioner_c"):
                loaded({**state, name: damaged})
        with pytest.raises(ValueError, match=f"'{name}' must be"):
            loaded({**state, name: 1.0})


def changed(value: Tensor, place: tuple[int, int], to: float) -> Tensor:
    value = value.clone()
    value[place] = to
    return value


def cyclic(index: Tensor) -> Tensor:
    """Two points that come before one another."""
    index = index.clone()
    row = int(torch.nonzero(index[:, 0] != index[:, -1])[0, 0])
    index[index[row, 0], 0] = row
    return index


def twice(index: Tensor) -> Tensor:
    """A row that names one of its neighbours two times."""
    index = index.clone()
    row = int(torch.nonzero((index[:, 0] != index[:, -1]) & (index[:, 1] != index[:, -1]))[0, 0])
    index[row, 1] = index[row, 0]
    return index


DAMAGES = {
    "neighbours_index": [
        lambda index: changed(index, (0, 0), N),
        lambda index: changed(index, (0, 0), -1),
        lambda index: changed(index, (5, -1), 4),
        lambda index: index.flip(1),
        cyclic,
        twice,
    ],
    "neighbours_values": [
        lambda values: changed(values, (2, -1), 0.0),
        lambda values: -values,
        # A point with fewer neighbours stands for those that are missing, with a 0.
        lambda values: torch.where(values == 0.0, 0.5, values),
    ],
    "preconditioner_q": [lambda q: 2.0 * q, lambda q: changed(q, (0, 0), 3.0)],
    "preconditioner_c": [lambda c: c.T + c, lambda c: -c, lambda c: changed(c, (0, 0), 0.0)],
    "scale": [lambda scale: -scale, lambda scale: 0.0 * scale],
}
ONE = ("1 neighbours", "low rank and 1 neighbours")  # no row of theirs can name a neighbour two times


@pytest.mark.parametrize("case", [case for case in SAVED if case.name not in ONE], ids=lambda case: case.name)
def test_a_state_that_is_no_preconditioner_is_refused(case: Case) -> None:
    """Its numbers are numbers, but its determinant or its probes would be another's, which is bias."""
    state = case.make(torch.float64)[0].state_dict()
    for name in state.keys() & DAMAGES.keys():
        for damage in DAMAGES[name]:
            with pytest.raises(ValueError, match=r"neighbours_|preconditioner_|scale"):
                loaded({**state, name: damage(state[name])})


@pytest.mark.parametrize("size", [2, 3])
def test_several_ranks_are_one(size: int) -> None:
    """The low rank holds its own rows on each rank; states of any number of ranks are the same."""
    alone = ranks_cases.low_rank_products(False)
    for rank in run(size, ranks_cases.low_rank_products, True):
        assert rank.keys() == alone.keys()
        for name, value in alone.items():
            np.testing.assert_allclose(rank[name], value, rtol=0, atol=1e-12 * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize("name", ["neighbours", "low rank and neighbours"])
def test_estimates_of_two_ranks_are_those_of_one(name: str) -> None:
    """Gradient, value, contrast and information of two calls; neighbours are the same on every rank."""
    wanted = ranks_cases.estimates(name, "dense")
    for rank in run(2, ranks_cases.estimates, name, "sharded"):
        for what, value in wanted.items():
            np.testing.assert_allclose(rank[what], value, rtol=0, atol=1e-6 * np.abs(value).max(), err_msg=what)
