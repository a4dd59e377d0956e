"""BoTorch by our solver: models whose posterior makes no n x n factor beyond some thousand points, and their training.

Importing this package makes BoTorch know two things. `fit_gpytorch_mll` trains an `rtgp.MarginalLogLikelihood` by
`rtgp.fit`, and `draw_matheron_paths` draws the paths of a wrapped model. What BoTorch does with its own stays as it is.
"""

from rtgp.extras import needs

with needs("botorch", "rtgp.botorch"):
    from rtgp.botorch import fitting, sampling
    from rtgp.botorch.model import SingleTaskGP, SolvedModel
    from rtgp.botorch.wrapping import wrap

fitting.register()
sampling.register()

__all__ = ["SingleTaskGP", "SolvedModel", "wrap"]
