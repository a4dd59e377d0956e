"""Every number of a checkpoint, made senseless one at a time under a checksum that fits: refused, never trained on."""

from __future__ import annotations

import copy
import hashlib
import json
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import rtgp
from gp_models import airports, make
from rtgp.training import CheckpointError, fit
from rtgp.training._checkpoint import seal

POINTS, STEPS, SAVED = 24, 6, 4  # saved after so many steps, of so many
RUNS: dict[str, dict[str, Any]] = {
    "rr-cg": {"method": rtgp.RRCG(probes=4), "optimizer": "average-information", "tolerance": 0.0},
    "rr-cg, adam": {"method": rtgp.RRCG(probes=4), "optimizer": "adam"},
    "rr-cg, no preconditioner": {"method": rtgp.RRCG(probes=4, preconditioner=None), "optimizer": "adam"},
    "cholesky, lbfgs": {"method": "cholesky"},
    "rff": {"method": rtgp.RFF(features=10, redraw=False), "optimizer": "adam"},
    "ss-rff": {"method": "ss-rff", "optimizer": "adam"},
    "sggp": {"method": rtgp.SGGP(neighbours=5, centres=6), "optimizer": "adam"},
}
Place = tuple[Any, ...]
# What each run must at least have been tried with: a state that is not saved would pass unseen.
EXPECTED = {
    "rr-cg": 70,
    "rr-cg, adam": 65,
    "rr-cg, no preconditioner": 15,
    "cholesky, lbfgs": 6,
    "rff": 3,
    "ss-rff": 20,
    "sggp": 6,
}
HARMLESS = {
    # An objective serves systems of any size, and forgets at its first call what it holds of another.
    ("last_solve", "one row less"),
    ("sets", "one row less"),
}


