"""Whole runs from one step: days, GPU-hours, cost, energy and carbon dioxide, by numbers worked out by hand or published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.job import Job
from cost_models.runs.checkpoints import checkpoint_bytes, save_of
from cost_models.runs.whole_run import Run, whole_run
from tests.builders import UNIT_GPU, Document, dense_model, job_of, row_of

NODES: Document = {"price_per_gpu_hour": 2.0, "power_w_per_gpu": 700.0, "pue": 1.1, "carbon_g_per_kwh": 400.0}
TOKENS = 64 * 2048 * 100_000
"""Of a hundred thousand steps of the job below."""


def run_of(job: Job, *, step_s: float = 1.0, **strategy: object) -> Run:
    """The run of a strategy on all eight GPUs of a node whose steps take so long."""
    row = row_of(job, dp=8, micro_batch_size=1, **strategy)
    found = whole_run(job.as_only_pool, row, 0, step_s=step_s, gpus_by_pool={0: 8.0})
    assert found is not None
    return found


def test_gpt_3_takes_a_month_on_a_thousand_gpus() -> None:
    """Narayanan et al. 2021, section 5.1: 8 T P / (N X) with T 300e9, P 175e9, N 1,024 and X 0.44 · 312e12 is 34.6 days."""
    tokens, step_tokens = 300e9, 64 * 2048
    job = job_of(dense_model(), gpu=UNIT_GPU, total_tokens=tokens)
    step_s = 8 * step_tokens * 175e9 / (1024 * 0.44 * 312e12)
    assert run_of(job, step_s=step_s).duration_s / 86_400 == pytest.approx(34.6, abs=0.05)


def test_figures_of_a_run_without_stops() -> None:
    """100,000 s on 8 GPUs are 222.2 GPU-hours, 444.4 in money, and 8 · 700 W · 1.1 · 100,000 s = 616 MJ = 171.1 kWh."""
    run = run_of(job_of(dense_model(), gpu=UNIT_GPU, total_tokens=TOKENS, cluster=NODES))
    assert run.duration_s == pytest.approx(100_000)
    assert run.gpu_seconds == pytest.approx(800_000)
    assert run.cost == pytest.approx(2.0 * 800_000 / 3600)
    assert run.energy_j == pytest.approx(616e6)
    assert run.carbon_kg == pytest.approx(616e6 / 3.6e6 * 0.4)
    assert run.goodput is None


def test_llama_3_1_draws_what_its_card_says() -> None:
    """39.3e6 GPU-hours at 700 W and 0.414 kg/kWh are the 11,390 tons of its model card; 30.84e6 at a PUE of 1.1 are 23.7 GWh."""
    machines = {"power_w_per_gpu": 700.0, "carbon_g_per_kwh": 414.0}
    job = job_of(dense_model(), gpu=UNIT_GPU, total_tokens=TOKENS, cluster=machines)
    whole = run_of(job, step_s=39.3e6 / 8 * 3600 / 100_000)
    assert whole.gpu_seconds / 3600 == pytest.approx(39.3e6)
    assert whole.carbon_kg == pytest.approx(11_390e3, rel=1e-3)
    job = job_of(dense_model(), gpu=UNIT_GPU, total_tokens=TOKENS, cluster={"power_w_per_gpu": 700.0, "pue": 1.1})
    largest = run_of(job, step_s=30.84e6 / 8 * 3600 / 100_000)
    assert largest.energy_j == pytest.approx(23.747e6 * 3.6e6, rel=1e-4)


def test_what_nobody_stated_is_not_known() -> None:
    """The GPU of the unit tests has no power limit, and the cluster neither a price nor a grid."""
    job = job_of(dense_model(), gpu=UNIT_GPU, total_tokens=TOKENS)
    run = run_of(job)
    assert job.cluster.gpu.power_limit_w is None
    assert (run.cost, run.energy_j, run.carbon_kg, run.stops) == (None, None, None, None)


def test_tokens_follow_from_the_parameters() -> None:
    """4 layers of 1024 · (4 · 1024 + 3 · 4096) + 2 · 1024, two embeddings of 32,000 · 1024, and the last norm: 132,653,056."""
    layer = 1024 * (4 * 1024 + 3 * 4096) + 2 * 1024
    parameters = 4 * layer + 2 * 32_000 * 1024 + 1024
    job = job_of(dense_model(), gpu=UNIT_GPU, tokens_per_parameter=20.0)
    assert job.training.total_tokens == pytest.approx(20.0 * parameters)
    assert job.training.assumed["total_tokens"] == job.training.total_tokens
    assert job_of(dense_model(), gpu=UNIT_GPU).training.total_tokens is None


FAILING: Document = {**NODES, "reliability": {"gpu_mtbf_h": 80.0, "restart_s": 500.0, "detect_s": 100.0}}


def test_failures_lengthen_a_run() -> None:
    """8 GPUs that fail every 80 hours each stop every 10 hours. T_f 36,000 s, T_s 20 s, T_r 600 s: Young's interval is 1,200 s, the
    goodput 1200 / 1220 · 36,000 / 37,200 = 0.951877, and a stop comes every 37,200 s of the run.
    """
    job = job_of(dense_model(), gpu=UNIT_GPU, total_tokens=TOKENS, cluster=FAILING, checkpoint={"save_s": 20.0})
    run = run_of(job)
    assert run.stops is not None
    assert run.stops.interval_s == pytest.approx(1200.0)
    assert run.goodput == pytest.approx(1200 / 1220 * 36_000 / 37_200)
    assert run.duration_s == pytest.approx(100_000 * 1220 / 1200 * 37_200 / 36_000)
    assert run.stops.count(run.duration_s) == pytest.approx(run.duration_s / 37_200)
    assert run.stops.are_rare
    assert run.energy_j == pytest.approx(run.duration_s * 8 * 700 * 1.1)


def test_spares_are_paid_for_and_shorten_the_wait() -> None:
    """A repair of 36,600 s, one failure of 36,000 + 600 s: a = 1. Without a spare half of the time is spent waiting, B(1, 1) = 1/2;
    with one a fifth, B(2, 1) = (1/2) / (1 + 1 + 1/2).
    """
    reliability = {**FAILING["reliability"], "repair_h": 36_600 / 3600}
    runs = {}
    for spares in (0, 1):
        cluster = {**NODES, "reliability": {**reliability, "spares": spares}}
        job = job_of(dense_model(), gpu=UNIT_GPU, total_tokens=TOKENS, cluster=cluster, checkpoint={"save_s": 20.0})
        runs[spares] = run_of(job)
    trained = 1200 / 1220 * 36_000 / 37_200
    assert runs[0].goodput == pytest.approx(trained / 2)
    assert runs[1].goodput == pytest.approx(trained * 4 / 5)
    assert runs[1].gpu_seconds == pytest.approx(16 * runs[1].duration_s)
    assert runs[1].energy_j == pytest.approx(8 * 700 * 1.1 * runs[1].duration_s)
    # Half as long on twice the GPUs, and 5/8 of the time: the spare node costs 1.25 times as much as waiting does.
    assert runs[1].cost == pytest.approx(2 * 5 / 8 * (runs[0].cost or 0.0))


def test_variants_hold_the_run_itself_and_other_choices() -> None:
    cluster = {**NODES, "reliability": {**FAILING["reliability"], "repair_h": 36_600 / 3600, "spares": 1}}
    job = job_of(dense_model(), gpu=UNIT_GPU, total_tokens=TOKENS, cluster=cluster, checkpoint={"save_s": 20.0})
    run = run_of(job)
    stops = [each.stops for each in run.variants() if each.stops is not None]
    assert run.stops in stops
    intervals = sorted({each.interval_s for each in stops})
    assert [each for each in intervals if each != run.stops.optimal_interval_s] == pytest.approx(
        [300, 600, 1200, 2400, 4800]
    )
    # B(c, 1) is 1/2, 1/5, 1/16, 1/65, 1/326, 1/1957: with five spares the run waits for less than a thousandth of its time.
    assert {each.spares for each in stops} == {0, 1, 2, 4, 5}


PARAMETERS = 4 * (1024 * (4 * 1024 + 3 * 4096) + 2 * 1024) + 2 * 32_000 * 1024 + 1024


def test_checkpoints_hold_every_state_once() -> None:
    """Megatron saves bf16 parameters, fp32 main parameters and two fp32 moments: 14 bytes; FSDP fp32 parameters and moments: 12."""
    assert checkpoint_bytes(job_of(dense_model(), gpu=UNIT_GPU)) == pytest.approx(14.0 * PARAMETERS)
    assert checkpoint_bytes(job_of(dense_model(), "torchtitan", gpu=UNIT_GPU)) == pytest.approx(12.0 * PARAMETERS)


def test_frozen_parameters_are_saved_without_states() -> None:
    """4 layers' MLPs of 3 · 1024 · 4096 are saved in bf16 alone."""
    frozen = 4 * 3 * 1024 * 4096
    job = job_of(dense_model(), gpu=UNIT_GPU, frozen=["mlp"])
    assert checkpoint_bytes(job) == pytest.approx(14.0 * PARAMETERS - 12.0 * frozen)


