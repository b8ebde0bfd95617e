"""What groups of fewer ranks that share the state cannot save, where the update exchanges parts of matrices among them."""

from __future__ import annotations

import pytest

from builders import UNIT_GPU, dense_model, job_of, rows_of
from cost_models.step.total import step_time
from planner.search.bounds import without_replicas_s


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize(("framework", "version"), [("fsdp", "2.11"), ("torchtitan", "0.3")])
def test_groups_of_fewer_ranks_take_no_less(framework: str, version: str, optimizer: str) -> None:
    """Muon's collectives are shorter over fewer ranks, and none are left where each rank keeps all."""
    job = job_of(
        dense_model(),
        framework,
        gpu=UNIT_GPU,
        num_nodes=3,
        global_batch_size=24,
        optimizer=optimizer,
        framework_version=version,
    )
    rows = rows_of(job, *({"dp": 24, "zero": 3, "zero_shard_size": size} for size in (24, 12, 8, 4, 2)))
    time = step_time(job, rows)
    assert without_replicas_s(job, rows, time)[0] <= time.total_s.min() * (1 + 1e-12)