def resume(folder: Path, run: str, stop: int | None = None) -> None:
    X, y = airports(POINTS)
    model = make(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fit(
            model,
            model.likelihood,
            X,
            y,
            steps=STEPS,
            checkpoint=folder,
            checkpoint_every=1,
            subset_start=False,
            callback=lambda row, _: row["step"] == stop,
            **RUNS[run],
        )


@cache
def checkpoint(run: str) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Name, content and tensors of the last one of an interrupted training."""
    with tempfile.TemporaryDirectory() as folder:
        resume(Path(folder), run, stop=SAVED - 1)
        path = sorted(Path(folder).glob("*.json"))[-1]
        body = json.loads(path.read_bytes())
        del body["checksum"]
        return path.name, body, safetensors.torch.load(path.with_suffix(".safetensors").read_bytes())


def leaves(packed: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """(place, value) of all numbers and tensors of a packed state; of the rows of a history those of the first."""
    if isinstance(packed, dict) and "dict" in packed:
        for key, value in packed["dict"]:
            yield from leaves(value, (*place, key))
    elif isinstance(packed, dict) and ("list" in packed or "tuple" in packed):
        for i, value in enumerate(packed.get("list", packed.get("tuple"))):
            if i == 0 or place != ("rows",):
                yield from leaves(value, (*place, i))
    elif packed is not None and not isinstance(packed, str):
        yield place, packed


def put(packed: Any, place: Place, value: Any) -> None:
    for key in place[:-1]:
        packed = _child(packed, key)
    if "dict" in packed:
        next(pair for pair in packed["dict"] if pair[0] == place[-1])[1] = value
    else:
        packed.get("list", packed.get("tuple"))[place[-1]] = value


def _child(packed: Any, key: Any) -> Any:
    if "dict" in packed:
        return next(value for name, value in packed["dict"] if name == key)
    return packed.get("list", packed.get("tuple"))[key]


def changes(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if tensor.is_floating_point():
        yield "NaN", torch.full_like(tensor, torch.nan)
        yield (
            "one infinity",
            torch.cat([torch.tensor([torch.inf], dtype=tensor.dtype), tensor.flatten()[1:]]).reshape(tensor.shape)
            if tensor.numel()
            else tensor[None],
        )
        yield "type", tensor.to(torch.int64)
    else:
        yield "too large", torch.full_like(tensor, torch.iinfo(tensor.dtype).max)
        yield "type", tensor.to(torch.float64)
    yield "one dimension more", tensor[None]
    if tensor.ndim and len(tensor):
        yield "one row less", tensor[:-1]


def damaged(body: dict[str, Any], tensors: dict[str, Tensor]) -> Iterator[tuple[Place, str, dict[str, Any], bytes]]:
    """Place, kind of damage, content and tensors of a checkpoint with one of its numbers made senseless."""
    blob = safetensors.torch.save(tensors)
    for place, value in leaves(body["state"]):
        if isinstance(value, dict) and "tensor" in value:
            for kind, changed in changes(tensors[value["tensor"]]):
                made = {**tensors, value["tensor"]: changed.clone().contiguous()}
                yield place, kind, body, safetensors.torch.save(made)
        for kind, other in (("NaN", {"float": "nan"}), ("type", "x"), ("type", {"list": []}), ("nothing", None)):
            changed_body = copy.deepcopy(body)
            put(changed_body["state"], place, other)
            yield place, kind, changed_body, blob


def outcome(folder: Path, run: str, name: str, body: dict[str, Any], blob: bytes) -> str:
    folder.mkdir()
    path = folder / name
    path.with_suffix(".safetensors").write_bytes(blob)
    path.write_bytes(seal({**body, "tensors": hashlib.sha256(blob).hexdigest()}))
    try:
        resume(folder, run)
    except CheckpointError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "trained"


# The second is the same objective by another optimiser; much of both is that of "rr-cg, no preconditioner".
SLOW = {"rr-cg", "rr-cg, adam"}


@pytest.mark.parametrize("run", [pytest.param(run, marks=pytest.mark.slow if run in SLOW else ()) for run in RUNS])
def test_every_number_of_an_objective(run: str, tmp_path: Path) -> None:
    name, body, tensors = checkpoint(run)
    found = {}
    for i, (place, kind, changed, blob) in enumerate(damaged(body, tensors)):
        if place[:2] == ("problem", "objective"):
            found[place[2], kind] = outcome(tmp_path / str(i), run, name, changed, blob)
    assert len(found) >= EXPECTED[run]
    allowed = {entry: "trained" for entry in HARMLESS if entry in found}
    assert {entry: came for entry, came in found.items() if came != "refused" and entry not in allowed} == {}


def test_whole_ones_go_on(tmp_path: Path) -> None:
    """What is refused above is refused for its damage."""
    for i, run in enumerate(RUNS):
        name, body, tensors = checkpoint(run)
        assert outcome(tmp_path / str(i), run, name, body, safetensors.torch.save(tensors)) == "trained"


FORGED: dict[str, Any] = {
    "no orthonormal columns": ("preconditioner_q", lambda q: 1.01 * q),
    "columns that are alike": ("preconditioner_q", lambda q: q[:, :1].expand_as(q)),
    "not triangular": ("preconditioner_c", lambda c: c + 0.1),
    "not positive": ("preconditioner_c", torch.neg),
    "a point twice": ("control_pivots", lambda pivots: pivots[:1].expand_as(pivots)),
    "a point that is not there": ("control_pivots", lambda pivots: pivots + POINTS),
    "more than all of it": ("whole", lambda guess: guess + 1.0),
    "correlated by more than 1": ("control_gram", lambda gram: gram + 10.0 * gram.max() * (1.0 - torch.eye(2))),
    "a negative square": ("control_gram", lambda gram: gram - 2.0 * torch.diag(gram.diagonal())),
    "negative noise": ("first_noise", lambda noise: -1.0 - noise),
    "negative usual noise": ("control_usual", lambda noise: -1.0 - noise),
    "no decay": ("decay", lambda decay: 0.0 * decay),
    "negative growth": ("growth", lambda growth: -1.0 - growth),
}


@pytest.mark.parametrize("what", FORGED)
def test_finite_numbers_that_cannot_be(what: str, tmp_path: Path) -> None:
    """Of the right shape and type: an estimate with these would be biased, or fail in a later step."""
    field, change = FORGED[what]
    name, body, tensors = checkpoint("rr-cg")
    key = f"/problem/objective/{field}"
    made = {**tensors, key: change(tensors[key]).to(tensors[key].dtype).clone().contiguous()}
    assert outcome(tmp_path / "forged", "rr-cg", name, body, safetensors.torch.save(made)) == "refused"


@pytest.mark.parametrize(
    ("field", "value"), [("builds", 0), ("calls", -1), ("fresh", -3), ("wasted", -1), ("all_calls", -1)]
)
def test_counts_that_cannot_be(field: str, value: int, tmp_path: Path) -> None:
    name, body, tensors = checkpoint("rr-cg")
    changed = copy.deepcopy(body)
    put(changed["state"], ("problem", "objective", field), value)
    assert outcome(tmp_path / "forged", "rr-cg", name, changed, safetensors.torch.save(tensors)) == "refused"
