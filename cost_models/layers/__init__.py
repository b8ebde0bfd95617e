"""What one layer, and the ends of the model, cost and hold: operations, bytes, launches, messages."""
