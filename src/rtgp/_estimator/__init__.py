"""`rtgp.GPRegressor`, from a table to a trained model: checks and scaling, the model, its fit, its errors and files."""
