"""Further methods to compare with, each whole, from the settings to the posterior: SVGP, POE and sgGP.

sgGP is another likelihood of the same model: it goes wherever the likelihood methods go. SVGP and POE are models of
their own: `GPRegressor` makes, trains and predicts from them. Vecchia's likelihood has its place in `rtgp._methods` and
`rtgp._objectives`, below training, which begins with it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rtgp._baselines.poe.settings import POE
from rtgp._baselines.sggp import SGGP
from rtgp._baselines.svgp.settings import SVGP
from rtgp._methods import METHODS, Vecchia

if TYPE_CHECKING:
    from rtgp._baselines.poe.model import ExpertsModel
    from rtgp._baselines.svgp.model import VariationalModel

__all__ = ["POE", "SGGP", "SVGP", "ExpertsModel", "VariationalModel", "Vecchia"]

# In the order in which they are shown.
METHODS.update({"svgp": SVGP, "poe": POE, "sggp": SGGP, "vecchia": Vecchia})

# Models come with their training, which the settings alone do not need.
_ON_FIRST_USE = {"ExpertsModel": "rtgp._baselines.poe.model", "VariationalModel": "rtgp._baselines.svgp.model"}


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
