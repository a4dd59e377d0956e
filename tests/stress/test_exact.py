"""The references of the stress tests against 50 digits, and against one another."""

from __future__ import annotations

import numpy as np
import pytest

from golden import make_golden
from stress.exact import Exact, Hyperparameters, grid, on_grid, repeated, scattered, with_stranger

AT = Hyperparameters((0.3, 0.45), 1.5, 1e-6, 0.25)  # condition number 3e7


def numbers(p: int, q: int, count: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return np.sort(rng.random(p)), np.sort(rng.random(q)), rng.normal(size=(count, p * q))


def in_50_digits(x: np.ndarray, y: np.ndarray, at: Hyperparameters) -> Exact:
    """By the script of the golden cases, in logarithms."""
    case = {"kernel": "rbf", "x": x.tolist(), "y": y.tolist(), "x_new": x[:1].tolist()}
    case |= {"lengthscales": list(at.lengthscales), "outputscale": at.outputscale, "noise": at.noise, "mean": at.mean}
    found = make_golden.by_mpmath(case)
    gradient = [
        *(float(g) * one for g, one in zip(found["gradient"]["lengthscales"], at.lengthscales, strict=True)),
        float(found["gradient"]["outputscale"]) * at.outputscale,
        float(found["gradient"]["noise"]) * at.noise,
        float(found["gradient"]["mean"]),
    ]
    return Exact(float(found["value"]), 0.0, np.array(gradient), np.abs(gradient))


def assert_same(found: Exact, wanted: Exact, tolerance: float = 1e-12) -> None:
    assert found.loss == pytest.approx(wanted.loss, rel=tolerance)
    np.testing.assert_allclose(found.gradient, wanted.gradient, rtol=0, atol=tolerance * found.scale.max())


def test_a_grid() -> None:
    a, b, (y,) = numbers(4, 5)
    assert_same(on_grid(a, b, y, AT), in_50_digits(grid(a, b), y, AT))


def test_repeated_points() -> None:
    a, b, values = numbers(3, 3, 3)
    assert_same(repeated(a, b, values, AT), in_50_digits(np.tile(grid(a, b), (3, 1)), values.reshape(-1), AT))


def test_a_point_far_away() -> None:
    a, b, (y,) = numbers(4, 4)
    x = np.concatenate([grid(a, b), [[1e6, -1e6]]])
    found = with_stranger(on_grid(a, b, y, AT), 3.0, AT)
    assert_same(found, in_50_digits(x, np.append(y, 3.0), AT))


def test_scattered_points() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.random((20, 2)), rng.normal(size=20)
    assert_same(scattered(x, y, AT), in_50_digits(x, y, AT), 1e-11)


def test_grid_and_cholesky_in_long_numbers_agree_where_float64_does_not() -> None:
    """Noise 1e-11, condition number 2e13: the two references to 1e-6, NumPy's float64 three digits worse."""
    a, b, (y,) = numbers(10, 12)
    at = Hyperparameters((0.5, 0.5), 1.5, 1e-11, 0.0)
    first, second = on_grid(a, b, y, at), scattered(grid(a, b), y, at)
    assert second.loss == pytest.approx(first.loss, rel=1e-6)
    x = grid(a, b)
    K = 1.5 * np.exp(-(((x[:, None] - x) / 0.5) ** 2).sum(-1) / 2) + 1e-11 * np.eye(len(y))
    wide = 0.5 * (np.linalg.slogdet(K)[1] + y @ np.linalg.solve(K, y) + len(y) * np.log(2 * np.pi))
    assert abs(second.loss - first.loss) < 1e-2 * abs(wide - first.loss)
