"""What replicas of a model exchange where that is not every gradient at every step: traffic, bytes held, and simulations."""
