"""Hostile models and checkpoints: also such whose checksums fit, so that what lies behind them is reached."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from gpytorch.kernels import LinearKernel, PeriodicKernel, RBFKernel, ScaleKernel, SpectralMixtureKernel
from torch import Tensor

import rtgp
from fuzz.mutations import damage, damage_tree
from gp_models import airports, make
from rtgp._estimator.regressor import GPRegressor
from rtgp.training import fit
from rtgp.training._checkpoint import seal

Files = dict[str, bytes]
NAN, INF = float("nan"), float("inf")
STEPS = 4  # of the training that goes on from a checkpoint
RUNS: dict[str, dict[str, Any]] = {
    "average-information": {"method": "rr-cg", "tolerance": 1e-9},
    "adam": {"method": rtgp.CG(5), "optimizer": "adam"},
    "lbfgs": {"method": "cholesky"},
}


@cache
def models() -> tuple[Files, ...]:
    chance = np.random.default_rng(2)
    X = chance.uniform(-2.0, 2.0, (16, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * chance.normal(size=16)
    fixed = RBFKernel(ard_num_dims=1, active_dims=(1,))
    fixed.raw_lengthscale.requires_grad_(False)
    settings: tuple[dict[str, Any], ...] = (
        {"method": rtgp.RRCG(probes=2)},
        {"kernel": "matern32", "dtype": "float64"},
        {"kernel": ScaleKernel(fixed) + PeriodicKernel() * LinearKernel()},
        {"kernel": SpectralMixtureKernel(num_mixtures=2, ard_num_dims=2)},
        {"method": rtgp.SVGP(inducing=4)},
        {"method": rtgp.POE(expert_size=8)},
    )
    found = []
    for chosen in settings:
        with tempfile.TemporaryDirectory() as folder:
            GPRegressor(**{"steps": 1, "random_state": 0, **chosen}).fit(X, y).save(folder)
            found.append({path.name: path.read_bytes() for path in Path(folder).iterdir()})
    return tuple(found)


def model(chance: random.Random) -> Files:
    files = dict(chance.choice(models()))
    if chance.random() < 0.2:
        name = chance.choice(sorted(files))
        files[name] = damage(files[name], [other[name] for other in models()], chance)
        return files
    record = json.loads(files["model.json"])
    blob = files["model.safetensors"]
    kind = chance.random()
    if kind < 0.5:
        record["content"] = damage_tree(record["content"], chance)
    elif kind < 0.55:
        record = damage_tree(record, chance)
        record = record if isinstance(record, dict) else {"record": record}
    else:
        blob = _damage_tensors(blob, chance)
        if chance.random() < 0.98:
            record["tensor_bytes"] = len(blob)
    described = {key: value for key, value in record.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    digest.update(blob)
    record["checksum"] = digest.hexdigest()
    return {"model.json": json.dumps(record).encode(), "model.safetensors": blob}


def _damage_tensors(blob: bytes, chance: random.Random) -> bytes:
    """The header of the file, or the tensors themselves: other numbers, shapes, types and names."""
    if chance.random() < 0.4:
        length = struct.unpack("<Q", blob[:8])[0]
        header = json.dumps(damage_tree(json.loads(blob[8 : 8 + length]), chance)).encode()
        return struct.pack("<Q", len(header)) + header + blob[8 + length :]
    tensors = safetensors.torch.load(blob)
    for _ in range(chance.choice((1, 1, 2, 5))):
        name = chance.choice(sorted(tensors))
        changed = _change(tensors.pop(name), chance)
        if changed is not None:
            tensors[name if chance.random() < 0.9 else chance.choice(("x", "state.x", "columns", "noise"))] = changed
    return safetensors.torch.save({name: tensor.contiguous().clone() for name, tensor in tensors.items()})


def _change(tensor: Tensor, chance: random.Random) -> Tensor | None:
    kind = chance.randrange(7)
    if kind == 0:
        return None
    if kind == 1:
        return tensor.to(chance.choice((torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8)))
    if kind == 2:
        return tensor.reshape(-1).repeat(chance.choice((0, 1, 2, 100)))
    if kind == 3:
        return tensor[None] if chance.random() < 0.5 or not tensor.numel() else tensor.reshape(-1)[0].clone()
    if kind == 4 and tensor.ndim:
        return tensor[: len(tensor) // 2]
    changed = tensor.clone().reshape(-1)
    if changed.numel() and changed.is_floating_point():
        value = chance.choice((NAN, INF, -INF, 0.0, -1.0, 1e300, -1e300, 1e-300))
        changed[chance.randrange(changed.numel())] = max(min(value, 1e38), -1e38) if abs(value) < INF else value
    elif changed.numel():
        changed[chance.randrange(changed.numel())] = chance.choice(
            (-1, 0, 5, 10**6 if changed.element_size() > 2 else 7)
        )
    return changed.reshape(tensor.shape)


@cache
def _data() -> tuple[Tensor, Tensor]:
    return airports(12)


def resume(folder: Path, run: str, stop: int | None = None) -> torch.nn.Module:
    """Train from what is in the folder."""
    X, y = _data()
    trained = make(X, y)
    every = {"checkpoint": folder, "checkpoint_every": 1, "subset_start": False}
    fit(
        trained,
        trained.likelihood,
        X,
        y,
        steps=STEPS,
        callback=lambda row, _: row["step"] == stop,
        **every,
        **RUNS[run],
    )
    return trained


@cache
def checkpoints() -> dict[str, Files]:
    found = {}
    for run in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            resume(Path(folder), run, stop=1)
            sealed = sorted(Path(folder).glob("*.json"))[-1]
            found[run] = {path.name: path.read_bytes() for path in (sealed, sealed.with_suffix(".safetensors"))}
        with tempfile.TemporaryDirectory() as folder:
            resume(Path(folder), run)
            sealed = sorted(Path(folder).glob("*.json"))[-1]
            found[f"{run}, finished"] = {
                path.name: path.read_bytes() for path in (sealed, sealed.with_suffix(".safetensors"))
            }
    return found


def checkpoint(chance: random.Random) -> tuple[str, Files]:
    """(which training, its files)."""
    run = chance.choice(sorted(checkpoints()))
    files = dict(checkpoints()[run])
    run = run.partition(",")[0]
    sealed, tensors = sorted(files)
    if chance.random() < 0.2:
        name = chance.choice((sealed, tensors))
        files[name] = damage(files[name], list(files.values()), chance)
        return run, files
    body = json.loads(files[sealed])
    del body["checksum"]
    if chance.random() < 0.7:
        body["state"] = damage_tree(body["state"], chance)
        if chance.random() < 0.05:
            body = damage_tree(body, chance)
    else:
        files[tensors] = _damage_tensors(files[tensors], chance)
    if chance.random() < 0.98:
        body["tensors"] = hashlib.sha256(files[tensors]).hexdigest()
    files[sealed] = seal(body)
    return run, files
