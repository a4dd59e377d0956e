"""`rtgp.solve` and `rtgp.logdet`: any kind of matrix, and without bias, which is shown by enumerating the truncation.

The estimate is piecewise constant in the uniform number behind it. Its expectation is therefore a finite sum: over
the intervals between successive survival probabilities, the length times the estimate at any point inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from linear_operator.operators import AddedDiagLinearOperator, DenseLinearOperator, DiagLinearOperator
from torch import Tensor

import rtgp
from rtgp._traces.probes import random_signs
from rtgp.errors import InputError, NotPositiveDefiniteError, RTGPError, SettingError, TruncationError
from rtgp.truncation import (
    ExponentialDecay,
    Fixed,
    Geometric,
    PowerLaw,
    ResidualDriven,
    Uniform,
    russian_roulette,
)

N = 24
TIGHT = 1e-13


def spd(n: int = N, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Symmetric positive definite, condition number about 1e3, spectrum spread evenly in the logarithm."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]
    matrix = q @ torch.diag(torch.logspace(-1, 2, n, dtype=torch.float64)) @ q.T
    return ((matrix + matrix.T) / 2).to(dtype)


def vector(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


A = spd()
RULES = {
    "exponential": ExponentialDecay(rate=0.2, minimum=4),
    "geometric": Geometric(0.1),
    "uniform": Uniform(1, 3 * N),  # rounding makes CG need more than N terms for 1e-13
    "power law": PowerLaw(1.5, 3),
    "residual": ResidualDriven(0.3),
    "residual, sharp": ResidualDriven(0.01),
}
PRECONDITIONERS = {
    "none": None,
    "greedy": rtgp.PivotedCholesky(4, "greedy"),
    "random": rtgp.PivotedCholesky(6, "random"),
    "function": lambda r: r / A.diagonal()[:, None],
}


class Enumeration:
    """Stands in for `russian_roulette` inside rtgp._linear_algebra: hands out chosen uniforms, records survivals."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uniforms: list[float] = []
        self.weightings: list = []
        monkeypatch.setattr("rtgp._linear_algebra.russian_roulette", self._start)

    def _start(self, rule, draws, generator):
        weighting = russian_roulette(rule, draws, uniforms=[self.uniforms[len(self.weightings)]])
        self.weightings.append(weighting)
        return weighting

    def run(self, estimate: Callable[[], Tensor], *uniforms: float) -> Tensor:
        self.uniforms, self.weightings = list(uniforms), []
        result = estimate()
        assert len(self.weightings) == len(uniforms)  # every truncation of the call is under control
        return result

    def intervals(self, estimate: Callable[[], Tensor], run: int = 0, runs: int = 1) -> list[tuple[float, float]]:
        """(probability, a uniform inside) for every truncation of one of the runs, from a run to the end."""
        self.run(estimate, *[1e-290] * runs)
        survival = [*self.weightings[run].survival, 0.0]
        pairs = itertools.pairwise(survival)
        return [(high - low, (high + low) / 2) for high, low in pairs if high > low]

    def expectation(self, estimate: Callable[[], Tensor]) -> Tensor:
        cases = self.intervals(estimate)
        assert len(cases) > 1
        return sum(p * self.run(estimate, u) for p, u in cases)

    def pairs(self, estimate: Callable[[], Tensor]) -> Iterator[tuple[float, Tensor]]:
        """For a call with two independent truncations, the second of which may depend on the first."""
        for p, u in self.intervals(estimate, 0, 2):

            def given(u=u):
                return estimate()

            self.run(given, u, 1e-290)
            survival = [*self.weightings[1].survival, 0.0]
            for high, low in itertools.pairwise(survival):
                if high > low:
                    yield p * (high - low), self.run(given, u, (high + low) / 2)


@pytest.fixture
def enumeration(monkeypatch):
    return Enumeration(monkeypatch)


def close(found: Tensor, wanted: Tensor, relative: float = 1e-10) -> None:
    error = float((found - wanted).norm() / wanted.norm())
    assert error < relative, f"relative error {error:.1e}"