def test_only_the_copy_to_the_host_stops_an_asynchronous_save() -> None:
    """14 bytes a parameter in eight shards over links of 20 GB/s, then over storage of 2 GB/s while training goes on."""
    training = {"checkpoint": {"storage_gb_per_s": 2.0, "asynchronous": True}}
    job = job_of(dense_model(), gpu=UNIT_GPU, cluster={"host_link_gb_per_s": 20.0}, **training)
    save = save_of(job, row_of(job, dp=8, micro_batch_size=1, zero=1), 0)
    assert save is not None
    assert save.blocking_s == pytest.approx(14.0 * PARAMETERS / 8 / 20e9)
    assert save.unsafe_s == pytest.approx(14.0 * PARAMETERS / 2e9)
    whole = save_of(job, row_of(job, dp=8, micro_batch_size=1, zero=0), 0)
    assert whole is not None
    assert whole.blocking_s == pytest.approx(14.0 * PARAMETERS / 20e9)


def test_a_save_is_written_before_the_next_begins() -> None:
    """Young's interval for a copy of 0.0116 s is 29 s, but storage takes 93 s: 14 bytes x 132.7e6 parameters at 0.02 GB/s."""
    training = {"checkpoint": {"storage_gb_per_s": 0.02, "asynchronous": True}, "total_tokens": TOKENS}
    job = job_of(dense_model(), gpu=UNIT_GPU, cluster={**FAILING, "host_link_gb_per_s": 20.0}, **training)
    run = run_of(job, zero=1)
    assert run.stops is not None
    assert run.stops.interval_s == pytest.approx(14.0 * PARAMETERS / 0.02e9)


