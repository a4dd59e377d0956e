"""A folder of small synthetic sets under the names that the items load, and a spec small enough to look through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def small_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pol, bike and elevators as smooth functions of four inputs with some noise."""
    folder = tmp_path_factory.mktemp("sets")
    for seed, name in enumerate(("pol", "bike", "elevators")):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(900, 4))
        y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * X[:, 3] + 0.5 * rng.normal(size=len(X))
        np.savetxt(folder / f"{name}.csv", np.column_stack([X, y]), delimiter=",", fmt="%.8g")
    return folder
