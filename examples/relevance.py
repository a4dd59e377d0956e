"""Many inputs, and which of them matter: the progression of diabetes from ten measurements (scikit-learn's table).

Look at the bars of the picture: how much the prediction changes where one input is taken from another patient. Body
mass index, s5 (the logarithm of a blood value) and blood pressure stand out. Lengthscales alone do not say so: age and
sex have short ones, because their effect bends, and yet change the prediction less.

    python examples/relevance.py
"""

from __future__ import annotations

import sys

from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import rtgp


def main() -> None:
    data = load_diabetes(as_frame=True, scaled=False)
    train, test, y_train, y_test = train_test_split(data.data, data.target.to_numpy(), random_state=0)
    gp = rtgp.GPRegressor(kernel="rbf", random_state=0).fit(train, y_train)
    for name, value in gp.summary(test, y_test).rows[2:5]:
        print(f"{name:28} {value}")
    print("\nlengthscales, in standard deviations of the input")
    found = [value for name, value in gp.hyperparameters_.items() if "lengthscale" in name]
    for name, value in sorted(zip(train.columns, found, strict=True), key=lambda pair: pair[1]):
        print(f"  {name:5} {value:9.1f}")
    if len(sys.argv) > 1:
        gp.plot("relevance", target="progression").savefig(sys.argv[1], dpi=80)


if __name__ == "__main__":
    main()
