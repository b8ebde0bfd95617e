"""From the time of a step to a whole run: its days, GPU-hours, cost and energy, and what failures and checkpoints take of it."""
