"""POE (Deisenroth and Ng 2015): a product of experts on subsets. Settings, model, training, posterior."""
