"""The host's lead over head and loss: what it takes off the layers' waits, and that bounds of the search know of it."""

from __future__ import annotations

import numpy as np
import pytest

from builders import dense_model, job_of, rows_of
from cost_models.layers.costs import LAYER_PARTS
from cost_models.step.stage_costs import build_tables, least_ends_s, runs_ahead
from cost_models.step.stages import stages

LAYERS, MICRO_BATCHES = 4, 2
LAUNCH = LAYER_PARTS.index("launch")


class Case:
    """Strategies of one replica whose layers wait for the host, and the seconds of what their stage holds."""

    def __init__(self, *strategies, vocab: int = 32000, framework: str = "fsdp", **training) -> None:
        model = dense_model(LAYERS, vocab_size=vocab)
        given = {"seq_length": 128, "global_batch_size": MICRO_BATCHES, **training}
        self.job = job_of(model, framework, cluster={"gpus_per_node": 1}, **given)
        self.rows = rows_of(self.job, *({"zero": 0, "recompute": "none", **each} for each in strategies or ({},)))
        self.tables = build_tables(self.job, self.rows)
        layers, ends = self.tables.layers, self.tables.ends
        self.waits = LAYERS * layers.parts_JPU[0, LAUNCH, 0]
        self.more = LAYERS * (layers.again_JU - layers.forward_JU)[0, 0]
        self.forward = LAYERS * layers.forward_JU[0, 0]
        self.ended = float((ends.head + ends.loss)[0])
        self.terms = stages(self.job, self.rows).terms_s

    def term(self, name: str) -> float:
        return float(self.terms[name][0])


def test_layers_wait_as_much_shorter_as_head_and_loss_take() -> None:
    case = Case()
    assert 0 < case.ended < case.waits
    assert case.term("launch") == pytest.approx(MICRO_BATCHES * (case.waits - case.ended))


def test_a_head_longer_than_all_waits_hides_them() -> None:
    case = Case(vocab=2_000_000)
    assert case.ended > case.waits > 0
    assert case.term("launch") == 0


def test_repeated_layers_wait_longer_and_the_lead_covers_that_too() -> None:
    """The lead is taken off the plain wait first. What is left of it shortens what repeating adds to the wait, never the repeated
    forward itself.
    """
    some, all_ = (Case({"recompute": "full"}, vocab=vocab) for vocab in (32000, 4_000_000))
    assert some.more > 0
    assert some.term("launch") == pytest.approx(MICRO_BATCHES * (some.waits - some.ended))
    assert some.term("recompute") == pytest.approx(MICRO_BATCHES * (some.forward + some.more))
    assert all_.ended > all_.waits + all_.more
    assert all_.term("launch") == 0
    assert all_.term("recompute") == pytest.approx(MICRO_BATCHES * all_.forward)


def test_waits_in_which_a_collective_runs_are_not_the_hosts_to_shorten() -> None:
    """Over a network so slow that every layer waits for its gather longer than for the host, the lead saves nothing; over one so fast
    that nothing of a gather sticks out, as much as without a gather, and no more than head, loss and their own gather take.
    """
    job_at = {
        speed: job_of(
            dense_model(LAYERS), "fsdp", cluster={"gpus_per_node": 1, "num_nodes": 2, "nic_gbit_per_s": speed},
            seq_length=128, global_batch_size=2 * MICRO_BATCHES,
        )
        for speed in (0.1, 1e6)
    }  # fmt: skip
    waited, launch, ends = {}, {}, {}
    for speed, job in job_at.items():
        rows = rows_of(job, {"zero": 3, "recompute": "none"})
        tables = build_tables(job, rows)
        waits_JN = tables.layers.parts_JPU[:, LAUNCH] + tables.layers.sharded_waits_JU
        waited[speed] = MICRO_BATCHES * LAYERS * float(waits_JN[0, 0])
        launch[speed] = float(stages(job, rows).terms_s["launch"][0])
        ends[speed] = MICRO_BATCHES * float((tables.ends.head + tables.ends.loss)[0])
    assert launch[0.1] == pytest.approx(waited[0.1])
    assert 0 < waited[1e6] - launch[1e6] < waited[1e6]
    assert waited[1e6] - launch[1e6] >= ends[1e6] * (1 - 1e-9)


@pytest.mark.parametrize(("framework", "training"), [("fsdp", {"model_impl": "native"}), ("megatron", {})])
def test_the_lead_was_measured_for_hugging_faces_modules_alone(framework: str, training) -> None:
    case = Case(framework=framework, **training)
    assert not runs_ahead(case.job, case.rows).any()
    assert case.term("launch") == pytest.approx(MICRO_BATCHES * case.waits)


def test_a_pipelines_stages_wait_for_each_other_instead() -> None:
    job = job_of(dense_model(4), "deepspeed", seq_length=128)
    assert runs_ahead(job, rows_of(job, {"pp": 1}, {"pp": 2}, {"tp": 2})).tolist() == [True, False, True]


@pytest.mark.parametrize("framework", ["fsdp", "deepspeed"])
@pytest.mark.parametrize("vocab", [32000, 400_000, 2_000_000])
def test_the_ends_take_no_less_than_their_bound_whatever_stands_around_the_layers(framework: str, vocab: int) -> None:
    """Bound of a stage: computation and waits of plain layers, and the ends less the lead over those waits."""
    job = job_of(dense_model(LAYERS, vocab_size=vocab), framework, seq_length=128, global_batch_size=64)
    rows = rows_of(job, *({"zero": zero, "recompute": each} for zero in (0, 2, 3) for each in ("none", "full")))
    first, last = least_ends_s(job, rows, tables := build_tables(job, rows))
    bound = rows.num_micro_batches * (LAYERS * tables.layers.cases.spread(tables.layers.whole)[0] + first + last)
    found = np.sum(list(stages(job, rows).terms_s.values()), axis=0)
    assert np.all(bound <= found * (1 + 1e-12))


@pytest.mark.parametrize(
    ("fields", "frozen"),
    [
        ({"parallel_block": True, "norms_per_layer": 1}, ["head", "embedding"]),
        ({"head_bias": True}, ["attention", "norms"]),
        ({"activation_parameters": 3}, ["mlp"]),
        ({"attention_sinks": True}, ["attention", "norms"]),
    ],
)
def test_a_wait_that_is_hidden_altogether_leaves_nothing(fields, frozen) -> None:
    """Head and loss of a vocabulary of 50,021 outlast every wait; nothing is recomputed, so no rounding may show as recomputation."""
    model = {
        "num_layers": 12, "hidden_size": 2304, "num_attention_heads": 18, "num_key_value_heads": 6, "intermediate_size": 6528,
        "vocab_size": 50021, **fields,
    }  # fmt: skip
    given = {"seq_length": 3072, "global_batch_size": 96, "frozen": frozen}
    job = job_of(model, "fsdp", cluster={"preset": "dgx-h100", "num_nodes": 2}, **given)
    terms = stages(job, rows_of(job, {"zero": 0, "recompute": "none"})).terms_s
    assert (terms["launch"].tolist(), terms["recompute"].tolist()) == ([0.0], [0.0])
