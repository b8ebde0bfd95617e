"""The step as a sum of named terms, its jitter, and the tier of each term."""

from __future__ import annotations

from functools import partial
from statistics import NormalDist

import numpy as np
import pytest

from builders import dense_model, job_of, rows_of
from cost_models.constants import GPU_SPREAD, STRAGGLING
from cost_models.step.total import jitter_fraction, step_time
from cost_models.terms import TIME_NAMES, Tier

job = partial(job_of, dense_model(8), num_nodes=4)


def test_terms_come_in_the_documented_order_and_sum() -> None:
    asked = job()
    found = step_time(asked, rows_of(asked, {"dp": 1}, {"tp": 2, "pp": 2, "dp": 8, "recompute": "full"}, {"cp": 2}))
    assert tuple(found.terms_s) == TIME_NAMES
    assert tuple(found.tiers) == TIME_NAMES
    assert np.sum(list(found.terms_s.values()), axis=0) == pytest.approx(found.total_s, rel=1e-12)


def test_one_gpu_waits_for_nobody() -> None:
    asked = job()
    found = step_time(asked, rows_of(asked, {"dp": 1}))
    for name in ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "pp_bubble", "dp_comm", "tied_embedding_comm", "jitter"):
        assert found.terms_s[name][0] == 0


def test_jitter_grows_with_the_gpus_and_with_the_nodes() -> None:
    """[T-2] the expected slowest of n GPUs (Blom), and a share per doubling of nodes: 2 of them on 32 GPUs."""
    asked = job()
    found = jitter_fraction(asked, rows_of(asked, {"dp": 1}, {"dp": 8}, {"dp": 32}))
    slowest = [NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) for n in (8, 32)]
    assert found.tolist() == pytest.approx([
        0.0, GPU_SPREAD.value * slowest[0], GPU_SPREAD.value * slowest[1] + 2 * STRAGGLING.value,
    ])  # fmt: skip


def test_jitter_is_a_share_of_all_other_terms() -> None:
    asked = job()
    batch = rows_of(asked, {"tp": 2, "pp": 2, "dp": 8})
    found = step_time(asked, batch)
    others = sum(seconds for name, seconds in found.terms_s.items() if name != "jitter")
    assert found.terms_s["jitter"] == pytest.approx(others * jitter_fraction(asked, batch))


def test_a_term_without_time_is_as_good_as_measured() -> None:
    asked = job()
    found = step_time(asked, rows_of(asked, {"dp": 1}))
    for name in TIME_NAMES:
        if found.terms_s[name][0] == 0:
            assert found.tiers[name][0] == Tier.MEASURED
    assert found.tiers["optimizer"][0] == Tier.NOMINAL  # the reference data have no memory bandwidth


def test_an_unknown_gpu_has_nothing_measured() -> None:
    """Its matmuls are nominal, its collectives those of another part bent to its link."""
    gpu = {
        "name": "unit", "memory_gib": 80, "peak_tflops": {"bf16": 100}, "memory_bandwidth_gb_per_s": 1000,
        "nvlink_gb_per_s": 100,
    }  # fmt: skip
    asked = job(gpu=gpu)
    found = step_time(asked, rows_of(asked, {"tp": 2, "pp": 2, "dp": 8}))
    assert found.tiers["gemm"][0] == found.tiers["attention"][0] == Tier.NOMINAL
    assert found.tiers["tp_comm"][0] == Tier.EXTRAPOLATED
    assert all(found.tiers[name][0] >= Tier.EXTRAPOLATED for name in TIME_NAMES if found.terms_s[name][0] > 0)


def test_micro_batches_repeat_the_work_but_not_the_once_a_step_terms() -> None:
    """Twice the global batch: twice the layers' terms, the same optimizer step and bubble."""
    small, large = job(), job(global_batch_size=128)
    strategy = {"tp": 2, "pp": 2, "dp": 8}
    one, two = (step_time(asked, rows_of(asked, strategy)).terms_s for asked in (small, large))
    for name in ("gemm", "attention", "elementwise", "head", "loss", "tp_comm", "grad_accumulation"):
        assert two[name][0] == pytest.approx(2 * one[name][0])
    for name in ("optimizer", "pp_bubble", "dp_comm", "tied_embedding_comm"):
        assert two[name][0] == pytest.approx(one[name][0])
