"""Exported command lines before Megatron-LM's own parser, `validate_args` and configuration class.

Values are read back from its arguments and compared with the plan. `python -m scripts.megatron_wheels` fetches the parsers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron_plans import CAPABILITY, HYBRIDS, PLANS, RECOMPUTED, planned, row_of
from planner.export.launch_plan import LaunchPlan, launch_plan
from planner.export.quantities import Quantities
from planner.export.target import Launch
from planner.export.targets import TARGETS
from scripts.megatron_wheels import FOLDER, RELEASES

PARSER = Path(__file__).with_name("megatron_parser.py")
TYPOS = (
    "--tensor-model-paralel-size 2", "--use-distributed-optimiser", "--recompute-granularity some", "--fp8-formt hybrid",
    "--num-layer 4", "--moe-router-topkk 2", "--optimizer adamm", "--cp-comm-typ p2p", "--pipeline-model-parallel-layout Etx|L",
    "--mock-dta", "--attention-backend best", "--cross-entropy-fusion-impl fast", "--micro-batch-size one",
)  # fmt: skip


def exported(release: str, case: int) -> tuple[LaunchPlan, Launch]:
    version = release.rpartition(".")[0]
    return told(planned(case, version), version)


def told(plan: LaunchPlan, version: str) -> tuple[LaunchPlan, Launch]:
    quantities = Quantities(plan, target="megatron", version=version)
    launch = TARGETS["megatron"].write(quantities)
    quantities.finish()
    return plan, launch


def line(plan: LaunchPlan, words: tuple[str, ...], launch: Launch) -> dict[str, Any]:
    variables = {each.name: each.value for each in launch.variables}
    return {
        "words": words[1:], "world_size": plan.world_size, "environment": variables, "capability": CAPABILITY[plan.generation],
    }  # fmt: skip


def asked(release: str, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    folder = FOLDER / release
    if not folder.exists():
        pytest.skip(f"{folder} is not there: run python -m scripts.megatron_wheels")
    pytest.importorskip("torch")
    command = [sys.executable, str(PARSER), str(folder)]
    done = subprocess.run(command, input=json.dumps(lines), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def expected(plan: LaunchPlan) -> dict[str, Any]:
    """What Megatron's arguments hold for a plan, worked out from the plan alone."""
    s, t, m = plan.strategy, plan.training, plan.model
    fsdp, full = s["zero"] >= 2, s["recompute"] == "full"
    interleaved = s["pp"] > 1 and s["vpp"] > 1
    kernels = {"cudnn": "fused", "fa2": "flash"}
    found = {
        "tensor_model_parallel_size": s["tp"], "pipeline_model_parallel_size": s["pp"], "context_parallel_size": s["cp"],
        "data_parallel_size": s["dp"], "virtual_pipeline_model_parallel_size": s["vpp"] if s["vpp"] > 1 else None,
        "micro_batch_size": s["micro_batch_size"], "global_batch_size": t["global_batch_size"], "seq_length": t["seq_length"],
        "sequence_parallel": s["sequence_parallel"], "use_distributed_optimizer": s["zero"] >= 1, "use_megatron_fsdp": fsdp,
        "overlap_grad_reduce": s["overlap"]["grad_reduce"], "overlap_param_gather": s["overlap"]["param_gather"],
        "tp_comm_overlap": s["overlap"]["tp_comm"], "overlap_moe_expert_parallel_comm": s["overlap"]["moe_all_to_all"],
        "overlap_p2p_comm": interleaved and s["overlap"]["p2p"],
        "num_distributed_optimizer_instances": s["dp"] * s["cp"] // s["zero_shard_size"] if s["zero"] else 1,
        "recompute_granularity": None if s["recompute"] == "none" else s["recompute"],
        "recompute_method": (s["recompute_method"] or "uniform") if full else None,
        "recompute_num_layers": (s["recompute_num_layers"] or 1) if full else None,
        "optimizer_cpu_offload": s["offload"]["optimizer_fraction"] > 0,
        "cpu_offloading_num_layers": s["offload"]["activation_layers"],
        "bf16": t["precision"] in ("bf16", "fp8", "nvfp4"), "fp16": t["precision"] == "fp16",
        "fp8_recipe": t["fp8_recipe"] if t["precision"] == "fp8" else "delayed", "fp4": "e2m1" if t["precision"] == "nvfp4" else None,
        "fp8_param_gather": t["param_dtype"] == "fp8", "accumulate_allreduce_grads_in_fp32": t["grad_dtype"] == "fp32",
        "exp_avg_dtype": {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[t["optimizer_state_dtype"]],
        "exp_avg_sq_dtype": {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[t["optimizer_state_dtype"]],
        "optimizer": t["optimizer"], "attention_backend": kernels[t["attention_kernel"]],
        "cross_entropy_loss_fusion": t["cross_entropy"] == "fused", "hidden_dropout": t["dropout"], "attention_dropout": t["dropout"],
        "cuda_graph_impl": "local" if t["cuda_graphs"] else "none", "num_layers": m["num_layers"], "hidden_size": m["hidden_size"],
        "num_attention_heads": m["num_attention_heads"], "vocab_size": m["vocab_size"], "swiglu": m["gated_mlp"],
        "normalization": "RMSNorm" if m["norm"] == "rmsnorm" else "LayerNorm", "add_bias_linear": bool(m["mlp_bias"]),
        "untie_embeddings_and_output_weights": not m["tie_word_embeddings"], "qk_layernorm": m["qk_norm"] == "per_head",
        "position_embedding_type": {"rope": "rope", "learned": "learned_absolute"}[m["position_embedding"]],
        "multi_latent_attention": "mla" in m, "softmax_type": "learnable" if m["attention_sinks"] else "vanilla",
    }  # fmt: skip
    if s["cp"] > 1:
        found["cp_comm_type"] = [{"p2p": "p2p", "allgather": "all_gather"}[s["cp_comm"]]]
    if s["recompute"] == "selective":
        found["recompute_modules"] = list(s["recompute_modules"])
    if fsdp:
        found["data_parallel_sharding_strategy"] = {2: "optim_grads", 3: "optim_grads_params"}[s["zero"]]
    if s["offload"]["optimizer_fraction"]:
        found["optimizer_offload_fraction"] = s["offload"]["optimizer_fraction"]
    if "mla" in m:
        mla = m["mla"]
        found |= {
            "kv_lora_rank": mla["kv_lora_rank"], "q_lora_rank": mla["q_lora_rank"], "qk_head_dim": mla["qk_nope_head_dim"],
            "qk_pos_emb_head_dim": mla["qk_rope_head_dim"], "v_head_dim": mla["v_head_dim"],
        }  # fmt: skip
    else:
        grouped = m["num_key_value_heads"] != m["num_attention_heads"]
        found |= {"kv_channels": m["head_dim"], "num_query_groups": m["num_key_value_heads"] if grouped else 1}
    return found | (_mixture(plan) if "moe" in m else {"num_experts": None, "ffn_hidden_size": m["intermediate_size"]})


def expected_hybrid(plan: LaunchPlan) -> dict[str, Any]:
    """What the arguments hold for a plan of a hybrid, worked out from the plan alone, beside what is the same for every model."""
    s, m = plan.strategy, plan.model
    r = m["recurrent"]
    found = {
        "tensor_model_parallel_size": s["tp"], "pipeline_model_parallel_size": s["pp"], "context_parallel_size": s["cp"],
        "data_parallel_size": s["dp"], "virtual_pipeline_model_parallel_size": s["vpp"] if s["vpp"] > 1 else None,
        "hidden_size": m["hidden_size"], "qk_layernorm": m["qk_norm"] == "per_head", "attention_output_gate": m["attention_gate"],
        "recompute_granularity": None if s["recompute"] == "none" else s["recompute"], "swiglu": m["gated_mlp"],
        "expert_model_parallel_size": s["ep"], "num_experts": m["moe"]["num_experts"] if "moe" in m else None,
    }  # fmt: skip
    if r["kind"] == "gated-delta-net":
        return found | {
            "num_layers": m["num_layers"], "hybrid_layer_pattern": None, "experimental_attention_variant": "gated_delta_net",
            "linear_attention_freq": [int(each == "linear_attention") for each in m["layer_types"]],
            "linear_num_key_heads": r["num_groups"], "linear_num_value_heads": r["num_heads"], "linear_key_head_dim": r["state_size"],
            "linear_value_head_dim": r["head_dim"], "linear_conv_kernel_dim": r["conv_kernel"], "rotary_percent": 0.25,
            "layernorm_zero_centered_gamma": True, "moe_shared_expert_gate": True,
        }  # fmt: skip
    blocks = 1 if m.get("single_block_layers") else 2
    return found | {
        "num_layers": blocks * m["num_layers"], "mamba_num_heads": r["num_heads"], "mamba_head_dim": r["head_dim"],
        "mamba_num_groups": r["num_groups"], "mamba_state_dim": r["state_size"], "squared_relu": not m["gated_mlp"],
        "recompute_num_layers": blocks * (s["recompute_num_layers"] or 1) if s["recompute"] == "full" else None,
    }  # fmt: skip


def expected_blocks(plan: LaunchPlan) -> list[str] | None:
    """The blocks of each virtual stage."""
    m = plan.model
    if m["recurrent"]["kind"] != "mamba2":
        return None
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    layers = [letters[each] + ("" if m.get("single_block_layers") else "-") for each in m["layer_types"]]
    starts = [sum(plan.layers_per_stage[:stage]) for stage in range(len(plan.layers_per_stage))]
    return ["".join(layers[start : start + count]) for start, count in zip(starts, plan.layers_per_stage, strict=True)]


def _mixture(plan: LaunchPlan) -> dict[str, Any]:
    s, moe = plan.strategy, plan.model["moe"]
    frequency = list(moe["moe_layer_freq"])
    return {
        "num_experts": moe["num_experts"], "moe_router_topk": moe["top_k"], "moe_ffn_hidden_size": moe["expert_intermediate_size"],
        "expert_model_parallel_size": s["ep"], "expert_tensor_parallel_size": s["etp"],
        "moe_token_dispatcher_type": s["moe_dispatcher"], "moe_layer_freq": 1 if all(frequency) else frequency,
        "moe_shared_expert_intermediate_size": moe["num_shared_experts"] * moe["shared_expert_intermediate_size"] or None,
    }  # fmt: skip


# The newest release with every change: its process takes as long as those of both others, whose command lines are kept as files.
@pytest.mark.parametrize(
    "release", [each if each == RELEASES[-1] else pytest.param(each, marks=pytest.mark.proof) for each in RELEASES]
)
def test_megatron_understands_what_the_plan_says(release: str):
    """The line and its variant on mock data are accepted, and every value arrives; typos in every section are refused."""
    cases = [exported(release, case) for case in range(len(PLANS))]
    lines = [line(plan, launch.command, launch) for plan, launch in cases]
    mock = [line(plan, launch.mock_command, launch) for plan, launch in cases]
    wrong = [{**mock[0], "words": [*mock[0]["words"], *typo.split()]} for typo in TYPOS]
    version = release.rpartition(".")[0]
    hybrids = [
        told(launch_plan(row_of(case, version)), version) for case in (*HYBRIDS, *(RECOMPUTED if version != "0.17" else ()))
    ]  # fmt: skip
    of_hybrids = [line(plan, launch.mock_command, launch) for plan, launch in hybrids]
    answers = asked(release, [*lines, *mock, *wrong, *of_hybrids])
    _check_hybrids([plan for plan, _ in hybrids], answers[-len(hybrids) :])
    answers = answers[: -len(hybrids)]
    for (plan, _), answer, mocked in zip(cases, answers, answers[len(cases) :], strict=False):
        assert "error" not in answer, answer["error"]
        assert "error" not in mocked, mocked["error"]
        args, wanted = answer["args"], expected(plan)
        assert {name: args[name] for name in wanted} == wanted
        if answer["layout"] is not None:
            assert tuple(answer["layout"]) == plan.layers_per_stage
        else:
            assert len(set(plan.layers_per_stage)) == 1
    assert [typo for typo, answer in zip(TYPOS, answers[2 * len(cases) :], strict=True) if "error" not in answer] == []


def _check_hybrids(plans: list[LaunchPlan], answers: list[dict[str, Any]]) -> None:
    for plan, answer in zip(plans, answers, strict=True):
        assert "error" not in answer, answer["error"]
        args, wanted = answer["args"], expected_hybrid(plan)
        assert {name: args[name] for name in wanted} == wanted
        assert answer["blocks"] == expected_blocks(plan)
        assert answer["layout"] is None or tuple(answer["layout"]) == plan.layers_per_stage
