"""A self-contained HTML report of one or several fits."""

from rtgp.provenance import versions
from rtgp.report.calibration import coverage, nll, rmse
from rtgp.report.content import Curve, Predictions, Report, Run, Slice, Slices, Surface, Table
from rtgp.report.write import render, write_report

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
