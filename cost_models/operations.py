"""The collective operations by name: those that the cost models price, calibration documents hold and the profiler
measures.
"""

from __future__ import annotations

from typing import Literal, get_args

Op = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]
OPS: tuple[Op, ...] = get_args(Op)
