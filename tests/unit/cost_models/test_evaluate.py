"""Verdicts by the contract's rule, at its edges."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from builders import dense_model, job_of, row_of
from cost_models.evaluate import Verdict, evaluate, memory_verdict

job = partial(job_of, dense_model(8))


def evaluated(asked, **strategy):
    return evaluate(asked, row_of(asked, **strategy))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.5, 0.90, Verdict.FITS),  # the limit is capacity less 10 %
        (0.5, 0.91, Verdict.AT_RISK),
        (1.0, 1.2, Verdict.AT_RISK),  # the low end may just reach the capacity
        (1.01, 1.2, Verdict.OOM),
    ],
)
def test_where_an_interval_lies(low, high, expected) -> None:
    asked = job()
    capacity = asked.cluster.capacity_bytes
    memory = replace(
        evaluated(asked).memory, device_low=np.array([low * capacity]), device_high=np.array([high * capacity])
    )
    verdict, exceeded = memory_verdict(asked, memory, headroom_fraction=0.1)
    assert verdict.tolist() == [expected]
    assert exceeded.tolist() == [False]


def test_reserved_memory_is_no_capacity() -> None:
    assert job().cluster.capacity_bytes - job(cluster={"reserved_memory_gib": 2}).cluster.capacity_bytes == 2 * 2**30


def test_host_memory_overflows_by_itself() -> None:
    """Offloaded state beyond the node's memory is out of memory even where the GPU has room."""
    offload = {"optimizer_fraction": 1.0}
    roomy, tight = (
        evaluated(job(cluster={"host_memory_gib": 2000}), offload=offload),
        evaluated(job(cluster={"host_memory_gib": 0.5}), offload=offload),
    )
    assert Verdict(int(roomy.verdict[0])) == Verdict.FITS
    assert not roomy.host_exceeded[0]
    assert Verdict(int(tight.verdict[0])) == Verdict.OOM
    assert tight.host_exceeded[0]
    assert evaluated(job(), offload=offload).host_exceeded[0] == np.False_  # nothing is known of the host


def test_labels_are_the_contract_s() -> None:
    assert [verdict.label for verdict in Verdict] == ["fits", "at-risk", "oom"]


def test_terms_that_take_no_time_have_no_tier_worse_than_the_others() -> None:
    found = evaluated(job())
    used = [found.tiers[name][0] for name, seconds in found.terms_s.items() if seconds[0] > 0]
    assert max(tier[0] for tier in found.tiers.values()) == max(used)
