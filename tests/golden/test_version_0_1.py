"""Models of version 0.1 are read; its checkpoints are gone on from, or refused with a sentence that says what to do.

`version_0_1/make.py` made them, with that version.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rtgp
from golden.version_0_1 import make
from rtgp.errors import RTGPError
from rtgp.training import CheckpointError, fit

KNOWN: dict[str, Any] = json.loads((make.FOLDER / "known.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", make.MODELS)
class TestModels:
    def test_predicts_the_same(self, name: str) -> None:
        model = rtgp.GPRegressor.load(make.FOLDER / "models" / name)
        found, wanted = make.predictions(model), KNOWN["predictions"][name]
        assert found["mean"] == pytest.approx(wanted["mean"], rel=1e-4)
        assert found["std"] == pytest.approx(wanted["std"], rel=1e-4)
        assert model.log_marginal_likelihood_value_ == KNOWN["values"][name]
        assert len(model.history_) >= 2

    def test_is_trained_and_saved_again(self, name: str, tmp_path: Path) -> None:
        """All its settings still have a meaning."""
        model = rtgp.GPRegressor.load(make.FOLDER / "models" / name)
        X, y, new = make.data()
        model.fit(X.numpy(), y.numpy()).save(tmp_path)
        again = rtgp.GPRegressor.load(tmp_path)
        assert again.method_ == model.method_
        np.testing.assert_array_equal(again.predict(new.numpy()), model.predict(new.numpy()))


@pytest.fixture
def checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy, for a training that goes on adds to it."""
    return Path(shutil.copytree(make.FOLDER / "checkpoints" / request.param, tmp_path / "checkpoint"))


# What "rr-cg" stood for.
METHODS = {"newton": {"method": rtgp.RRCG(preconditioner=rtgp.PivotedCholesky())}}
# Of parameters and loss at the end. RR-CG has another preconditioner by now, and with it other probes.
TOLERANCE = {"newton": 1e-2, "newton-cg": 1e-6, "adam": 1e-6, "lbfgs": 1e-6}


class TestCheckpoints:
    @pytest.mark.parametrize("checkpoint, name", [(name, name) for name in TOLERANCE], indirect=["checkpoint"])
    def test_goes_on_to_the_end_of_its_own_version(self, checkpoint: Path, name: str) -> None:
        own, wanted, went = make.problem(name), KNOWN["ends"][name], []
        run = {**make.RUNS[name], **METHODS.get(name, {})}
        result = fit(*own, **run, checkpoint=checkpoint, callback=lambda row, _: went.append(row))
        assert [row["step"] for row in went] == list(range(make.LAST + 1, len(result.history)))
        assert list(result.history.column("seconds"))[: make.LAST + 1] == wanted["seconds"]
        for key in ("noise", "outputscale", "lengthscale[0]", "lengthscale[1]"):
            assert went[0][key] == pytest.approx(wanted["first"][key], rel=1e-9), key
        assert result.steps == wanted["steps"]
        assert result.loss == pytest.approx(wanted["loss"], abs=TOLERANCE[name])
        for key, values in make.parameters(own[0]).items():
            assert values == pytest.approx(wanted["parameters"][key], abs=TOLERANCE[name]), key

    @pytest.mark.parametrize("checkpoint", ["newton"], indirect=True)
    def test_a_name_that_stands_for_other_settings_now(self, checkpoint: Path) -> None:
        """The sentence names the settings with which it goes on."""
        with pytest.raises(CheckpointError, match="of another problem") as caught:
            fit(*make.problem("newton"), **make.RUNS["newton"], checkpoint=checkpoint)
        assert f"there {METHODS['newton']['method']!r}" in str(caught.value)
        assert str(caught.value).endswith("Name another folder, remove this one, or ask for the same fit.")

    @pytest.mark.parametrize("checkpoint", ["lbfgs-bounds"], indirect=True)
    def test_coordinates_that_have_changed(self, checkpoint: Path) -> None:
        with pytest.raises(RTGPError, match="remove the checkpoint folder to start again"):
            fit(*make.problem("lbfgs-bounds"), **make.RUNS["lbfgs-bounds"], checkpoint=checkpoint)
