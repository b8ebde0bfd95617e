"""Planning on clusters of several kinds of node: pipeline stages on pools of different nodes."""
