"""Load on a running service: a client that costs little itself, and the loads that benchmarks put on a service."""
