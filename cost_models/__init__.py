"""What a strategy costs: time and memory on a given cluster, with the provenance of every number.

Imports nothing else of ours. The way through: `specs` (what is trained, on what) -> `calibration` (what the hardware
does) -> `strategy` (a batch of candidate plans) -> `evaluate` (named terms that sum to a step time and a peak memory).
"""
