"""Checkpoints whose checksum fits and whose content does not: refused in words, within little memory and time."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fuzz import saved
from rtgp.errors import RTGPError
from rtgp.training import CheckpointError
from rtgp.training._checkpoint import seal


def forge(folder: Path, run: str, change: Callable[[dict[str, Any]], None] = lambda body: None, **tensors: Any) -> Path:
    """A checkpoint of a run with changes, sealed again; the path of its JSON file."""
    folder.mkdir()
    for name, content in saved.checkpoints()[run].items():
        (folder / name).write_bytes(content)
    path = next(folder.glob("*.json"))
    body = json.loads(path.read_bytes())
    del body["checksum"]
    if tensors:
        held = safetensors.torch.load(path.with_suffix(".safetensors").read_bytes())
        blob = safetensors.torch.save({**held, **{f"/{k.replace('__', '/')}": v for k, v in tensors.items()}})
        path.with_suffix(".safetensors").write_bytes(blob)
        body["tensors"] = hashlib.sha256(blob).hexdigest()
    change(body)
    path.write_bytes(seal(body))
    return path


def entry(body: dict[str, Any], *keys: str) -> list[Any]:
    """The [key, value] pair at a place of the packed state."""
    packed: Any = body["state"]
    for key in keys:
        found = next(pair for pair in packed["dict"] if pair[0] == key)
        packed = found[1]
    return found


def put(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        entry(body, *keys)[1] = value

    return change


@pytest.mark.parametrize("run", saved.RUNS)
def test_whole_ones_are_gone_on_with(run: str, tmp_path: Path) -> None:
    forge(tmp_path / "state", run)
    saved.resume(tmp_path / "state", run)


@pytest.mark.parametrize(
    ("run", "change"),
    [
        ("adam", put("optimizer", "end", value=10**12)),  # would train for ever
        ("adam", put("optimizer", "done", value=-5)),
        ("adam", put("optimizer", "decay_from", value="x")),
        ("adam", put("optimizer", "optimizer", value={"dict": []})),
        ("adam", put("rows", value=3)),
        ("average-information", put("optimizer", "done", value=None)),
        ("average-information", put("optimizer", "reach", value={"float": "inf"})),
        ("average-information", put("optimizer", "metric", value={"tensor": "/optimizer/accepted", "device": "cpu"})),
        ("lbfgs", put("optimizer", "values", value={"list": []})),
        ("lbfgs", put("optimizer", "points", value=0)),
        ("lbfgs, finished", put("finished", value={"dict": [["status", "won"]]})),
        ("adam", put("problem", "leaves", value={"list": []})),
        ("adam", put("problem", "generator", value={"tensor": "/problem/leaves/0", "device": "cpu"})),
        ("adam", put("problem", "generator", value={"tensor": "nowhere", "device": "abacus"})),
        ("adam", lambda body: body.update(format="1")),
        ("adam", lambda body: body.update(problem=[])),
        ("adam", lambda body: body.update(state=[1, 2])),
    ],
)
def test_senseless_content(run: str, change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    forge(tmp_path / "state", run, change)
    with pytest.raises(CheckpointError, match=r"remove the (checkpoint )?folder") as caught:
        saved.resume(tmp_path / "state", run.partition(",")[0])
    assert isinstance(caught.value, RTGPError)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("run", ["adam", "average-information"])
def test_no_nan_comes_from_a_checkpoint(run: str, value: float, tmp_path: Path) -> None:
    held = safetensors.torch.load(next(v for k, v in saved.checkpoints()[run].items() if k.endswith("tensors")))
    forge(tmp_path / "state", run, problem__leaves__0=torch.full_like(held["/problem/leaves/0"], value))
    with pytest.raises(CheckpointError, match="finite parameters"):
        saved.resume(tmp_path / "state", run)


def test_one_of_a_card_goes_on_without(tmp_path: Path) -> None:
    def moved(body: dict[str, Any]) -> None:
        text = json.dumps(body["state"]).replace('"device": "cpu"', '"device": "cuda:3"')
        body["state"] = json.loads(text)

    forge(tmp_path / "there", "average-information", moved)
    forge(tmp_path / "here", "average-information")
    found = [saved.resume(tmp_path / name, "average-information") for name in ("there", "here")]
    for a, b in zip(*(model.parameters() for model in found), strict=True):
        assert torch.equal(a, b)


def test_deep_json(tmp_path: Path) -> None:
    path = forge(tmp_path / "state", "adam")
    path.write_bytes(b'{"checksum": ' + b"[" * 100_000)
    with pytest.raises(CheckpointError, match="no readable JSON"):
        saved.resume(tmp_path / "state", "adam")


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
def test_a_pipe_in_place_of_a_file(tmp_path: Path) -> None:
    """It would be read for ever."""
    path = forge(tmp_path / "state", "adam")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="no file"):
        saved.resume(tmp_path / "state", "adam")


def test_files_that_claim_a_terabyte(tmp_path: Path) -> None:
    for ending in (".safetensors", ".json"):
        path = forge(tmp_path / ending, "adam").with_suffix(ending)
        with path.open("r+b") as file:
            file.truncate(2**40)
        with pytest.raises(CheckpointError, match="too large to be read"):
            saved.resume(tmp_path / ending, "adam")
