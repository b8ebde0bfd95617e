"""Exported files before Megatron-Bridge's own `ConfigContainer`, which is filled by the exported script and validated by Bridge.

Values are read back from the container and compared with the plan. `python -m scripts.megatron_wheels` fetches the wheels.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron_plans import CAPABILITY, PLANS, planned
from planner.export.launch_plan import LaunchPlan
from planner.export.quantities import Quantities
from planner.export.targets import TARGETS
from planner.export.targets.megatron_bridge.keys import CORE
from scripts.megatron_wheels import BRIDGE, BRIDGE_FOLDER, FOLDER

CONTAINER = Path(__file__).with_name("bridge_container.py")
TYPOS = (
    ("model", "tensor_model_paralel_size"), ("ddp", "use_distributed_optimiser"), ("optimizer", "exp_avg_dtypes"), ("train", "micro_batchsize"),
    ("mixed_precision", "fp8_recipee"), ("dataset", "sequence_len"), ("models", "num_layers"), ("checkpoint", "ckpt_fmt"),
)  # fmt: skip
WRONG: tuple[tuple[str, str, Any], ...] = (
    ("model", "attention_backend", "best"), ("model", "activation_func", "swiglu_"), ("optimizer", "exp_avg_dtype", "bf17"),
    ("model", "pipeline_model_parallel_layout", "Etx|L"), ("model", "recompute_granularity", "some"),
    ("model", "tensor_model_parallel_size", 3),
)  # fmt: skip


ADAPTERS: tuple[tuple[dict[str, Any], str, list[str]], ...] = (
    ({"rank": 8, "dropout": 0.1}, "CanonicalLoRA",
     ["linear_q", "linear_k", "linear_v", "linear_proj", "linear_fc1_gate", "linear_fc1_up", "linear_fc2"]),
    ({"rank": 16, "target_modules": ["linear_qkv", "linear_proj"]}, "LoRA", ["linear_qkv", "linear_proj"]),
    ({"rank": 16, "target_modules": ["linear_qkv"], "dora": True}, "DoRA", ["linear_qkv"]),
)  # fmt: skip


def exported(version: str, case: int, **training: Any) -> tuple[LaunchPlan, dict[str, Any]]:
    plan = planned(case, CORE[version], **training)
    quantities = Quantities(plan, target="megatron-bridge", version=version)
    launch = TARGETS["megatron-bridge"].write(quantities)
    quantities.finish()
    files = {file.path: file.content for file in launch.files}
    return plan, {
        "script": files["train.py"], "plan": files["plan.yaml"], "world_size": plan.world_size,
        "environment": {each.name: each.value for each in launch.variables}, "capability": CAPABILITY[plan.generation],
    }  # fmt: skip


def asked(version: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    release, core = BRIDGE[version]
    folders = [BRIDGE_FOLDER / release, FOLDER / core]
    for folder in folders:
        if not folder.exists():
            pytest.skip(f"{folder} is not there: run python -m scripts.megatron_wheels")
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    command = [sys.executable, str(CONTAINER), *map(str, folders)]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def expected(plan: LaunchPlan, version: str) -> dict[str, dict[str, Any]]:
    """What Bridge's container holds for a plan, worked out from the plan alone."""
    s, t, m = plan.strategy, plan.training, plan.model
    fsdp, full, interleaved = s["zero"] >= 2, s["recompute"] == "full", s["pp"] > 1 and s["vpp"] > 1
    stored = {"fp16": "torch.float16"}.get(t["precision"], "torch.bfloat16")
    kept = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[t["optimizer_state_dtype"]]
    graphs = "none" if not t["cuda_graphs"] else "local" if version != "0.6" else "transformer_engine"
    model = {
        "tensor_model_parallel_size": s["tp"], "pipeline_model_parallel_size": s["pp"], "context_parallel_size": s["cp"],
        "virtual_pipeline_model_parallel_size": s["vpp"] if s["vpp"] > 1 else None, "seq_length": t["seq_length"],
        "sequence_parallel": s["sequence_parallel"], "tp_comm_overlap": s["overlap"]["tp_comm"],
        "overlap_p2p_comm": interleaved and s["overlap"]["p2p"], "overlap_moe_expert_parallel_comm": s["overlap"]["moe_all_to_all"],
        "recompute_granularity": None if s["recompute"] == "none" else s["recompute"],
        "recompute_method": (s["recompute_method"] or "uniform") if full else None,
        "recompute_num_layers": (s["recompute_num_layers"] or 1) if full else None,
        "cpu_offloading": s["offload"]["activation_layers"] > 0, "cpu_offloading_num_layers": s["offload"]["activation_layers"],
        "bf16": t["precision"] in ("bf16", "fp8", "nvfp4"), "fp16": t["precision"] == "fp16", "params_dtype": stored,
        "pipeline_dtype": stored, "fp8_recipe": t["fp8_recipe"] if t["precision"] == "fp8" else "tensorwise",
        "fp4": "e2m1" if t["precision"] == "nvfp4" else None, "fp8_param": t["param_dtype"] == "fp8",
        "attention_backend": {"cudnn": "fused", "fa2": "flash"}[t["attention_kernel"]], "cuda_graph_impl": graphs,
        "use_te_rng_tracker": t["cuda_graphs"], "cross_entropy_loss_fusion": t["cross_entropy"] == "fused",
        "hidden_dropout": t["dropout"], "attention_dropout": t["dropout"], "num_layers": m["num_layers"],
        "hidden_size": m["hidden_size"], "num_attention_heads": m["num_attention_heads"], "gated_linear_unit": m["gated_mlp"],
        "activation_func": "silu" if m["gated_mlp"] else "gelu", "add_bias_linear": bool(m["mlp_bias"]),
        "normalization": "RMSNorm" if m["norm"] == "rmsnorm" else "LayerNorm", "qk_layernorm": m["qk_norm"] == "per_head",
        "share_embeddings_and_output_weights": m["tie_word_embeddings"],
        "position_embedding_type": {"rope": "rope", "learned": "learned_absolute"}[m["position_embedding"]],
        "multi_latent_attention": "mla" in m, "softmax_type": "learnable" if m["attention_sinks"] else "vanilla",
        "vocab_size": -(-m["vocab_size"] // (128 * s["tp"])) * 128 * s["tp"], "window_size": None,
    }  # fmt: skip
    if m.get("sliding_window"):
        model["window_size"] = [m["sliding_window"] - 1, 0]
        model["window_attn_skip_freq"] = [int(kind == "sliding_attention") for kind in m["layer_types"]]
    if s["cp"] > 1:
        model["cp_comm_type"] = {"p2p": "p2p", "allgather": "all_gather"}[s["cp_comm"]]
    if s["recompute"] == "selective":
        model["recompute_modules"] = list(s["recompute_modules"])
    if "mla" in m:
        spelled = {"qk_head_dim": "qk_nope_head_dim", "qk_pos_emb_head_dim": "qk_rope_head_dim"}
        names = ("kv_lora_rank", "q_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
        model |= {name: m["mla"][spelled.get(name, name)] for name in names}
    else:
        model |= {"kv_channels": m["head_dim"], "num_query_groups": m["num_key_value_heads"]}
    ddp: dict[str, Any] = {
        "use_distributed_optimizer": s["zero"] >= 1, "use_megatron_fsdp": fsdp, "grad_reduce_in_fp32": t["grad_dtype"] == "fp32",
        "overlap_grad_reduce": s["overlap"]["grad_reduce"], "overlap_param_gather": s["overlap"]["param_gather"],
        "num_distributed_optimizer_instances": s["dp"] * s["cp"] // s["zero_shard_size"] if s["zero"] else 1,
    }  # fmt: skip
    if fsdp:
        ddp["data_parallel_sharding_strategy"] = {2: "optim_grads", 3: "optim_grads_params"}[s["zero"]]
        if version != "0.3":
            ddp["megatron_fsdp_main_grads_dtype"] = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[t["grad_dtype"]]
    optimizer = {
        "optimizer": t["optimizer"], "use_distributed_optimizer": s["zero"] >= 1, "exp_avg_dtype": kept, "exp_avg_sq_dtype": kept,
        "overlap_param_gather": s["overlap"]["param_gather"], "optimizer_cpu_offload": s["offload"]["optimizer_fraction"] > 0,
        "optimizer_offload_fraction": s["offload"]["optimizer_fraction"], "bf16": model["bf16"], "fp16": model["fp16"],
    }  # fmt: skip
    return {
        "model": model | (_mixture(plan) if "moe" in m else {"num_moe_experts": None, "ffn_hidden_size": m["intermediate_size"]}),
        "ddp": ddp, "optimizer": optimizer, "dataset": {"sequence_length": t["seq_length"]},
        "train": {"micro_batch_size": s["micro_batch_size"], "global_batch_size": t["global_batch_size"]},
    }  # fmt: skip


def _mixture(plan: LaunchPlan) -> dict[str, Any]:
    s, moe = plan.strategy, plan.model["moe"]
    frequency = list(moe["moe_layer_freq"])
    return {
        "num_moe_experts": moe["num_experts"], "moe_router_topk": moe["top_k"], "moe_ffn_hidden_size": moe["expert_intermediate_size"],
        "expert_model_parallel_size": s["ep"], "expert_tensor_parallel_size": s["etp"],
        "moe_token_dispatcher_type": s["moe_dispatcher"], "moe_layer_freq": 1 if all(frequency) else frequency,
        "moe_shared_expert_intermediate_size": moe["num_shared_experts"] * moe["shared_expert_intermediate_size"] or None,
    }  # fmt: skip


def altered(case: dict[str, Any], section: str, name: str, value: Any) -> dict[str, Any]:
    """The files with one more line in a section; a second line of a name is the one that YAML keeps."""
    head = f"{section}:\n"
    plan = case["plan"] if head in case["plan"] else f"{case['plan']}{head}"
    lines = [line for line in plan.split("\n") if not line.startswith(f"  {name}:")]
    return {**case, "plan": "\n".join(lines).replace(head, f"{head}  {name}: {value}\n", 1)}


# The newest release in every run, since each takes its process six seconds; what is written for the others is kept as files.
@pytest.mark.parametrize(
    "version",
    [version if version == "0.6" else pytest.param(version, marks=pytest.mark.proof) for version in CORE],
)
def test_bridge_understands_what_the_plan_says(version: str):
    """Every value arrives in the container, and typos in every section are refused."""
    cases = [exported(version, case) for case in range(len(PLANS))]
    typos = [altered(cases[0][1], section, name, 2) for section, name in TYPOS]
    wrong = [altered(cases[1][1], *each) for each in WRONG]
    adapted = [exported(version, 0, adapter=adapter)[1] for adapter, *_ in ADAPTERS]
    answers = asked(version, [*(files for _, files in cases), *typos, *wrong, *adapted])
    for (plan, _), answer in zip(cases, answers, strict=False):
        assert "error" not in answer, answer["error"]
        for section, wanted in expected(plan, version).items():
            assert {name: answer["sections"][section].get(name, "absent") for name in wanted} == wanted, plan.strategy
        assert answer["dp"] == plan.strategy["dp"]
        if answer["layout"] is not None:
            assert tuple(answer["layout"]) == plan.layers_per_stage
        else:
            assert len(set(plan.layers_per_stage)) == 1
    refused = answers[len(cases) : -len(ADAPTERS)]
    assert [typo for typo, answer in zip((*TYPOS, *WRONG), refused, strict=True) if "error" not in answer] == []
    for (adapter, kind, modules), answer in zip(ADAPTERS, answers[-len(ADAPTERS) :], strict=True):
        assert "error" not in answer, answer["error"]
        wanted = {
            "class": kind,
            "target_modules": modules,
            "dim": adapter["rank"],
            "dropout": adapter.get("dropout", 0.0),
        }
        assert {name: answer["sections"]["peft"][name] for name in wanted} == wanted