def test_kinds_of_gpu_fail_independently() -> None:
    """Four GPUs of 40 hours and four of 80 stop every 1 / (4/40 + 4/80) = 6.67 hours."""
    job = job_of(dense_model(), gpu=UNIT_GPU, total_tokens=TOKENS, cluster=FAILING, checkpoint={"save_s": 20.0})
    assert job.cluster.reliability is not None
    worse = replace(job.cluster.reliability, gpu_mtbf_s=40 * 3600.0, restart_s=1000.0, repair_s=25_100.0, spares=0)
    pooled = replace(job.as_only_pool, jobs=(job, replace(job, cluster=replace(job.cluster, reliability=worse))))
    row = row_of(job, dp=8, micro_batch_size=1)
    run = whole_run(pooled, row, 0, step_s=1.0, gpus_by_pool={0: 4.0, 1: 4.0})
    assert run is not None
    assert run.stops is not None
    assert run.stops.between_s == pytest.approx(3600 / 0.15)
    assert run.stops.recovery_s == pytest.approx(1100.0)
    # Two of three failures are the worse kind's: 25,100 s of repair · 2/3 / (24,000 + 1,100) s = 2/3 of them in one repair, and
    # without a spare the run is ready for 1 / (1 + 2/3) of the time. Of the other kind's repairs nothing is known.
    assert run.stops.ready == pytest.approx(0.6)