class TestSolveIsUnbiased:
    @pytest.mark.parametrize("preconditioner", PRECONDITIONERS)
    @pytest.mark.parametrize("rule", RULES)
    def test_expectation_is_the_solution(self, enumeration, rule, preconditioner):
        b = vector(N, 3)

        def estimate():
            generator = torch.Generator().manual_seed(5)  # the same random pivots in every run
            return rtgp.solve(A, b, RULES[rule], PRECONDITIONERS[preconditioner], generator, tolerance=TIGHT)

        close(enumeration.expectation(estimate), torch.linalg.solve(A, b))

    def test_one_right_hand_side(self, enumeration):
        b = vector(N)
        found = enumeration.expectation(lambda: rtgp.solve(A, b, ResidualDriven(0.1), tolerance=TIGHT))
        assert found.shape == (N,)
        close(found, torch.linalg.solve(A, b))

    def test_single_estimates_do_differ(self, enumeration):
        """The enumeration is not vacuous: the truncated estimates are far from their mean."""
        b, wanted = vector(N), torch.linalg.solve(A, vector(N))
        cases = enumeration.intervals(lambda: rtgp.solve(A, b, Geometric(0.1), tolerance=TIGHT))
        worst = [enumeration.run(lambda: rtgp.solve(A, b, Geometric(0.1), tolerance=TIGHT), u) for _, u in cases[:5]]
        assert all(float((x - wanted).norm() / wanted.norm()) > 0.1 for x in worst)

    @pytest.mark.parametrize("rule", ["exponential", "residual"])
    @pytest.mark.parametrize("preconditioner", ["none", "greedy"])
    def test_gradients(self, enumeration, rule, preconditioner):
        n = 10
        full, b, c = spd(n), vector(n), vector(n, seed=9)

        def gradient():
            matrix, rhs = full.clone().requires_grad_(True), b.clone().requires_grad_(True)
            settings = PRECONDITIONERS[preconditioner]
            x = rtgp.solve(matrix, rhs, RULES[rule], settings, tolerance=TIGHT)
            found = torch.autograd.grad(c @ x, (matrix, rhs))
            return torch.cat([g.reshape(-1) for g in found])

        total = torch.zeros(n * n + n, dtype=torch.float64)
        mass = 0.0
        for probability, value in enumeration.pairs(gradient):
            total += probability * value
            mass += probability
        assert mass == pytest.approx(1.0, abs=1e-12)
        matrix, rhs = full.clone().requires_grad_(True), b.clone().requires_grad_(True)
        wanted = torch.autograd.grad(c @ torch.linalg.solve(matrix, rhs), (matrix, rhs))
        close(total, torch.cat([g.reshape(-1) for g in wanted]))


class TestLogdetIsUnbiased:
    @pytest.mark.parametrize("preconditioner", ["none", "greedy", "random"])
    @pytest.mark.parametrize("rule", RULES)
    def test_over_truncations_and_all_sign_probes(self, enumeration, monkeypatch, rule, preconditioner):
        n = 6
        matrix = spd(n)
        signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=n)), dtype=torch.float64).T  # (n, 2^n)
        monkeypatch.setattr("rtgp._traces.probes.random_signs", lambda *_: signs)
        settings = PRECONDITIONERS[preconditioner]
        if settings is not None:
            settings = rtgp.PivotedCholesky(2, settings.pivoting)

        def value_and_gradient():
            leaf = matrix.clone().requires_grad_(True)
            generator = torch.Generator().manual_seed(5)
            value = rtgp.logdet(leaf, RULES[rule], settings, generator, probes=2**n, tolerance=TIGHT)
            return torch.cat([value.detach().reshape(1), torch.autograd.grad(value, leaf)[0].reshape(-1)])

        found = enumeration.expectation(value_and_gradient)
        assert float(found[0]) == pytest.approx(float(torch.logdet(matrix)), rel=1e-10)
        close((found[1:].reshape(n, n) + found[1:].reshape(n, n).T) / 2, torch.linalg.inv(matrix))

    @pytest.mark.parametrize("rule", RULES)
    def test_given_the_probes_it_is_the_full_quadrature(self, enumeration, rule):
        def estimate(truncation=RULES[rule]):
            generator = torch.Generator().manual_seed(2)
            return rtgp.logdet(A, truncation, generator=generator, probes=3, tolerance=TIGHT)

        eigenvalues, vectors = torch.linalg.eigh(A)
        z = random_signs(N, 3, torch.Generator().manual_seed(2))
        wanted = ((vectors.T @ z).square() * eigenvalues.log()[:, None]).sum(0).mean()
        assert float(enumeration.expectation(estimate)) == pytest.approx(float(wanted), rel=1e-9)


def z_scores(samples: Tensor, wanted: Tensor) -> Tensor:
    return (samples.mean(0) - wanted) / (samples.std(0) / samples.shape[0] ** 0.5)


