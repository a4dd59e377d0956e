"""Interrupted training goes on to the same parameters, and a damaged or foreign checkpoint is refused."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.priors import GammaPrior, NormalPrior, UniformPrior

import rtgp
from rtgp.training import CheckpointError, CheckpointWarning, FitStatus, fit
from rtgp.training._checkpoint import CheckpointFolder, seal
from rtgp.training._lbfgs import Surface

KILLER = Path(__file__).with_name("killed_training.py")

RUNS = {
    "rr-cg, average information": {"method": "rr-cg", "steps": 12, "tolerance": 1e-9},
    "rr-cg, adam": {"method": "rr-cg", "optimizer": "adam", "steps": 30},
    "rr-cg, from a subset": {"method": "rr-cg", "steps": 12, "subset_start": 50, "tolerance": 1e-9},
    "paper, multistep": {"method": rtgp.RRCG.paper(), "steps": 12, "optimizer": "multistep"},
    "cg, SGD": {"method": rtgp.CG(10), "steps": 12, "optimizer": torch.optim.SGD, "learning_rate": 0.05},
    "rr-cg, L-BFGS": {"method": "rr-cg", "optimizer": "lbfgs", "steps": 12},
    "cholesky, L-BFGS": {"method": "cholesky", "steps": 15},
    "cholesky, adam, converges": {"method": "cholesky", "optimizer": "adam", "tolerance": 0.3, "patience": 4},
}


def same(first, second) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


class TestResume:
    @pytest.mark.parametrize("run", RUNS)
    def test_goes_on_bit_for_bit(self, problem, values, tmp_path, run):
        whole = problem()
        wanted = fit(*whole, **RUNS[run])
        for stop in (3, 7, 9):  # interrupted three times
            part = problem()
            result = fit(
                *part,
                **RUNS[run],
                checkpoint=tmp_path,
                checkpoint_every=4,
                callback=lambda row, model, stop=stop: row["step"] == stop,
            )
            assert result.status is FitStatus.STOPPED
            assert len(result.history) == stop + 1
        last = problem()
        result = fit(*last, **RUNS[run], checkpoint=tmp_path, checkpoint_every=4)
        assert same(values(last[0]), values(whole[0]))
        assert (result.loss, result.loss_error, result.status) == (wanted.loss, wanted.loss_error, wanted.status)
        assert result.steps == wanted.steps
        columns = [name for name in wanted.history.columns if name not in ("seconds", "learning_rate")]
        for name in columns:
            np.testing.assert_array_equal(result.history.column(name), wanted.history.column(name))

    def test_from_the_last_checkpoint_after_a_crash(self, problem, values, tmp_path):
        """Ctrl-C writes one of the last complete step. The next is taken again, alike."""
        whole, run = problem(), {"method": "rr-cg", "steps": 12}
        fit(*whole, **run)

        def crash(row, model):
            if row["step"] == 6:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(*problem(), **run, checkpoint=tmp_path, checkpoint_every=4, callback=crash)
        part, steps = problem(), []
        fit(*part, **run, checkpoint=tmp_path, checkpoint_every=4, callback=lambda row, m: steps.append(row["step"]))
        assert steps == list(range(6, 12))
        assert same(values(part[0]), values(whole[0]))

    def test_a_finished_run_is_returned_at_once(self, problem, values, tmp_path):
        first, second, calls = problem(), problem(), []
        one = fit(*first, method="rr-cg", steps=5, checkpoint=tmp_path)
        two = fit(*second, method="rr-cg", steps=5, checkpoint=tmp_path, callback=lambda row, m: calls.append(row))
        assert calls == []
        assert same(values(first[0]), values(second[0]))
        assert (one.loss, one.message, one.start) == (two.loss, two.message, two.start)
        assert one.history.rows == two.history.rows
        assert not second[0].training

    def test_checkpoints_do_not_change_the_run(self, problem, values, tmp_path):
        one, two = problem(), problem()
        fit(*one, method="rr-cg", steps=8)
        fit(*two, method="rr-cg", steps=8, checkpoint=tmp_path, checkpoint_every=1)
        assert same(values(one[0]), values(two[0]))

    @pytest.mark.slow
    def test_a_long_run_saves_ever_less_often(self, problem, tmp_path, monkeypatch):
        """Every tenth step at first; later a fiftieth of the steps may be lost. A run that goes on does the same."""
        saved, save = [], CheckpointFolder.save

        def noted(folder, step, state):
            saved.append(step)
            save(folder, step, state)

        monkeypatch.setattr(CheckpointFolder, "save", noted)
        run = {"method": rtgp.SGGP(centres=5), "steps": 800, "checkpoint": tmp_path, "tolerance": 0.0}
        fit(*problem(), **run, callback=lambda row, model: row["step"] == 599)
        assert saved[:51] == [*range(0, 501, 10)]
        assert {after - before for before, after in itertools.pairwise(saved[51:-1])} == {10, 11}
        assert saved[-1] == 600
        fit(*problem(), **run)
        gone_on = saved[saved.index(600) :]
        assert {after - before for before, after in itertools.pairwise(gone_on[:-1])} <= set(range(12, 17))
        assert gone_on[-1] == 800

    def test_the_start_of_lbfgs_is_saved(self, problem, tmp_path, monkeypatch):
        saved = []
        monkeypatch.setattr(CheckpointFolder, "save", lambda folder, step, state: saved.append(step))
        fit(*problem(), method="cholesky", steps=25, checkpoint=tmp_path)
        assert saved[:2] == [0, 10]

    @pytest.mark.parametrize("off, serves", [(1e-11, True), (1e-3, False)])
    def test_lbfgs_goes_on_where_numbers_are_rounded_otherwise(self, problem, tmp_path, monkeypatch, off, serves):
        """As on another kind of processor: its points differ from the recorded ones in their last digits. Points that
        differ by more are another path, and are refused."""
        run = {"method": "cholesky", "steps": 15}
        wanted = fit(*problem(), **run)
        fit(*problem(), **run, checkpoint=tmp_path, callback=lambda row, model: row["step"] == 6)
        load = Surface.load_state_dict

        def rounded(surface, state):
            load(surface, state)
            surface.points[1:] = [point * (1.0 + off) for point in surface.points[1:]]

        monkeypatch.setattr(Surface, "load_state_dict", rounded)
        if serves:
            found = fit(*problem(), **run, checkpoint=tmp_path)
            assert (found.steps, found.loss) == (wanted.steps, pytest.approx(wanted.loss, abs=1e-9))
        else:
            with pytest.raises(CheckpointError, match="takes another path"):
                fit(*problem(), **run, checkpoint=tmp_path)

    def test_two_are_kept_and_nothing_else(self, problem, tmp_path):
        fit(*problem(), method="rr-cg", steps=10, checkpoint=tmp_path, checkpoint_every=2)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            f"checkpoint-{step:08d}.{ending}" for step in (8, 10) for ending in ("json", "safetensors")
        ]


RUN = {"method": "rr-cg", "steps": 20, "checkpoint_every": 4}


@pytest.fixture
def interrupted(problem, tmp_path):
    """A folder with the checkpoints of steps 4 and 8."""
    fit(*problem(), **RUN, checkpoint=tmp_path, callback=lambda row, model: row["step"] == 7)
    assert sorted(path.name[11:19] for path in tmp_path.glob("*.json")) == ["00000004", "00000008"]
    return tmp_path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path, where: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "cut": cut,
    "first bit": lambda path: flip(path, 0.0),
    "flipped": flip,
    "flipped near the end": lambda path: flip(path, 0.98),
    "emptied": lambda path: path.write_bytes(b""),
}


class TestDamage:
    @pytest.mark.parametrize("ending", ["json", "safetensors"])
    @pytest.mark.parametrize("damage", DAMAGES)
    def test_the_one_before_is_used(self, problem, values, interrupted, damage, ending):
        DAMAGES[damage](interrupted / f"checkpoint-00000008.{ending}")
        whole, part, steps = problem(), problem(), []
        fit(*whole, **RUN)
        with pytest.warns(CheckpointWarning, match=r"checkpoint-00000008.*refused.*step 4"):
            fit(*part, **RUN, checkpoint=interrupted, callback=lambda row, m: steps.append(row["step"]))
        assert steps[0] == 4
        assert same(values(part[0]), values(whole[0]))

    def test_missing_tensors(self, problem, interrupted):
        (interrupted / "checkpoint-00000008.safetensors").unlink()
        with pytest.warns(CheckpointWarning, match="missing"):
            fit(*problem(), **RUN, checkpoint=interrupted)

    def test_every_flipped_byte_of_the_json_is_noticed(self, interrupted):
        path = interrupted / "checkpoint-00000008.json"
        content = path.read_bytes()
        folder = CheckpointFolder(interrupted, json.loads(content)["problem"])
        for where in range(0, len(content), len(content) // 200):
            for bit in (1, 16):
                damaged = bytearray(content)
                damaged[where] ^= bit
                path.write_bytes(damaged)
                with pytest.warns(CheckpointWarning):
                    assert folder.load()["optimizer"]["done"] == 4
        path.write_bytes(content)
        assert folder.load()["optimizer"]["done"] == 8

    def test_all_damaged(self, problem, interrupted):
        for path in interrupted.glob("*.json"):
            cut(path)
        with pytest.raises(CheckpointError, match="remove the folder"):
            fit(*problem(), **RUN, checkpoint=interrupted)

    def test_unsealed_leftovers_are_cleared(self, problem, tmp_path):
        """What a process that dies while it writes leaves behind."""
        (tmp_path / "checkpoint-00000000.safetensors").write_bytes(b"half")
        (tmp_path / "checkpoint-00000004.json.part").write_bytes(b"{")
        fit(*problem(), **RUN, checkpoint=tmp_path)
        assert len(list(tmp_path.iterdir())) == 4

    def test_a_newer_format(self, problem, interrupted):
        path = interrupted / "checkpoint-00000008.json"
        body = json.loads(path.read_text())
        del body["checksum"]
        body["format"] = 99
        path.write_bytes(seal(body))
        with pytest.raises(CheckpointError, match=r"format 99.*Upgrade"):
            fit(*problem(), **RUN, checkpoint=interrupted)

    def test_a_file_in_its_place(self, problem, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match="file"):
            fit(*problem(), **RUN, checkpoint=tmp_path / "file")


def known_noise(number: float) -> FixedNoiseGaussianLikelihood:
    return FixedNoiseGaussianLikelihood(torch.full((120,), number, dtype=torch.float64))


FIXED = {
    "known noise": known_noise,
    "bounds": lambda number: GaussianLikelihood(noise_constraint=GreaterThan(1e-3 * number)),
    "priors, gamma": lambda number: GaussianLikelihood(noise_prior=GammaPrior(2.0, number)),
    "priors, normal": lambda number: GaussianLikelihood(noise_prior=NormalPrior(number, 1.0)),
    "priors, uniform": lambda number: GaussianLikelihood(noise_prior=UniformPrior(0.0, 100.0 + number)),
}


class TestForeign:
    @pytest.mark.parametrize(
        "change, words",
        [
            ({"seed": 1}, "seed (here 1, there 0)"),
            ({"steps": 21}, "steps (here 21, there 20)"),
            ({"method": rtgp.RRCG(probes=3)}, "probes=3"),
            ({"learning_rate": 0.2}, "learning rate"),
            ({"optimizer": "multistep"}, "optimizer (here multistep, there average-information)"),
        ],
    )
    def test_other_settings(self, problem, interrupted, change, words):
        with pytest.raises(CheckpointError, match="another problem") as caught:
            fit(*problem(), **{**RUN, **change}, checkpoint=interrupted)
        assert words in str(caught.value)

    @pytest.mark.filterwarnings("ignore:The (inputs|targets) given to rtgp.fit differ:FutureWarning")
    def test_other_data(self, problem, interrupted, values):
        model, likelihood, X, y = problem()
        before = values(model)
        with pytest.raises(CheckpointError, match=r"differs: data \("):
            fit(model, likelihood, X, y.flip(0), **RUN, checkpoint=interrupted)
        assert same(values(model), before)

    def test_other_parameters(self, problem, interrupted):
        mean = gpytorch.means.LinearMean(2)
        with pytest.raises(CheckpointError, match=r"there.*raw_constant"):
            fit(*problem(mean=mean), **RUN, checkpoint=interrupted)

    @pytest.mark.parametrize("kernels", [(RBFKernel, MaternKernel), (MaternKernel, lambda **k: MaternKernel(1.5, **k))])
    def test_other_kernel_with_the_same_parameters(self, problem, tmp_path, kernels):
        first, second = (ScaleKernel(kernel(ard_num_dims=2)) for kernel in kernels)
        fit(*problem(kernel=first), **RUN, checkpoint=tmp_path, callback=lambda row, model: True)
        with pytest.raises(CheckpointError, match=r"model \(here .*ScaleKernel, Matern"):
            fit(*problem(kernel=second), **RUN, checkpoint=tmp_path)

    def test_the_kernels_are_named(self, problem, interrupted):
        with pytest.raises(CheckpointError, match=r"model \(here .*MaternKernel\(nu=1.5\).*, there .*RBFKernel"):
            fit(*problem(kernel=ScaleKernel(MaternKernel(1.5, ard_num_dims=2))), **RUN, checkpoint=interrupted)

    @pytest.mark.parametrize("what", FIXED)
    def test_other_fixed_numbers(self, problem, tmp_path, what):
        """The same modules and trainable parameters: only what decides the optimum silently is another."""
        first, same, other = (FIXED[what](number) for number in (0.1, 0.1, 0.2))
        fit(*problem(likelihood=first), **RUN, checkpoint=tmp_path, callback=lambda row, model: row["step"] == 1)
        with pytest.raises(CheckpointError, match="another problem") as caught:
            fit(*problem(likelihood=other), **RUN, checkpoint=tmp_path)
        differing = str(caught.value).partition("What differs: ")[2]
        assert differing.startswith("fixed numbers of the model (here ")
        assert what.partition(",")[0] in differing
        steps = []
        fit(*problem(likelihood=same), **RUN, checkpoint=tmp_path, callback=lambda row, m: steps.append(row["step"]))
        assert steps[0] == 2

    def test_other_fixed_parameters(self, problem, tmp_path):
        """They would be overwritten by those of the checkpoint."""

        def fixed(value):
            model, *rest = problem()
            model.kernel.outputscale = value
            model.kernel.raw_outputscale.requires_grad_(False)
            return model, *rest

        fit(*fixed(1.0), **RUN, checkpoint=tmp_path, callback=lambda row, model: True)
        with pytest.raises(CheckpointError, match=r"fixed numbers of the model \(here fixed parameters"):
            fit(*fixed(2.0), **RUN, checkpoint=tmp_path)


def kill_and_resume(folder: Path, moments: int) -> None:
    done = subprocess.run([sys.executable, str(KILLER), str(folder), str(moments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{moments} of {moments} equal" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
class TestKilled:
    @pytest.mark.slow  # `faults/test_killed.py` kills at every operation of a file
    def test_at_three_random_moments(self, tmp_path):
        kill_and_resume(tmp_path, 3)

    @pytest.mark.slow
    def test_at_twenty_random_moments(self, tmp_path):
        kill_and_resume(tmp_path, 20)
