"""SVGP (Hensman et al. 2013): a Gaussian over the values at inducing points. Settings, model, training, posterior."""
