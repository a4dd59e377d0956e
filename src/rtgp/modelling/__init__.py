"""From a table to a GPyTorch model: checks and scaling, the model itself, standard errors of its hyperparameters."""
