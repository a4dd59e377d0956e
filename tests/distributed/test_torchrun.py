"""`torchrun -m rtgp fit`: one rank prints, one writes, a rank that is killed is named, and the same command resumes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from safetensors.torch import load_file

import rtgp
import triton_mode
from waiting import PATIENCE

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def fit(ranks: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*TORCHRUN, str(ranks), "-m", "rtgp", "fit", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


def write_table(folder: Path, n: int) -> Path:
    data = rtgp.datasets.load("us-airports").subset(n, 0)
    frame = pd.DataFrame(data.X, columns=list(data.feature_names))
    frame["elevation"] = data.y
    frame.to_csv(folder / "air.csv", index=False)
    return folder / "air.csv"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path, 151)


def test_two_processes_make_the_model_that_one_makes(table: Path) -> None:
    folder = table.parent
    asked = (str(table), "--target", "elevation", "--dtype", "float64", "--steps", "6")
    done = fit(2, *asked, "--output", str(folder / "two"), "--checkpoint", str(folder / "state"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("log marginal likelihood") == 1
    assert "RRCG (asked for, on 2 processes)" in done.stdout
    assert done.stderr.count("Model saved") == 1
    two = rtgp.GPRegressor.load(folder / "two")
    assert two.method_.operator == "auto"
    data = pd.read_csv(table)
    X, y = data[["longitude", "latitude"]], data["elevation"].to_numpy()
    one = rtgp.GPRegressor(method="rr-cg", dtype="float64", steps=6, random_state=0).fit(X, y)
    for name, value in one.hyperparameters_.items():
        assert two.hyperparameters_[name] == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(two.predict(X), one.predict(X), rtol=1e-6)
    assert json.loads((folder / "two" / "fit.json").read_text())["rows"] == 151


@pytest.mark.gpu
@triton_mode.needs_cuda
def test_one_process_on_a_card_by_nccl(tmp_path: Path) -> None:
    """The whole way: reading, training in ranks' exchanges, predicting and saving. Beside one process without ranks."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(3001, 2)), columns=["east", "north"])
    frame["height"] = np.sin(3.0 * frame["east"]) * frame["north"] + 0.1 * generator.normal(size=3001)
    table = tmp_path / "heights.csv"
    frame.to_csv(table, index=False)
    asked = (str(table), "--target", "height", "--steps", "6", "--device", "cuda", "--holdout", "0.2")
    done = fit(1, *asked, "--output", str(tmp_path / "nccl"))
    assert done.returncode == 0, done.stderr
    ranked = rtgp.GPRegressor.load(tmp_path / "nccl")
    alone = subprocess.run(
        [sys.executable, "-m", "rtgp", "fit", *asked, "--method", "rr-cg", "--output", str(tmp_path / "alone")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert alone.returncode == 0, alone.stderr
    # Six noisy steps, and the last digits differ from run to run: what is left is far less than what the data say.
    one = rtgp.GPRegressor.load(tmp_path / "alone")
    for name, value in one.hyperparameters_.items():
        slack = max(1e-2 * abs(value), 0.2 * one.hyperparameter_errors_[name])
        assert ranked.hyperparameters_[name] == pytest.approx(value, abs=slack)


@pytest.mark.parametrize(
    ("n", "ranks", "words"),
    [
        # One rank has no expert.
        pytest.param(151, 2, "one expert of all 151 rows, on 2 processes", marks=pytest.mark.slow),
        pytest.param(2051, 2, "asked for, on 2 processes", marks=pytest.mark.slow),  # three experts of 1,024
    ],
)
def test_experts_on_many_processes_make_the_files_that_one_makes(
    n: int, ranks: int, words: str, tmp_path: Path
) -> None:
    table = write_table(tmp_path, n)
    asked = (str(table), "--target", "elevation", "--dtype", "float64", "--steps", "6", "--method", "poe")
    done = fit(ranks, *asked, "--output", str(tmp_path / "many"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("log marginal likelihood") == 1
    assert done.stderr.count("Model saved") == 1
    assert words in " ".join(done.stdout.split())
    data = pd.read_csv(table)
    one = rtgp.GPRegressor(method=rtgp.POE(), dtype="float64", steps=6, random_state=0)
    one.fit(data[["longitude", "latitude"]], data["elevation"].to_numpy()).save(tmp_path / "one")
    tensors = [load_file(tmp_path / name / "model.safetensors") for name in ("many", "one")]
    assert tensors[0].keys() == tensors[1].keys()
    for name, tensor in tensors[1].items():
        torch.testing.assert_close(tensors[0][name], tensor, rtol=1e-6, atol=1e-9)
    many, alone = (json.loads((tmp_path / name / "model.json").read_text())["content"] for name in ("many", "one"))
    assert many.keys() == alone.keys()
    assert many["family"] == "experts"
    for name in ("settings", "kernel", "family", "feature_names_in", "versions"):
        assert many[name] == alone[name]


@pytest.mark.slow
def test_an_error_is_said_once(table: Path) -> None:
    done = fit(2, str(table), "--target", "height", "--output", str(table.parent / "model"))
    assert done.returncode != 0
    assert done.stderr.count("rtgp: error: ") == 1
    assert "height" in done.stderr


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_same_command_goes_on(tmp_path: Path) -> None:
    asked = [str(write_table(tmp_path, 901)), "--target", "elevation", "--dtype", "float64"]
    asked += ["--steps", "22", "--learning-rate", "0.1", "--checkpoint", str(tmp_path / "state")]
    command = [*TORCHRUN, "2", "-m", "rtgp", "fit", *asked, "--output", str(tmp_path / "model")]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120.0
    while not (tmp_path / "state" / "checkpoint-00000010.json").exists():
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    (second,) = [child for child in psutil.Process(job.pid).children() if child.environ().get("RANK") == "1"]
    second.kill()
    _, said = job.communicate(timeout=PATIENCE)
    assert job.returncode != 0
    assert "rank      : 1" in said or "ank 1 gives no sign of life" in said
    assert not (tmp_path / "model").exists()
    resumed = fit(3, *asked, "--output", str(tmp_path / "resumed"))
    assert resumed.returncode == 0, resumed.stderr
    whole = fit(2, *asked[:-2], "--output", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    one, two = (rtgp.GPRegressor.load(tmp_path / name) for name in ("whole", "resumed"))
    for name, value in one.hyperparameters_.items():
        assert two.hyperparameters_[name] == pytest.approx(value, rel=1e-5)
