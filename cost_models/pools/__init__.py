"""What a step costs whose pipeline stages lie on pools of different nodes."""
