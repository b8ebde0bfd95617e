"""A moving average of the weights: its bytes and seconds by hand, who keeps one, and what launch files say of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from builders import H100, cluster_of, dense_model, job_of, row_of, training_of, with_experts
from cost_models.errors import InvalidInputError, NotExpressibleError
from cost_models.evaluate import evaluate
from cost_models.layers.parameters import count_parameters
from cost_models.runs.checkpoints import checkpoint_bytes
from planner.export.export import export_row
from planner.export.import_config import import_config
from planner.export.settings import InputFile
from planner.rows import evaluate_rows

HOST = {"host_memory_gib": 2000, "host_link_gb_per_s": 50, "host_adam_gb_per_s": 400}


def job(framework: str = "fsdp", model=None, **training):
    return job_of(model or dense_model(), framework, cluster=cluster_of(H100, **HOST), **training)


def priced(its, **strategy):
    return evaluate(its, row_of(its, all_stages=True, **strategy))


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [({"zero": 3}, 8), ({"zero": 2}, 8), ({"zero": 0}, 1), ({"zero": 3, "zero_shard_size": 4}, 4)],
)
def test_an_average_takes_the_parameters_bytes_and_lies_in_their_shards(strategy, ranks):
    plain, kept = job(), job(ema={})
    elements = count_parameters(plain.model).total
    more = [priced(kept, **strategy), priced(plain, **strategy)]
    states = [each.memory.breakdown(0, 0)["optimizer_states"] for each in more]
    assert states[0] - states[1] == pytest.approx(4.0 * elements / ranks, rel=1e-9)
    # Read twice and written once, at the bandwidth that kernels reach.
    rate = kept.calibration.memory_bytes_per_s_effective.value
    seconds = [each.terms_s["optimizer"][0] for each in more]
    assert seconds[0] - seconds[1] == pytest.approx(3 * 4.0 * elements / ranks / rate, rel=1e-6)


def test_in_host_memory_it_takes_the_link_and_the_processors():
    plain, kept = job(), job(ema={"device": "cpu"})
    held = 4.0 * count_parameters(plain.model).total / 8
    costs = [priced(each, zero=3) for each in (kept, plain)]
    assert costs[0].memory.allocated[0] == costs[1].memory.allocated[0]
    # Eight ranks, with half as much again for buffers, beside the processes themselves.
    assert costs[0].memory.host_bytes_per_node[0] == pytest.approx(8 * (1.5 * held + 3e9), rel=1e-9)
    prices = kept.calibration
    expected = held / prices.host_link_bytes_per_s.value + 3 * held * 8 / prices.host_adam_bytes_per_s.value
    assert costs[0].terms_s["optimizer"][0] - costs[1].terms_s["optimizer"][0] == pytest.approx(expected, rel=1e-6)


def test_torchtitan_hides_the_traffic_and_keeps_a_buffer():
    plain, kept = (job("torchtitan", framework_version="0.4", **given) for given in ({}, {"ema": {"device": "cpu"}}))
    costs = [priced(each, zero=3) for each in (kept, plain)]
    assert costs[0].step_time_s[0] == costs[1].step_time_s[0]
    more = costs[0].memory.allocated[0] - costs[1].memory.allocated[0]
    assert more == pytest.approx(4.0 * count_parameters(plain.model).total / 8, rel=1e-9)


def test_what_is_not_trained_is_not_averaged():
    for part in ({"adapter": {"rank": 8}}, {"frozen": ["mlp"]}):
        states = [priced(job(**part, **given), zero=3).memory.breakdown(0, 0) for given in ({"ema": {}}, {})]
        more = states[0]["optimizer_states"] - states[1]["optimizer_states"]
        # Adam's two moments of the same parameters take twice as much.
        assert more == pytest.approx(states[1]["optimizer_states"] / 2, rel=1e-9)


def test_experts_are_averaged_by_the_ranks_that_hold_them():
    model = with_experts(dense_model())
    states = [
        priced(job("torchtitan", model, framework_version="0.4", **given), zero=3, ep=4).memory
        for given in ({"ema": {}}, {})
    ]
    more = np.subtract(*(each.allocated[0] for each in states))
    # Two ranks share each quarter of the experts: an eighth of all, as of everything else.
    assert more == pytest.approx(4.0 * count_parameters(job(model=model).model).total / 8, rel=1e-9)


def test_a_checkpoint_holds_the_average():
    elements = count_parameters(job().model).total
    assert checkpoint_bytes(job(ema={})) - checkpoint_bytes(job()) == pytest.approx(4.0 * elements)


@pytest.mark.parametrize(("framework", "given", "said"), [
    ("megatron", {}, "megatron keeps no moving average"), ("deepspeed", {}, "deepspeed keeps no"), ("nanotron", {}, "nanotron keeps no"),
    ("torchtitan", {"framework_version": "0.3"}, "torchtitan 0.3 keeps no"),
])  # fmt: skip
def test_who_keeps_none_is_refused_with_who_does(framework, given, said):
    with pytest.raises(InvalidInputError, match=said) as refused:
        job(framework, ema={}, **given)
    (problem,) = refused.value.problems
    assert problem.pointer == "/training/ema"
    assert "fsdp" in problem.hint


@pytest.mark.parametrize(
    "given", [{"decay": 1.0}, {"decay": 0}, {"decay": float("nan")}, {"device": "nvme"}, {"dtype": "fp32"}, "gpu"]
)
def test_averages_that_are_none_are_refused(given):
    with pytest.raises(InvalidInputError, match="ema"):
        job(ema=given)


def row(**training):
    return {
        "model": dense_model(), "cluster": cluster_of(H100, **HOST), "strategy": {"zero": 3, "micro_batch_size": 1},
        "training": training_of("fsdp", model_impl="native", cross_entropy="unfused", global_batch_size=8, ema={"decay": 0.99}, **training),
    }  # fmt: skip


def test_an_evaluation_tells_where_it_lies():
    (answer,) = evaluate_rows([json.dumps(row(param_dtype="bf16"))])
    told = answer["ema"]
    assert (told["device"], told["dtype"], told["sharded"]) == ("gpu", "bf16", True)
    assert told["gib_per_rank"] == pytest.approx(2 * answer["num_parameters"] / 8 / 2**30)
    assert "average-in-half-precision" in answer["warnings"]


def test_the_pytorch_script_averages_and_others_say_that_they_cannot():
    files = export_row(row(), "pytorch")
    plan = next(file for file in files if file.path == "train_plan.json")
    assert json.loads(plan.content)["average"] == {"device": "gpu", "decay": 0.99}
    found = import_config([InputFile(plan.path, plan.content)])
    assert found.row["training"]["ema"] == {"device": "gpu", "decay": 0.99}
    with pytest.raises(NotExpressibleError, match="keeps a moving average"):
        export_row(row(), "accelerate")
