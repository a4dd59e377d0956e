"""A self-contained HTML report of one or several fits."""

from rtgp._provenance import versions
from rtgp._report.calibration import coverage, nll, rmse
from rtgp._report.content import Curve, Predictions, Report, Run, Slice, Slices, Surface, Table
from rtgp._report.write import render, write_report

__all__ = [
    "Curve",
    "Predictions",
    "Report",
    "Run",
    "Slice",
    "Slices",
    "Surface",
    "Table",
    "coverage",
    "nll",
    "render",
    "rmse",
    "versions",
    "write_report",
]
