"""The settings objects: names, checks, the paper's values."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from gpytorch.mlls import ExactMarginalLogLikelihood

import rtgp
from gp_models import airports, make
from rtgp._methods import METHODS, Method, resolve_method
from rtgp.errors import RTGPError, SettingError
from rtgp.truncation import ExponentialDecay, ResidualDriven


class TestNames:
    @pytest.mark.parametrize("name, kind", [("cholesky", rtgp.Cholesky), ("cg", rtgp.CG), ("rr-cg", rtgp.RRCG)])
    def test_a_name_stands_for_the_default_settings(self, name, kind):
        assert resolve_method(name) == kind()
        assert set(METHODS) >= {name}

    def test_an_object_stands_for_itself(self):
        settings = rtgp.RRCG(probes=3)
        assert resolve_method(settings) is settings

    @pytest.mark.parametrize("wrong", ["RRCG", "cholesky ", "", 3, None, object(), rtgp.RRCG])
    def test_anything_else_is_refused(self, wrong):
        with pytest.raises(SettingError, match=r"The 'method' parameter must be .* Got .* instead"):
            resolve_method(wrong)

    def test_an_unknown_name_lists_the_known_ones(self):
        with pytest.raises(SettingError, match="'cholesky', 'cg', 'rr-cg'"):
            resolve_method("exact")


class TestDefaults:
    def test_documented_constructors(self):
        """The calls of the design document, as other people's code makes them."""
        plain = rtgp.CG(iterations=100, probes=10, preconditioner=rtgp.PivotedCholesky(rank=5), probe_kind="rademacher")
        assert plain.preconditioner.rank == 5
        roulette = rtgp.RRCG(truncation=ExponentialDecay(rate=0.05, minimum=80), probes=10, preconditioner=None)
        assert roulette.preconditioner is None

    def test_automatic(self):
        settings = rtgp.RRCG()
        assert isinstance(settings.truncation, ResidualDriven)
        assert settings.preconditioner == rtgp.Automatic()
        assert settings.coupling == "max"
        assert settings.warm_start

    def test_the_papers(self):
        """Sec. 5: ExpDecay with E[J] = 100, a rank-5 pivoted Cholesky, ten Rademacher probes, nothing kept."""
        paper = rtgp.RRCG.paper()
        assert paper.truncation == ExponentialDecay(rate=0.05, minimum=80)
        assert paper.truncation.mean == pytest.approx(100, abs=1)
        assert paper.preconditioner == rtgp.PivotedCholesky(5, "greedy")
        assert (paper.probes, paper.probe_kind, paper.coupling) == (10, "rademacher", "independent")
        assert (paper.refresh, paper.warm_start) == (1, False)

    def test_the_papers_with_a_change(self):
        assert rtgp.RRCG.paper(probes=3) == dataclasses.replace(rtgp.RRCG.paper(), probes=3)
        with pytest.raises(TypeError, match="unexpected keyword"):
            rtgp.RRCG.paper(probe=3)


@pytest.mark.parametrize("settings", [rtgp.Cholesky(), rtgp.CG(), rtgp.RRCG(), rtgp.RRCG.paper()])
class TestSettingsObjects:
    def test_frozen(self, settings):
        with pytest.raises(dataclasses.FrozenInstanceError):
            settings.probes = 3

    def test_equal_settings_are_equal_and_hash_alike(self, settings):
        twin = dataclasses.replace(settings)
        assert twin == settings
        assert hash(twin) == hash(settings)

    def test_repr_can_be_read_back(self, settings):
        names = {name: getattr(rtgp.truncation, name) for name in ("ResidualDriven", "ExponentialDecay")} | {
            name: getattr(rtgp, name) for name in ("Automatic", "Cholesky", "CG", "RRCG", "PivotedCholesky")
        }
        assert eval(repr(settings), names) == settings

    def test_makes_a_new_objective_every_time(self, settings):
        assert settings.make_objective() is not settings.make_objective()


