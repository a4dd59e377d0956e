"""A map from scattered measurements: the elevation of US airports, learned by RR-CG.

Look at two things. About 90% of the test airports lie inside their 90% interval: the standard deviations can be
believed. In the second map the deviation is small where airports are dense. It grows towards the sea and the deserts,
where there is nothing to learn from.

    python examples/spatial.py
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

import rtgp

NAMES = ["longitude", "latitude"]

SHADES = " .:-=+*#%@"
COLUMNS, ROWS = 64, 14


def drawn(values: np.ndarray) -> str:
    """A map as text: the darker the sign, the higher the value. values: (ROWS, COLUMNS), the north first."""
    low, high = values.min(), values.max()
    shade = ((values - low) / (high - low) * (len(SHADES) - 1)).round().astype(int)
    lines = ["".join(SHADES[k] for k in row) for row in shade]
    return "\n".join([*lines, f"from {low:.0f} (light) to {high:.0f} feet (dark)"])


def frame(X: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(X, columns=NAMES)


def main() -> None:
    train, _, test = rtgp.datasets.load("us-airports").subset(2400, seed=0).split(seed=0, standardise=False)
    gp = rtgp.GPRegressor(kernel="matern32", method="rr-cg", random_state=0).fit(frame(train.X), train.y)
    result = gp.fit_result_
    print(f"{len(train)} airports, {result.steps} steps by {type(gp.method_).__name__}: {result.status.value}")
    for name in (*(f"lengthscale[{column}]" for column in NAMES), "noise"):
        value, error = gp.hyperparameters_[name], gp.hyperparameter_errors_[name]
        print(f"  {name:22} {value:.3f} +- {error:.3f}, in standardised units")

    mean, std = gp.predict(frame(test.X), return_std=True)
    error = np.sqrt(np.mean((mean - test.y) ** 2))
    inside = np.mean(np.abs(mean - test.y) < 1.645 * std)
    print(f"{len(test)} others: RMSE {error:.0f} feet of {test.y.std():.0f}; {inside:.0%} inside their 90% interval")

    east, north = np.meshgrid(np.linspace(-124, -67, COLUMNS), np.linspace(49, 25, ROWS))
    grid = np.column_stack([east.ravel(), north.ravel()])
    mean, std = gp.predict(frame(grid), return_std=True, include_noise=False)
    print("\nElevation\n" + drawn(mean.reshape(ROWS, COLUMNS)))
    print("\nIts standard deviation\n" + drawn(std.reshape(ROWS, COLUMNS)))
    if len(sys.argv) > 1:
        gp.plot(target="elevation (feet)").savefig(sys.argv[1], dpi=70)


if __name__ == "__main__":
    main()
