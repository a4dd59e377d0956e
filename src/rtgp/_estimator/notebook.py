"""What a fitted regressor shows of itself: a summary, pictures, a report, and how a notebook shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sklearn import get_config
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from rtgp._estimator import pages
from rtgp._extras import needs
from rtgp._report.leave_one_out import UNASKED_UP_TO
from rtgp.errors import InputError, SettingError

KINDS = ("auto", "posterior", "slices", "calibration", "relevance")


class Shown:
    """Methods that show a fitted regressor."""

    def summary(self, X: Any = None, y: Any = None) -> pages.Summary:
        """The fit in a few lines: likelihood, hyperparameters with errors, scores, and what to do next.

        Parameters
        ----------
        X, y : array-like, optional
            Held-out rows to score it by. Without them, each training row is predicted from all others where that can be
            done exactly and at once (up to 3,000 rows).

        Returns
        -------
        Summary
            Text where it is printed, a table in a notebook; `rows` and `advice` are its parts.

        Examples
        --------
        >>> import numpy as np, rtgp
        >>> X = np.linspace(0.0, 6.0, 40)[:, None]
        >>> gp = rtgp.GPRegressor(random_state=0).fit(X, np.sin(X[:, 0]))
        >>> gp.summary().rows[2][0]
        'RMSE, leave-one-out'
        """
        _check_shown(self)
        return pages.summary_of(self, pages.predictions_of(self, X, y, UNASKED_UP_TO))

    def plot(self, kind: str = "auto", X: Any = None, y: Any = None, target: str = "target") -> Any:
        """A picture of the fit, as a matplotlib Figure. Needs the extra `rtgp[report]`.

        Parameters
        ----------
        kind : str
            One of "auto", "posterior", "slices", "calibration" and "relevance".
            "auto" and "posterior": for one input a curve, for two a map of the prediction and one of its standard
            deviation, from three on slices along the most relevant inputs. "calibration": coverage of the intervals,
            and observed against predicted. "relevance": by how much the prediction changes where one input is that of
            another row.
        X, y : array-like, optional
            Held-out rows for "calibration". Without them, each training row is predicted from all others.
        target : str
            What the target is called.

        Returns
        -------
        matplotlib.figure.Figure
            With `savefig`; a notebook shows it.

        Examples
        --------
        >>> gp.plot("calibration", X_test, y_test).savefig("calibration.png")  # doctest: +SKIP
        """
        _check_shown(self)
        if kind not in KINDS:
            raise SettingError(
                f"The 'kind' of plot must be one of {', '.join(map(repr, KINDS))}. Got {kind!r} instead."
            )
        with needs("report", "A picture"):
            from rtgp._report import figures
        if kind == "calibration":
            predictions = pages.predictions_of(self, X, y)
            if predictions is None:
                raise InputError(
                    "Expected held-out rows: this model cannot predict its training rows from all others exactly. Got "
                    "none: call plot('calibration', X_test, y_test)."
                )
            return figures.calibration_figure(predictions, target)
        if kind in ("auto", "posterior"):
            return figures.posterior_figure(pages.picture(self, target))
        many = pages.slices(self, target)
        return figures.posterior_figure(many) if kind == "slices" else figures.relevance_figure(many)

    def report(
        self, path: str | Path, X: Any = None, y: Any = None, title: str = "Gaussian process", target: str = "target"
    ) -> Path:
        """Write a page about the fit: one HTML file that needs nothing else. Needs the extra `rtgp[report]`.

        Parameters
        ----------
        path : str or Path
            Of the file, such as "report.html". Its folder is made where it is missing.
        X, y : array-like, optional
            Held-out rows to judge the predictions by. Without them, each training row is predicted from all others.
        title, target : str
            What stands above the page, and what the target is called.

        Returns
        -------
        Path
            Of the file.

        Examples
        --------
        >>> gp.report("report.html", X_test, y_test, target="price")  # doctest: +SKIP
        """
        _check_shown(self)
        return pages.write_page(self, path, X, y, title, target)

    def _html_repr(self) -> str:
        """scikit-learn's diagram, and below it what was learned."""
        made: str = estimator_html_repr(self)
        if not hasattr(self, "model_") or getattr(self, "n_outputs_", 1) > 1:
            return made
        return made + pages.summary_of(self, None, advised=False)._repr_html_()

    # scikit-learn asks for it by these two names.
    def _repr_html_inner(self) -> str:
        return self._html_repr()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        shown = {"text/plain": repr(self)}
        if get_config()["display"] == "diagram":
            shown["text/html"] = self._html_repr()
        return shown


def _check_shown(regressor: Any) -> None:
    """Fitted, and on one output."""
    check_is_fitted(regressor)
    count = getattr(regressor, "n_outputs_", 1)
    if count > 1:
        raise InputError(
            f"Expected a regressor of one output to show. Got {count} outputs: show one of `estimators_`, or a "
            "regressor that is fitted to one of the targets."
        )
