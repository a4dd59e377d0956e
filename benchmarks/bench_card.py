"""Whole trainings on one card: `GPRegressor.fit` twice in one process, then predictions with standard deviations.

    python benchmarks/bench_card.py --folder DATA --cases kin40k:rbf,heaton:matern32 [--profile FOLDER]

The first fit compiles kernels; the second is what a user has from then on. folder: with the files of
heaton-satellite and britain-magnetic beside those of the sets that the library knows by name.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import record
import torch

import rtgp


def heaton(folder: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Its own split: what was masked is the test set."""
    table = pd.read_csv(Path(folder) / "heaton-satellite.csv.gz")
    X = table[["Lon", "Lat"]].to_numpy()
    train, test = table.MaskTemp.notna().to_numpy(), (table.MaskTemp.isna() & table.TrueTemp.notna()).to_numpy()
    return X[train], table.MaskTemp[train].to_numpy(), X[test], table.TrueTemp[test].to_numpy()


def britain(folder: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Distinct places, in kilometres; 440,000 at random to train on."""
    table = pd.read_csv(Path(folder) / "britain-magnetic.csv.xz")
    table = table.drop_duplicates(["longitude", "latitude", "height_m"])
    east, north = table.longitude * np.cos(np.deg2rad(54.0)) * 111.2, table.latitude * 111.2
    X = np.stack([east - east.mean(), north - north.mean(), (table.height_m - table.height_m.mean()) / 1e3], 1)
    X[:, :2] /= X[:, :2].std()
    X[:, 2] /= X[:, 2].std()
    order = np.random.default_rng(0).permutation(len(X))
    train, test, y = order[:440_000], order[440_000:], table.total_field_anomaly_nt.to_numpy()
    return X[train], y[train], X[test], y[test]


def named(name: str, folder: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    split = rtgp.datasets.load(name, data_dir=folder).split(0)
    return split.train.X, split.train.y, split.test.X, split.test.y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--cases", required=True, help="set:kernel, separated by commas")
    parser.add_argument("--profile", help="folder for the profile of every second fit")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)7d %(message)s")
    warnings.simplefilter("default")
    for case in options.cases.split(","):
        name, kernel = case.split(":")
        load = {"heaton": heaton, "britain": britain}.get(name)
        X, y, X_new, y_new = load(options.folder) if load else named(name, options.folder)
        seconds, gp = [], None
        for again in (False, True):
            torch.cuda.reset_peak_memory_stats()
            gp = rtgp.GPRegressor(kernel=kernel, method=rtgp.RRCG(), random_state=0, device="cuda")
            profile = cProfile.Profile()
            begin = time.perf_counter()
            if again and options.profile:
                profile.enable()
            gp.fit(X, y)
            torch.cuda.synchronize()
            profile.disable()
            seconds.append(time.perf_counter() - begin)
            if again and options.profile:
                with (Path(options.profile) / f"{name}-{kernel}.txt").open("w") as file:
                    pstats.Stats(profile, stream=file).sort_stats("cumulative").print_stats(70)
        peak = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        mean, std = gp.predict(X_new, return_std=True)
        predicting = time.perf_counter() - begin
        rows = gp.history_.rows
        found = {
            "set": name, "n": len(X), "kernel": kernel, "first_fit": f"{seconds[0]:.1f}",
            "second_fit": f"{seconds[1]:.1f}", "predict": f"{predicting:.1f}", "test_points": len(X_new),
            "fit_gib": f"{peak:.1f}", "predict_gib": f"{torch.cuda.max_memory_allocated() / 2**30:.1f}",
            "steps": len(rows), "iterations": f"{sum(row['iterations'] for row in rows) / len(rows):.1f}",
            "loss": f"{-gp.log_marginal_likelihood_value_ / len(X) - np.log(y.std()):.5f}",
            "loss_error": f"{gp.log_marginal_likelihood_error_ / len(X):.5f}", "status": gp.fit_result_.status.value,
            "dtype": gp.dtype_, "rmse": f"{np.sqrt(np.mean((mean - y_new) ** 2)):.5g}",
            "within_95": f"{np.mean(np.abs(mean - y_new) <= 1.96 * std):.4f}",
        }  # fmt: skip
        print(found, flush=True)
        record.append("card", [found])


if __name__ == "__main__":
    main()
