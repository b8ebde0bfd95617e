"""Planning on mixed clusters: pipeline stages on pools of different nodes."""
