"""Several outputs that share one kernel and noise: what a model's forward returns to say so."""

from __future__ import annotations

from gpytorch.distributions import MultivariateNormal


class SharedOutputs(MultivariateNormal):
    """Outputs with a mean each, and one covariance for all.

    Each output is a Gaussian process of its own, independent of the others; all have the same kernel and noise. The
    likelihood is then that of one matrix with more right-hand sides, where a batch of models has as many matrices.

    Parameters
    ----------
    mean : Tensor
        (t, n), a row for each output.
    covariance_matrix : LinearOperator or Tensor
        (n, n), such as `covar_module(x)`.
    validate_args : bool
        Whether torch checks the two.

    Examples
    --------
    >>> import gpytorch, rtgp, torch
    >>> class Model(gpytorch.models.ExactGP):
    ...     def __init__(self, x, y):
    ...         super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
    ...         self.mean = gpytorch.means.ConstantMean(batch_shape=y.shape[:1])
    ...         self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    ...     def forward(self, x):
    ...         return rtgp.SharedOutputs(self.mean(x), self.kernel(x))
    >>> x = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    >>> y = torch.stack([torch.sin(6 * x[:, 0]), torch.cos(6 * x[:, 0])])
    >>> model = Model(x, y).double()
    >>> result = rtgp.fit(model, model.likelihood, x, y)
    >>> rtgp.posterior(model, model.likelihood).mean(x[:5]).shape
    torch.Size([2, 5])
    """
