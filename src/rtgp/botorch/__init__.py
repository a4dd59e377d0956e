"""BoTorch by our solver: models whose posterior makes no n x n factor beyond some thousand points, and their training.

Importing this package makes BoTorch know two things. `fit_gpytorch_mll` trains an `rtgp.MarginalLogLikelihood` by
`rtgp.fit`, and `draw_matheron_paths` draws the paths of a wrapped model. What BoTorch does with its own stays as it is.
"""

from rtgp._extras import needs

with needs("botorch", "rtgp.botorch"):
    from rtgp.botorch import _fitting as fitting
    from rtgp.botorch import _sampling as sampling
    from rtgp.botorch._model import SingleTaskGP, SolvedModel
    from rtgp.botorch._wrapping import wrap

fitting.register()
sampling.register()

__all__ = ["SingleTaskGP", "SolvedModel", "wrap"]
