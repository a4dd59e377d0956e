"""A self-contained HTML report of one or several fits."""

from rtgp.report.calibration import coverage, nll, rmse
from rtgp.report.content import Curve, Predictions, Report, Run, Surface, Table
from rtgp.report.environment import versions
from rtgp.report.page import render, write_report

__all__ = [
    "Curve",
    "Predictions",
    "Report",
    "Run",
    "Surface",
    "Table",
    "coverage",
    "nll",
    "render",
    "rmse",
    "versions",
    "write_report",
]
