"""Costs of strategies whose pipeline stages lie on pools of different nodes: `time` (step and terms), `evaluate` (all costs).

Everything within a stage is priced by the same modules as on a cluster of one kind, for a job on the stage's own pool.
"""