class TestMonteCarlo:
    """Seeded: no false alarms. With a fresh seed, |z| < 4 on 30 correlated components fails once in 500 runs."""

    def test_solve_and_logdet_are_unbiased_as_called(self):
        generator, b = torch.Generator().manual_seed(0), vector(N)
        rule = ExponentialDecay(rate=0.3, minimum=3)
        solves = torch.stack([rtgp.solve(A, b, rule, generator=generator) for _ in range(500)])
        assert float(z_scores(solves, torch.linalg.solve(A, b)).abs().max()) < 4
        values = torch.stack([rtgp.logdet(A, rule, generator=generator, probes=4) for _ in range(500)])
        assert abs(float(z_scores(values, torch.logdet(A)))) < 4

    def test_plain_truncation_fails_the_same_test(self, monkeypatch):
        monkeypatch.setattr("rtgp._linear_algebra.russian_roulette", lambda *_: rtgp.truncation.fixed(6))
        generator, b = torch.Generator().manual_seed(0), vector(N)
        values = torch.stack([rtgp.logdet(A, generator=generator, probes=4) for _ in range(400)])
        assert float(z_scores(values, torch.logdet(A))) > 10  # upwards: Theorem 1
        truncated, solution = rtgp.solve(A, b), torch.linalg.solve(A, b)
        assert float(b @ truncated) < float(b @ solution)
        assert float((truncated - solution).norm() / solution.norm()) > 0.1


def as_added_diag(matrix: Tensor) -> AddedDiagLinearOperator:
    diagonal = torch.full((matrix.shape[0],), 0.05, dtype=matrix.dtype)
    return AddedDiagLinearOperator(DenseLinearOperator(matrix - torch.diag(diagonal)), DiagLinearOperator(diagonal))


KINDS = {
    "tensor": lambda m: m,
    "dense operator": DenseLinearOperator,
    "added diagonal": as_added_diag,
    "function": lambda m: lambda v: m @ v,
}
NEVER_STOPS = ExponentialDecay(rate=0.05, minimum=1000)


class TestKindsOfMatrices:
    @pytest.mark.parametrize("kind", KINDS)
    def test_solve(self, kind):
        for b in (vector(N), vector(N, 2)):
            found = rtgp.solve(KINDS[kind](A), b, NEVER_STOPS, tolerance=1e-12)
            assert found.shape == b.shape
            close(found, torch.linalg.solve(A, b), 1e-9)

    @pytest.mark.parametrize("kind", KINDS)
    def test_logdet(self, kind):
        found = [
            rtgp.logdet(KINDS[k](A), NEVER_STOPS, None, torch.Generator().manual_seed(0), size=N, dtype=torch.float64)
            for k in ("tensor", kind)
        ]
        torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=0)
        assert float(found[0]) == pytest.approx(float(torch.logdet(A)), abs=5.0)

    @pytest.mark.parametrize("kind", KINDS)
    def test_gradients_reach_what_the_matrix_is_made_of(self, kind):
        b, c = vector(N), vector(N, seed=9)
        scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
        x = rtgp.solve(KINDS[kind](A * scale), b, NEVER_STOPS, tolerance=1e-12)
        (found,) = torch.autograd.grad(c @ x, scale)
        wanted = -(c @ torch.linalg.solve(A, b)) / 1.3**2
        assert float(found) == pytest.approx(float(wanted), rel=1e-8)

        # tr(A^-1 dA) = n / scale. z^T A^-1 A z = n for signs: exact for each probe.
        value = rtgp.logdet(KINDS[kind](A * scale), NEVER_STOPS, size=N, dtype=torch.float64, tolerance=1e-12)
        (slope,) = torch.autograd.grad(value, scale)
        assert float(slope) == pytest.approx(N / 1.3, rel=1e-8)

    @pytest.mark.parametrize("kind", ["tensor", "dense operator", "added diagonal"])
    @pytest.mark.parametrize("pivoting", ["greedy", "random"])
    def test_preconditioned(self, kind, pivoting):
        b, settings = vector(N, 2), rtgp.PivotedCholesky(8, pivoting)
        found = rtgp.solve(KINDS[kind](A), b, NEVER_STOPS, settings, tolerance=1e-12)
        close(found, torch.linalg.solve(A, b), 1e-9)

    def test_a_good_preconditioner_ends_the_run_at_once(self):
        b, calls, inverse = vector(N), [], torch.linalg.inv(A)
        rtgp.solve(lambda v: (calls.append(1), A @ v)[1], b, NEVER_STOPS, lambda r: inverse @ r)
        assert len(calls) <= 3

    def test_nothing_to_solve(self):
        assert torch.equal(rtgp.solve(A, torch.zeros(N, dtype=torch.float64)), torch.zeros(N, dtype=torch.float64))

    def test_float32(self):
        b = vector(N).float()
        found = rtgp.solve(A.float(), b, NEVER_STOPS, tolerance=1e-6)
        assert found.dtype == torch.float32
        close(found.double(), torch.linalg.solve(A, b.double()), 1e-3)

    def test_ill_conditioned(self):
        """Condition number 1e6: rounding makes CG need many times n steps."""
        n = 100
        q = torch.linalg.qr(vector(n, n))[0]
        matrix = q @ torch.diag(torch.logspace(0, 6, n, dtype=torch.float64)) @ q.T
        b = vector(n)
        found = rtgp.solve((matrix + matrix.T) / 2, b, ExponentialDecay(rate=0.05, minimum=10**5))
        close(found, torch.linalg.solve(matrix, b), 1e-5)

    def test_generator_makes_it_repeatable(self):
        def run(seed):
            generator = torch.Generator().manual_seed(seed)
            solved = rtgp.solve(A, vector(N), Geometric(0.1), rtgp.PivotedCholesky(3), generator)
            return torch.cat([solved, rtgp.logdet(A, Geometric(0.1), None, generator).reshape(1)])

        state = torch.get_rng_state()
        assert torch.equal(run(0), run(0))
        assert not torch.equal(run(0), run(1))
        assert torch.equal(torch.get_rng_state(), state)


