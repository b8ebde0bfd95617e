"""Megatron-LM's command line of a plan, against lines that its own parser accepted, and what the target refuses."""

from __future__ import annotations

from typing import Any

import pytest

from planner.export.launch_plan import launch_plan
from planner.export.quantities import FieldNotExpressibleError, Quantities
from planner.export.target import Launch
from planner.export.targets import TARGETS


def written(
    model: str | dict[str, Any] = "llama-3.1-70b",
    *,
    nodes: int = 8,
    version: str = "0.18",
    cluster: str = "dgx-h100",
    training: dict[str, Any] | None = None,
    **strategy: Any,
) -> Launch:
    row = {
        "model": {"preset": model} if isinstance(model, str) else model,
        "cluster": {"preset": cluster, "num_nodes": nodes},
        "training": {
            "seq_length": 8192, "global_batch_size": 512, "precision": "bf16", "framework": "megatron",
            "framework_version": version, **(training or {}),
        },
        "strategy": {"micro_batch_size": 1, **strategy},
    }  # fmt: skip
    quantities = Quantities(launch_plan(row), target="megatron", version=version)
    launch = TARGETS["megatron"].write(quantities)
    quantities.finish()
    return launch


def words(*given: Any, **named: Any) -> str:
    return " ".join(written(*given, **named).command)


def test_the_worked_example():
    """The plan that Megatron's parser took in this spelling: 64 GPUs, interleaved, with context parallelism."""
    line = words(tp=4, pp=4, vpp=5, cp=2, recompute="selective", overlap={"tp_comm": True})
    for said in (
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 5",
        "--context-parallel-size 2 --cp-comm-type p2p --sequence-parallel --micro-batch-size 1 --global-batch-size 512",
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --tp-comm-overlap",
        "--recompute-granularity selective --recompute-modules core_attn --bf16",
        "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64",
        "--group-query-attention --num-query-groups 8 --kv-channels 128",
        "--swiglu --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256",
    ):
        assert said in line


def test_two_levels_of_context_parallelism_are_the_sizes_of_its_hierarchy():
    """core/parallel_state.py, create_hierarchical_groups: the first number is the neighbours' level, the one that trades heads."""
    line = words(tp=2, pp=4, cp=8, cp_comm="a2a+p2p", cp_a2a_size=2)
    assert (
        "--context-parallel-size 8 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4 --sequence-parallel"
        in line
    )
    assert "--hierarchical" not in words(tp=2, pp=4, cp=8, cp_comm="p2p")


def test_uneven_stages_are_a_layout():
    line = words(tp=8, pp=4, layers_per_stage=[19, 20, 20, 21])
    assert "--pipeline-model-parallel-layout Et*19|t*20|t*20|t*21L" in line
    assert "--num-virtual" not in line


@pytest.mark.parametrize(
    ("strategy", "cluster", "value"),
    [
        ({"tp": 2}, "dgx-h100", "1"),
        ({"tp": 2}, "dgx-b200", None),
        ({"tp": 1}, "dgx-h100", None),
        ({"tp": 2, "zero": 3}, "dgx-h100", "8"),
        ({"zero": 3}, "dgx-b200", "8"),
    ],
)
def test_the_queues_of_a_device_follow_from_its_generation(strategy: dict[str, Any], cluster: str, value: str | None):
    """megatron/training/arguments.py: 1 with tp or cp above 1 before Blackwell, never 1 under Megatron-FSDP."""
    launch = written("llama-3.1-8b", nodes=1, cluster=cluster, **strategy)
    assert {each.name: each.value for each in launch.variables}.get("CUDA_DEVICE_MAX_CONNECTIONS") == value


def test_every_layer_recomputed_is_uniform_with_one():
    assert "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1" in words(
        tp=8, pp=4, recompute="full"
    )
    assert "--recompute-method block --recompute-num-layers 5" in words(
        tp=8, pp=4, recompute="full", recompute_method="block", recompute_num_layers=5
    )


def test_deepep_is_named_as_the_release_names_it():
    named = {"ep": 8, "etp": 1, "tp": 1, "moe_dispatcher": "flex", "nodes": 1}
    assert "--moe-token-dispatcher-type flex --moe-enable-deepep" in words("mixtral-8x7b", version="0.15", **named)
    assert "--moe-flex-dispatcher-backend deepep" in words("mixtral-8x7b", version="0.16", **named)


def test_null_tokenizer_of_earlier_releases_adds_a_token():
    """`_NullTokenizer.vocab_size` of 0.17 is one more than it was told."""
    assert "128255" in written(version="0.17", tp=8, pp=4).mock_command
    assert "128256" in written(version="0.18", tp=8, pp=4).mock_command


@pytest.mark.parametrize(
    ("named", "field"),
    [
        ({"training": {"cross_entropy": "te", "recipe": "nvidia-perf"}, "version": "0.19"}, "training.cross_entropy"),
        ({"training": {"grad_reduce_dtype": "bf16"}}, "training.grad_reduce_dtype"),
        ({"training": {"attention_kernel": "fa3"}}, "training.attention_kernel"),
        ({"training": {"compile": True}}, "training.compile"),
        ({"training": {"adapter": {"rank": 8}}}, "training.adapter"),
        ({"training": {"mean_document_length": 1000}}, "training.mean_document_length"),
        ({"training": {"document_lengths": [[500, 0.5], [2000, 0.5]]}}, "training.document_lengths"),
        ({"model": "gemma-2-9b", "tp": 8, "pp": 1}, "model.norms_per_layer"),
        ({"model": "olmo-2-13b", "tp": 8, "pp": 1}, "model.qk_norm"),
        ({"model": "llama-3.1-8b", "pp": 1, "offload": {"activation_layers": 4}, "version": "0.15"}, "offload.activation_layers"),
    ],
)  # fmt: skip
def test_what_it_cannot_say_is_refused_by_field(named: dict[str, Any], field: str):
    with pytest.raises(FieldNotExpressibleError) as refused:
        written(**{"tp": 8, "pp": 4, **named})
    assert refused.value.context["field"] == field
    assert refused.value.code == "plan-not-expressible"
