"""Too little memory, on the machine or on a card: a sentence that says what takes less, and nothing is changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import rtgp
from faults import scenes
from gp_models import airports, make
from rtgp import _memory as memory
from rtgp._cli import app
from rtgp._methods.facts import AnyMethod
from rtgp.errors import OutOfMemoryError
from rtgp.operators._dense import DenseOperator
from rtgp.operators._tiled import TiledOperator
from rtgp.training import ConvergenceWarning, FitStatus, fit

PROGRAM = Path(__file__).with_name("limited_memory.py")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs limits of Linux")


WORDS = {
    "cholesky": ["Cholesky on 30,000 points needs 13.4 GiB", "Take method='rr-cg'"],
    "dense": ["The likelihood of 30,000 points by RRCG does not fit", "Take operator='tiled'"],
    "covariance": ["The prediction does not fit", "fewer"],
    "table": ["sparse.csv: the file has 2048.0 GiB", "Read fewer rows"],
    "cholesky_unasked": ["two matrices of 30,000 x 30,000", "'rr-cg'"],
    "drop_in": ["The likelihood of 30,000 points by RRCG", "'tiled'"],
    "tiled": ["trained on 20000 points"],
}


@linux
@pytest.mark.parametrize(
    "scenes",
    [
        ("cholesky", "covariance", "table"),
        pytest.param(("cholesky_unasked", "dense", "drop_in", "tiled"), marks=pytest.mark.slow),
    ],
    ids=lambda scenes: scenes[0],
)
def test_limited_address_space(scenes: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), *scenes], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(scenes), lines
    for scene, line in zip(scenes, lines, strict=True):
        for word in WORDS[scene]:
            assert word in line


def run_out(monkeypatch: pytest.MonkeyPatch, error: BaseException, calls: int = 0) -> None:
    """The operator of the training runs out of memory in a product after so many."""
    left = [calls]
    matmul = DenseOperator.matmul

    def failing(self, v):
        left[0] -= 1
        if left[0] < 0:
            raise error
        return matmul(self, v)

    monkeypatch.setattr(DenseOperator, "matmul", failing)


ERRORS = {
    "card": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "torch": RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    "python": MemoryError(),
}


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [
        ("average-information", "card"),
        ("adam", "torch"),
        ("lbfgs", "cublas"),
        ("lbfgs", "python"),
    ],
)
def test_at_a_later_step(optimizer: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is no bad point to step back from: the kernel matrix is no longer stored, and training goes on."""
    X, y = airports(60)
    settings = {"method": "rr-cg", "optimizer": optimizer, "steps": 6, "subset_start": False, "checkpoint_every": 1}
    whole, model = make(X, y), make(X, y)
    fit(whole, whole.likelihood, X, y, **settings)
    count = [0]

    def later(row, _) -> None:
        if row["step"] == 2:
            run_out(monkeypatch, ERRORS[kind])
        count[0] = row["step"]

    result = fit(model, model.likelihood, X, y, **settings, callback=later)
    assert result.steps == count[0] + (optimizer != "lbfgs") > 3
    assert "no longer stored" in result.method_reason
    for found, wanted in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["average-information", "adam", "lbfgs"])
def test_at_a_later_step_with_nothing_left_to_change(
    optimizer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Training ends at once, at good parameters, and can be gone on with."""
    X, y = airports(60)
    settings = {"method": rtgp.RRCG(operator="dense"), "optimizer": optimizer, "steps": 6, "subset_start": False}
    settings["checkpoint_every"] = 1
    whole, model = make(X, y), make(X, y)
    fit(whole, whole.likelihood, X, y, **settings)
    count = [0]

    def later(row, _) -> None:
        if row["step"] == 2:
            run_out(monkeypatch, ERRORS["card"])
        count[0] = row["step"]

    with pytest.warns(ConvergenceWarning, match=r"60 points.*does not fit.*Take operator='tiled'"):
        result = fit(model, model.likelihood, X, y, **settings, checkpoint=tmp_path, callback=later)
    assert result.status is FitStatus.LIMIT
    assert count == [2]
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    monkeypatch.undo()
    again = make(X, y)
    fit(again, again.likelihood, X, y, **settings, checkpoint=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), whole.parameters(), strict=True))


@pytest.mark.parametrize(
    ("method", "words"),
    [(rtgp.SVGP(inducing=5), "fewer inducing points"), (rtgp.POE(expert_size=5), "smaller experts")],
)
def test_methods_with_a_training_of_their_own(
    method: rtgp.SVGP | rtgp.POE, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ERRORS["torch"]

    for name in ("train_variational", "train_experts"):
        monkeypatch.setattr(f"rtgp._estimator.fitting.{name}", fail)
    X, y = airports(20)
    with pytest.raises(OutOfMemoryError, match=rf"Training by {type(method).__name__} on 20 points.*{words}"):
        rtgp.GPRegressor(method=method, random_state=0, steps=1).fit(X.numpy(), y.numpy())


def test_other_errors_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = airports(60)
    model = make(X, y)
    run_out(monkeypatch, RuntimeError("expected scalar type"))
    with pytest.raises(RuntimeError, match="scalar type") as caught:
        fit(model, model.likelihood, X, y, "rr-cg", steps=2, subset_start=False)
    assert not isinstance(caught.value, rtgp.errors.RTGPError)


def test_the_command_says_it_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,y\n" + "\n".join(f"{i},{i % 3}" for i in range(40)))
    run_out(monkeypatch, ERRORS["card"])
    monkeypatch.setattr(TiledOperator, "matmul", DenseOperator.matmul)  # nor that
    method = ["--method", "rr-cg", "--steps", "2"]
    result = CliRunner().invoke(app, ["fit", str(tmp_path / "d.csv"), "-t", "y", "-o", str(tmp_path / "m"), *method])
    assert result.exit_code == 1
    lines = [line for line in result.output.splitlines() if line.startswith("rtgp: error: ")]
    assert len(lines) == 1
    assert "operator='tiled'" in lines[0]
    assert scenes.names(tmp_path) == ["d.csv"]


def test_every_method_has_a_remedy_of_its_own() -> None:
    methods = (
        rtgp.Cholesky(), rtgp.CG(), rtgp.RRCG(), rtgp.RFF(), rtgp.SSRFF(), rtgp.SVGP(), rtgp.POE(), rtgp.SGGP(),
        rtgp.Vecchia(),
    )  # fmt: skip
    said = {method.memory_remedy(1000) for method in methods}
    assert len(said) == len(methods)
    assert AnyMethod().memory_remedy(5) == "Take fewer points"
    assert "CPU" in rtgp.RRCG().memory_remedy(5, "cuda:0")


@linux
def test_what_is_available_follows_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory.available_memory()
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (taken + 2**20, taken + 2**20))
    assert memory.available_memory() < 2**21 < whole
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (taken // 2, taken // 2))
    assert memory.available_memory() == 0
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(OSError()))
    assert memory.available_memory() == memory.UNKNOWN


@pytest.mark.gpu
def test_a_card_that_is_full() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    chance = np.random.default_rng(0)
    X = chance.uniform(size=(40_000, 2))
    y = np.sin(6.0 * X[:, 0]) + 0.1 * chance.normal(size=len(X))
    torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.mem_get_info()[1])
    try:
        for method, words in ((rtgp.RRCG(operator="dense"), "operator='tiled'"), ("cholesky", "'rr-cg'")):
            with pytest.raises(OutOfMemoryError, match=words):
                rtgp.GPRegressor(method=method, random_state=0, device="cuda").fit(X, y)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