NAN = A.clone()
NAN[2, 3] = NAN[3, 2] = float("nan")
B = vector(N)
INDEFINITE = A - 5.0 * torch.eye(N, dtype=torch.float64)
REFUSED = {
    "support ends early": (lambda: rtgp.solve(A, B, Uniform(1, N - 1)), TruncationError, "has 24 terms"),
    "fixed truncation": (lambda: rtgp.solve(A, B, Fixed(10)), TruncationError, "biased"),
    "logdet, support ends early": (lambda: rtgp.logdet(A, Uniform(1, N - 1)), TruncationError, "has 24 terms"),
    "indefinite": (lambda: rtgp.solve(INDEFINITE, B, NEVER_STOPS), NotPositiveDefiniteError, "jitter"),
    "logdet, indefinite": (lambda: rtgp.logdet(INDEFINITE, NEVER_STOPS), NotPositiveDefiniteError, "jitter"),
    "negative": (lambda: rtgp.solve(-A, B), NotPositiveDefiniteError, "jitter"),
    "NaN in the matrix": (lambda: rtgp.solve(NAN, B), InputError, "finite matrix"),
    "logdet, NaN in the matrix": (lambda: rtgp.logdet(NAN), InputError, "finite matrix"),
    "NaN from a function": (lambda: rtgp.solve(lambda v: NAN @ v, B), RTGPError, "positive definite"),
    "NaN in b": (lambda: rtgp.solve(A, B * float("nan")), InputError, "finite right-hand side"),
    "infinity in b": (lambda: rtgp.solve(A, B * float("inf")), InputError, "finite right-hand side"),
    "not square": (lambda: rtgp.solve(A[:, :-1], B), InputError, r"square matrix.*\(24, 23\)"),
    "batch of matrices": (lambda: rtgp.logdet(A.expand(2, N, N)), InputError, "one at a time"),
    "not symmetric": (lambda: rtgp.solve(A.triu(), B), InputError, "symmetric"),
    "integers": (lambda: rtgp.logdet(torch.eye(3, dtype=torch.int64)), InputError, "float32 or torch.float64"),
    "half precision": (lambda: rtgp.logdet(torch.eye(3).half()), InputError, "convert"),
    "rows": (lambda: rtgp.solve(A, B[:-1]), InputError, "24 rows"),
    "scalar b": (lambda: rtgp.solve(A, B[0]), InputError, r"\(n,\) or \(n, r\)"),
    "b is a list": (lambda: rtgp.solve(A, B.tolist()), InputError, "list"),
    "dtype of b": (lambda: rtgp.solve(A, B.float()), InputError, r"b\.to\(A\)"),
    "not a matrix": (lambda: rtgp.solve("A", B), InputError, "function v -> A v"),
    "function without size": (lambda: rtgp.logdet(lambda v: v), InputError, "size=n"),
    "function of the wrong shape": (lambda: rtgp.solve(lambda v: v[:, 0], B), InputError, "returned"),
    "preconditioner": (lambda: rtgp.solve(A, B, preconditioner="jacobi"), InputError, "PivotedCholesky, a function"),
    "indefinite preconditioner": (lambda: rtgp.solve(A, B, preconditioner=lambda r: -r), RTGPError, "check its sign"),
    "NaN preconditioner": (lambda: rtgp.solve(A, B, preconditioner=lambda r: r * NAN[2, 3]), RTGPError, "NaN"),
    "rows of a function": (
        lambda: rtgp.solve(lambda v: v, B, preconditioner=rtgp.PivotedCholesky(3)),
        InputError,
        "needs rows",
    ),
    "logdet, function preconditioner": (
        lambda: rtgp.logdet(A, preconditioner=lambda r: r),
        InputError,
        "determinant is needed",
    ),
    "logdet, probes": (lambda: rtgp.logdet(A, probes=0), SettingError, "positive integer"),
    "truncation": (lambda: rtgp.solve(A, B, 10), RTGPError, "survival rule"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call()


def test_no_second_derivative_is_pretended():
    matrix = A.clone().requires_grad_(True)
    loss = rtgp.solve(matrix, B, NEVER_STOPS).square().sum()
    (first,) = torch.autograd.grad(loss, matrix, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()
