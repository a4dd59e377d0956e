"""Model folders: what goes in comes out bit for bit, and nothing damaged, foreign or absurd is believed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import (
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from safetensors.torch import load_file, save_file
from sklearn.exceptions import NotFittedError

import rtgp
from rtgp._estimator import families
from rtgp._estimator.regressor import GPRegressor
from rtgp._persistence import folder as model_folder
from rtgp._persistence.description import describe_settings, make_settings
from rtgp.errors import InputError, StorageError, UnsupportedModelError


def data(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (n, 3))
    return X, 100.0 + 20.0 * np.sin(2.0 * X[:, 0]) + rng.normal(size=n)


NEW = np.random.default_rng(1).uniform(-3.0, 3.0, (50, 3))


class Own(RBFKernel):
    pass


def own_kernels() -> list[gpytorch.kernels.Kernel]:
    bounded = PeriodicKernel(lengthscale_constraint=Interval(0.1, 30.0), period_length_constraint=GreaterThan(0.2))
    fixed = RBFKernel(ard_num_dims=2, active_dims=(0, 2))
    fixed.raw_lengthscale.requires_grad_(False)
    return [
        ScaleKernel(fixed) + MaternKernel(nu=1.5, active_dims=(1,)) * LinearKernel(),
        ScaleKernel(bounded),
        ScaleKernel(RQKernel(ard_num_dims=3)),
        SpectralMixtureKernel(num_mixtures=2, ard_num_dims=3),
    ]


@pytest.fixture(scope="module")
def fitted() -> GPRegressor:
    return GPRegressor(steps=10, random_state=0).fit(*data())


@pytest.fixture
def folder(fitted: GPRegressor, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "model")
    return tmp_path / "model"


def assert_same(loaded: GPRegressor, gp: GPRegressor) -> None:
    for flag in (False, True):
        for a, b in zip(loaded.predict(NEW, flag, not flag), gp.predict(NEW, flag, not flag), strict=True):
            assert np.array_equal(a, b)
    assert np.array_equal(loaded.sample_y(NEW[:5], 2), gp.sample_y(NEW[:5], 2))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kernel": "matern32", "dtype": "float64", "standardize": False},
        {"method": "rr-cg", "learning_rate": 0.05},
        {"method": rtgp.RRCG.paper(probes=4), "random_state": 3},
        {"method": rtgp.CG(iterations=5, preconditioner=None)},
    ],
    ids=["default", "matern", "rr-cg", "paper", "cg"],
)
def test_round_trip(settings: dict[str, Any], tmp_path: Path) -> None:
    gp = GPRegressor(**{"steps": 3, "random_state": 0, **settings}).fit(*data())
    gp.save(tmp_path / "a" / "model")
    loaded = GPRegressor.load(tmp_path / "a" / "model")
    assert_same(loaded, gp)
    assert loaded.get_params() == gp.get_params()
    assert sorted(p.name for p in (tmp_path / "a" / "model").iterdir()) == ["model.json", "model.safetensors"]
    fitted = {k: v for k, v in vars(gp).items() if k.endswith("_") and k not in ("model_", "likelihood_", "kernel_")}
    assert fitted.keys() <= vars(loaded).keys()
    for name in ("method_", "method_reason_", "dtype_", "log_marginal_likelihood_value_", "noise_variance_"):
        assert getattr(loaded, name) == getattr(gp, name)
    assert loaded.hyperparameters_ == gp.hyperparameters_
    assert repr(loaded.history_.rows) == repr(gp.history_.rows)  # by repr: NaN is not equal to itself
    assert repr(loaded.fit_result_) == repr(gp.fit_result_)
    assert np.array_equal(loaded.fit(*data()).predict(NEW), gp.predict(NEW))  # it can be trained again, the same


@pytest.mark.parametrize("kernel", own_kernels(), ids=lambda kernel: type(kernel).__name__)
def test_round_trip_of_own_kernels(kernel: gpytorch.kernels.Kernel, tmp_path: Path) -> None:
    gp = GPRegressor(kernel=kernel, steps=3, random_state=0).fit(*data())
    gp.save(tmp_path / "model")
    loaded = GPRegressor.load(tmp_path / "model")
    assert_same(loaded, gp)
    assert str(loaded.kernel) == str(kernel)
    for (_, a), (name, b) in zip(loaded.kernel.named_parameters(), kernel.named_parameters(), strict=True):
        assert torch.equal(a, b), name
        assert a.requires_grad == b.requires_grad


def test_round_trip_of_names_known_noise_and_dropped_columns(tmp_path: Path) -> None:
    X, y = data()
    frame = pd.DataFrame(np.column_stack([X[:, :2], np.ones(40)]), columns=["a", "b", "c"])
    with pytest.warns(UserWarning, match="'c'"):
        gp = GPRegressor(steps=3, random_state=np.random.RandomState(5)).fit(frame, y, noise=np.linspace(0.5, 2.0, 40))
    gp.save(tmp_path / "model")
    loaded = GPRegressor.load(tmp_path / "model")
    new = pd.DataFrame(NEW, columns=["a", "b", "c"])
    assert np.array_equal(loaded.predict(new, True)[1], gp.predict(new, True)[1])
    assert loaded.feature_names_in_.tolist() == ["a", "b", "c"]
    assert loaded.random_state == gp.seed_
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(new[["b", "a", "c"]])


def test_predicts_in_another_process(folder: Path, fitted: GPRegressor) -> None:
    np.save(folder.parent / "new.npy", NEW)
    program = (
        "import sys, numpy as np; from rtgp._estimator.regressor import GPRegressor; d = sys.argv[1];"
        "np.save(d + '/out.npy', GPRegressor.load(d + '/model').predict(np.load(d + '/new.npy')))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run([sys.executable, "-c", program, str(folder.parent)], check=True, env=environment)
    assert np.array_equal(np.load(folder.parent / "out.npy"), fitted.predict(NEW))


def test_saving_over_a_model_replaces_it_and_leaves_other_files(folder: Path, fitted: GPRegressor) -> None:
    (folder / "report.html").write_text("keep me")
    other = GPRegressor(kernel="matern12", steps=2).fit(*data())
    for gp in (other, fitted, other):
        gp.save(folder)
        assert np.array_equal(GPRegressor.load(folder).predict(NEW), gp.predict(NEW))
        assert len(list(folder.iterdir())) == 3
    assert (folder / "report.html").read_text() == "keep me"


@pytest.mark.parametrize("call", [1, 2])
def test_a_save_that_fails_leaves_what_was_there(
    call: int, folder: Path, fitted: GPRegressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    calls = 0
    replace = os.replace

    def failing(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError("disk full")
        replace(*arguments)

    monkeypatch.setattr(model_folder.os, "replace", failing)
    with pytest.raises(StorageError, match=r"could not be written.*disk full"):
        GPRegressor(kernel="matern12", steps=1).fit(*data()).save(folder)
    monkeypatch.undo()
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before.items() <= after.items()
    assert not [name for name in after if name.endswith(".part")]
    assert_same(GPRegressor.load(folder), fitted)

    calls = 0
    monkeypatch.setattr(model_folder.os, "replace", failing)
    with pytest.raises(StorageError):
        fitted.save(folder.parent / "new" / "model")
    if call == 1:
        assert not (folder.parent / "new").exists()


def test_what_cannot_be_saved_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        GPRegressor().save(tmp_path / "model")
    with pytest.raises(UnsupportedModelError, match=r"Cannot save a kernel of type .*Own"):
        GPRegressor(kernel=ScaleKernel(Own()), steps=1).fit(*data()).save(tmp_path / "model")
    odd = RBFKernel(lengthscale_constraint=GreaterThan(0.0, transform=torch.abs, inv_transform=torch.abs))
    odd.lengthscale = 1.0
    with pytest.raises(UnsupportedModelError, match="constraint"):
        GPRegressor(kernel=ScaleKernel(odd), steps=1).fit(*data()).save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    prior = ScaleKernel(RBFKernel(lengthscale_prior=gpytorch.priors.GammaPrior(3.0, 6.0)))
    with pytest.warns(UserWarning, match="priors of the kernel are not saved"):
        GPRegressor(kernel=prior, steps=1).fit(*data()).save(tmp_path / "model")


def test_files_of_others_are_left_alone(fitted: GPRegressor, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text('{"name": "of another program"}')
    with pytest.raises(InputError, match="another program"):
        fitted.save(tmp_path)
    with pytest.raises(InputError, match="another program"):
        GPRegressor.load(tmp_path)
    with pytest.raises(InputError, match="which is a file"):
        fitted.save(tmp_path / "model.json")
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]


def test_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a saved model: no such folder"):
        GPRegressor.load(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"is not a saved model: it has no model\.json"):
        GPRegressor.load(tmp_path)


def test_a_flipped_byte_or_a_file_cut_short_is_found(folder: Path) -> None:
    for name in ("model.safetensors", "model.json"):
        path = folder / name
        whole = path.read_bytes()
        for place in np.random.default_rng(0).integers(len(whole), size=25):
            flipped = bytearray(whole)
            flipped[place] ^= 0x10
            path.write_bytes(flipped)
            # Between two words of JSON a byte may mean nothing; then everything else is as it was.
            if name == "model.json" and _same_json(flipped, whole):
                continue
            with pytest.raises(InputError, match=r"damaged|not a saved model|format version"):
                GPRegressor.load(folder)
        for size in (0, 7, len(whole) // 2, len(whole) - 2):
            path.write_bytes(whole[:size])
            with pytest.raises(InputError, match="damaged"):
                GPRegressor.load(folder)
        path.write_bytes(whole)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="is missing"):
        GPRegressor.load(folder)


def _same_json(a: bytes, b: bytes) -> bool:
    try:
        return bool(json.loads(a) == json.loads(b))
    except ValueError:
        return False


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the description and give it a checksum that fits: a file made to deceive."""
    path = folder / "model.json"
    record = json.loads(path.read_text())
    change(record)
    described = {key: value for key, value in record.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    digest.update((folder / "model.safetensors").read_bytes())
    record["checksum"] = digest.hexdigest()
    path.write_text(json.dumps(record))


SPECTRAL = {"class": "SpectralMixtureKernel", "num_mixtures": 10**12, "ard_num_dims": 3}
NESTED: dict[str, Any] = {"class": "RBFKernel"}
for _ in range(60):
    NESTED = {"class": "ScaleKernel", "kernels": [NESTED]}


@pytest.mark.parametrize(
    "place, value, words",
    [
        (("version",), 4, "format version 4; this rtgp reads up to 3. Update rtgp"),
        (("version",), "1", "format version '1'"),
        (("tensors",), "../../secret", "names '../../secret'"),
        (("tensor_bytes",), 10**15, "expected 1000000000000000"),
        (("content",), 3, "no table"),
        (("content", "kernel"), "os.system", "unknown kernel 'os.system'"),
        (("content", "kernel"), {"class": "GridInterpolationKernel"}, "unknown kernel class"),
        (("content", "kernel"), {"class": "RBFKernel", "ard_num_dims": 10**12}, "ard_num_dims = 1000000000000"),
        (("content", "kernel"), {"class": "RBFKernel", "active_dims": [99]}, "active_dims outside the 3"),
        (("content", "kernel"), SPECTRAL, "num_mixtures = 1000000000000"),
        (("content", "kernel"), NESTED, "a kernel of more than"),
        (("content", "kernel"), {"class": "AdditiveKernel", "kernels": [{"class": "RBFKernel"}] * 5000}, "more than"),
        (("content", "kernel"), {"class": "RBFKernel", "constraints": {"raw_lengthscale_constraint": 1}}, "constraint"),
        (("content", "kernel"), "matern99", "unknown kernel"),
        (("content", "settings", "method"), {"class": "Popen", "args": "ls"}, "unknown settings class 'Popen'"),
        (("content", "settings", "method"), {"class": "RRCG", "probes": -1}, "positive integer"),
        (("content", "settings", "method"), {"class": "RRCG", "magic": 1}, "unknown setting"),
        (("content", "n_features_in"), 1, "columns outside the 1 input columns"),
        (("content", "feature_names_in"), ["a"], "1 feature names for 3 columns"),
        (("content", "fitted", "dtype_"), "float32", "training data of torch.float64"),
        (("content", "noise_is_known"), True, "makes no sense"),
        (("content", "result"), None, "makes no sense"),
        (("content", "y_scale"), 0.0, "a scale that is not positive"),
        (("content", "y_mean"), "float:nan", "no finite mean"),
        (("content", "n_features_in"), 10**12, "1000000000000 input columns"),
        (("content", "n_features_in"), "float:inf", "inf input columns"),
        (("content", "fitted", "noise_variance_"), "float:nan", "a noise of variance nan"),
        (("content", "fitted", "seed_"), -1, "a seed of -1"),
        (("content", "settings", "device"), "meta", "a device 'meta'"),
    ],
)
def test_forged_descriptions_are_refused(place: tuple[str, ...], value: Any, words: str, folder: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        for key in place[:-1]:
            record = record[key]
        record[place[-1]] = value

    forge(folder, change)
    with pytest.raises(InputError) as caught:
        GPRegressor.load(folder)
    assert words in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["state.likelihood.noise_covar.raw_noise", "train_targets", "x_scale"])
def test_numbers_that_are_none_are_refused(name: str, value: float, folder: Path) -> None:
    """Also where the checksum fits: no NaN reaches a parameter."""
    tensors = load_file(folder / "model.safetensors")
    tensors[name].reshape(-1)[0] = value
    save_file(tensors, folder / "model.safetensors")
    forge(folder, lambda record: None)
    with pytest.raises(InputError, match=rf"{name} holds NaN or infinity"):
        GPRegressor.load(folder)


def test_columns_that_the_description_does_not_name(tmp_path: Path) -> None:
    kernel = ScaleKernel(RBFKernel(active_dims=(0, 2)))
    GPRegressor(kernel=kernel, steps=1, random_state=0).fit(*data()).save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("state.covar_module.base_kernel.active_dims", "kernel.base_kernel.active_dims"):
        changed = {**tensors, name: torch.tensor([0, 1_000_000])}
        save_file(changed, tmp_path / "model.safetensors")
        size = (tmp_path / "model.safetensors").stat().st_size
        forge(tmp_path, lambda record, size=size: record.update(tensor_bytes=size))
        with pytest.raises(InputError, match="is another than in the description"):
            GPRegressor.load(tmp_path)


def test_too_many_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gp = GPRegressor(method=rtgp.POE(expert_size=10), steps=1, random_state=0).fit(*data())
    gp.save(tmp_path / "model")
    monkeypatch.setattr(families, "MOST_EXPERTS", 3)
    with pytest.raises(InputError, match=r"tensors of \[4\] experts"):
        GPRegressor.load(tmp_path / "model")
    with pytest.raises(UnsupportedModelError, match="Cannot save 4 experts"):
        gp.save(tmp_path / "other")


def test_deep_json_and_a_huge_description_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="is not JSON"):
        GPRegressor.load(folder)
    monkeypatch.setattr(model_folder, "_LARGEST_DESCRIPTION", 1000)
    with pytest.raises(InputError, match="larger than any description"):
        GPRegressor.load(folder)


def test_a_device_that_is_not_here(folder: Path) -> None:
    forge(folder, lambda record: record["content"]["settings"].update(device="cuda"))
    if not torch.cuda.is_available():
        assert GPRegressor.load(folder).device_ == "cpu"
    assert GPRegressor.load(folder, device="cpu").device_ == "cpu"


def test_settings_objects_survive() -> None:
    rules = [
        rtgp.truncation.ExponentialDecay(0.1, 20),
        rtgp.truncation.Geometric(0.1),
        rtgp.truncation.ResidualDriven(0.2),
        rtgp.truncation.Tabulated([1.0, 0.5]),
    ]
    for rule in rules:
        method = rtgp.RRCG(truncation=rule, preconditioner=rtgp.PivotedCholesky(7, "greedy"))
        assert make_settings(json.loads(json.dumps(describe_settings(method)))) == method
    with pytest.raises(UnsupportedModelError, match="rtgp's own methods"):
        describe_settings(object())
