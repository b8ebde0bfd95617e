"""Strategies as structures of arrays: degrees and choices, layers per stage, experts per rank.

| look for | file |
| --- | --- |
| every field of a strategy: spellings, codes, description | `fields` |
| a batch of strategies | `strategy` |
| decoder layers of each stage; stages that can be the slowest or fullest | `layouts` |
| layers that full recomputation repeats | `recomputed_layers` |
| distinct combinations of axes, sums that do not depend on the batch | `tensors` |
| nodes and ranks over which a token's experts are spread | `expert_spread` |
"""