class TestFacts:
    """What a method tells of itself is what it does."""

    @pytest.fixture(params=[name for name, kind in METHODS.items() if issubclass(kind, Method)])
    def found(self, request):
        """(method, two values of the likelihood, the exact one, the information)."""
        X, y = airports(70, dtype=torch.float64)  # on up to 64 points RRCG() is exact
        model = make(X, y).train()
        method = rtgp.SGGP(centres=5) if request.param == "sggp" else METHODS[request.param]()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, torch.Generator().manual_seed(0))
        with mll:
            values = [mll(model(X), y).item() for _ in range(2)]
            information = mll.evaluate(model(X), y, information=1e-2).information
        return method, values, ExactMarginalLogLikelihood(model.likelihood, model)(model(X), y).item(), information

    def test_exact_and_noiseless(self, found):
        method, values, exact, _ = found
        assert method.exact == (values[0] == pytest.approx(exact, abs=1e-9))
        assert method.noiseless == (values[0] == values[1])

    def test_information(self, found):
        method, _, _, information = found
        assert method.has_information == (information is not None)
        assert method.has_information or method.default_optimizer.name != "average-information"

    @pytest.mark.parametrize("name", METHODS)
    def test_spread(self, name):
        kind = METHODS[name]
        assert kind().spread_operator == "auto"
        if kind.spreads:
            assert kind(operator="sharded").spread_operator == "sharded"
        else:
            with pytest.raises(TypeError, match="operator"):
                kind(operator="sharded")

    def test_settings_that_change_a_fact(self):
        assert rtgp.RRCG().replaceable
        assert not rtgp.RRCG.paper().replaceable
        assert not rtgp.Vecchia(rows=10).noiseless
        assert rtgp.Vecchia(7).conditioned_on == 7
        assert rtgp.CG(probes=6).with_probes_at_most(4) == rtgp.CG(probes=4)
        assert rtgp.CG(probes=3).with_probes_at_most(4) == rtgp.CG(probes=3)


def test_replace_checks_again():
    assert dataclasses.replace(rtgp.CG(), iterations=7).iterations == 7
    with pytest.raises(SettingError, match="'iterations' parameter of CG"):
        dataclasses.replace(rtgp.CG(), iterations=0)


WRONG = [
    (rtgp.CG, {"iterations": 0}),
    (rtgp.CG, {"iterations": 2.5}),
    (rtgp.CG, {"iterations": True}),
    *[
        (kind, setting)
        for kind in (rtgp.CG, rtgp.RRCG)
        for setting in (
            {"probes": 0},
            {"probes": "ten"},
            {"refresh": 0},
            {"refresh": 1.5},
            {"preconditioner": 5},
            {"preconditioner": "none"},
            {"tolerance": 0.0},
            {"tolerance": 1.0},
            {"tolerance": float("nan")},
            {"tolerance": "1e-4"},
            {"warm_start": "yes"},
        )
    ],
    (rtgp.RRCG, {"truncation": 100}),
    (rtgp.RRCG, {"truncation": "exponential"}),
    (rtgp.RRCG, {"truncation": ResidualDriven}),  # the class, its brackets forgotten
    (rtgp.RRCG, {"coupling": "both"}),
]


@pytest.mark.parametrize("kind, setting", WRONG)
def test_wrong_settings_say_which_what_and_instead_of_what(kind, setting):
    (name,) = setting
    with pytest.raises(SettingError, match=f"The '{name}' parameter of {kind.__name__} must be .*Got .* instead"):
        kind(**setting)


@pytest.mark.parametrize("kind", [rtgp.CG, rtgp.RRCG])
def test_unknown_probe_kind(kind):
    with pytest.raises(RTGPError, match="'probe_kind' parameter must be one of 'rademacher'"):
        kind(probe_kind="sobol")


def test_wrong_preconditioner_settings():
    for rank in (0, -1, 2.5):
        with pytest.raises(SettingError, match="'rank' parameter of PivotedCholesky"):
            rtgp.PivotedCholesky(rank)
    with pytest.raises(SettingError, match="'pivoting' parameter of PivotedCholesky"):
        rtgp.PivotedCholesky(5, "best")
