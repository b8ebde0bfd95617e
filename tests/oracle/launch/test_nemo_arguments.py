"""Exported scripts of NeMo 2 before the signatures of its classes and Megatron Core's own configuration classes.

Values are read back from what the scripts build and compared with the plan. `python -m scripts.megatron_wheels` fetches the wheels.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cost_models.errors import InvalidInputError
from megatron_plans import PLANS, planned
from planner.export.launch_plan import LaunchPlan
from planner.export.quantities import FieldNotExpressibleError, Quantities
from planner.export.targets import TARGETS
from planner.export.targets.nemo.keys import CORE
from scripts.megatron_wheels import FOLDER, NEMO, NEMO_FOLDER

ARGUMENTS = Path(__file__).with_name("nemo_arguments.py")
REFUSED = {
    # Its Megatron Core has no nvfp4, so that there is no such plan.
    "2.5": {
        "overlap.moe_all_to_all",
        "model.attention_sinks",
        "offload.activation_layers",
        "precision-unsupported-by-framework",
    },
    "2.6": {"overlap.moe_all_to_all", "training.precision", "offload.activation_layers"},
    "2.7": {"overlap.moe_all_to_all"},
}
"""Fields of the plans that a release, or its Megatron Core, cannot be told, and the code of a plan that it cannot run."""
TYPOS = (
    ("tensor_model_parallel_size", "tensor_model_paralel_size"), ("use_distributed_optimizer", "use_distributed_optimiser"),
    ("adam_beta1", "adam_beta_1"), ("micro_batch_size", "microbatch_size"), ("grad_reduce_in_fp32", "grad_reduce_fp32"),
    ("num_attention_heads", "attention_heads"), ("tp_comm_overlap=", "tp_overlap="), ("AttnBackend.fused", "AttnBackend.best"),
    ("torch.bfloat16", "torch.bfloat17"), ("F.silu", "F.silo"), ("'selective'", "'some'"),
)  # fmt: skip
_TORCH = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}


def exported(version: str, case: int, **training: Any) -> tuple[LaunchPlan, str]:
    plan = planned(case, CORE[version], **training)
    quantities = Quantities(plan, target="nemo", version=version)
    launch = TARGETS["nemo"].write(quantities)
    quantities.finish()
    return plan, launch.files[0].content


def asked(version: str, scripts: list[str]) -> list[dict[str, Any]]:
    release, core = NEMO[version]
    folders = [NEMO_FOLDER / release, FOLDER / core]
    for folder in folders:
        if not folder.exists():
            pytest.skip(f"{folder} is not there: run python -m scripts.megatron_wheels")
    pytest.importorskip("torch")
    command = [sys.executable, str(ARGUMENTS), *map(str, folders)]
    done = subprocess.run(command, input=json.dumps(scripts), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def expected(plan: LaunchPlan) -> dict[str, dict[str, Any]]:
    """What the classes hold for a plan, worked out from the plan alone."""
    s, t, m = plan.strategy, plan.training, plan.model
    fsdp, full, interleaved = s["zero"] >= 2, s["recompute"] == "full", s["pp"] > 1 and s["vpp"] > 1
    stored = _TORCH["fp16" if t["precision"] == "fp16" else "bf16"]
    batches = {
        "seq_length": t["seq_length"],
        "micro_batch_size": s["micro_batch_size"],
        "global_batch_size": t["global_batch_size"],
    }
    degrees = {
        "tensor_model_parallel_size": s["tp"], "pipeline_model_parallel_size": s["pp"], "context_parallel_size": s["cp"],
        "sequence_parallel": s["sequence_parallel"],
    }  # fmt: skip
    config = {
        **degrees, "virtual_pipeline_model_parallel_size": s["vpp"] if s["vpp"] > 1 else None, "seq_length": t["seq_length"],
        "tp_comm_overlap": s["overlap"]["tp_comm"], "overlap_p2p_comm": interleaved and s["overlap"]["p2p"],
        "recompute_granularity": None if s["recompute"] == "none" else s["recompute"],
        "recompute_method": (s["recompute_method"] or "uniform") if full else None,
        "recompute_num_layers": (s["recompute_num_layers"] or 1) if full else None,
        "cpu_offloading_num_layers": s["offload"]["activation_layers"], "params_dtype": stored,
        "attention_backend": {"cudnn": "fused", "fa2": "flash"}[t["attention_kernel"]], "hidden_dropout": t["dropout"],
        "cross_entropy_loss_fusion": t["cross_entropy"] == "fused", "num_layers": m["num_layers"], "hidden_size": m["hidden_size"],
        "num_attention_heads": m["num_attention_heads"], "gated_linear_unit": m["gated_mlp"],
        "activation_func": "silu" if m["gated_mlp"] else "gelu", "add_bias_linear": bool(m["mlp_bias"]),
        "normalization": "RMSNorm" if m["norm"] == "rmsnorm" else "LayerNorm", "qk_layernorm": m["qk_norm"] == "per_head",
        "share_embeddings_and_output_weights": m["tie_word_embeddings"], "num_moe_experts": m["moe"]["num_experts"] if "moe" in m else None,
        "vocab_size": -(-m["vocab_size"] // (128 * s["tp"])) * 128 * s["tp"], "multi_latent_attention": "mla" in m,
    }  # fmt: skip
    if "moe" in m:
        config |= {
            "expert_model_parallel_size": s["ep"], "expert_tensor_parallel_size": s["etp"], "moe_router_topk": m["moe"]["top_k"],
            "moe_token_dispatcher_type": s["moe_dispatcher"], "moe_ffn_hidden_size": m["moe"]["expert_intermediate_size"],
        }  # fmt: skip
    if "mla" in m:
        config |= {"kv_lora_rank": m["mla"]["kv_lora_rank"], "qk_head_dim": m["mla"]["qk_nope_head_dim"]}
    else:
        config |= {"kv_channels": m["head_dim"], "num_query_groups": m["num_key_value_heads"]}
    ddp = {
        "use_distributed_optimizer": s["zero"] >= 1, "use_megatron_fsdp": fsdp, "overlap_grad_reduce": s["overlap"]["grad_reduce"],
        "overlap_param_gather": s["overlap"]["param_gather"],
        "num_distributed_optimizer_instances": s["dp"] * s["cp"] // s["zero_shard_size"] if s["zero"] else 1,
    }  # fmt: skip
    if fsdp:
        ddp["data_parallel_sharding_strategy"] = {2: "optim_grads", 3: "optim_grads_params"}[s["zero"]]
    optimizer = {
        "optimizer": t["optimizer"], "exp_avg_dtype": _TORCH[t["optimizer_state_dtype"]], "use_distributed_optimizer": s["zero"] >= 1,
        "optimizer_offload_fraction": s["offload"]["optimizer_fraction"],
        "optimizer_cpu_offload": s["offload"]["optimizer_fraction"] > 0,
    }  # fmt: skip
    precision = {
        "precision": "16-mixed" if t["precision"] == "fp16" else "bf16-mixed", "grad_reduce_in_fp32": t["grad_dtype"] == "fp32",
        "fp8_recipe": t["fp8_recipe"] if t["precision"] == "fp8" else "absent", "fp4": "e2m1" if t["precision"] == "nvfp4" else "absent",
        "fp8_param_gather": True if t["param_dtype"] == "fp8" else "absent",
    }  # fmt: skip
    return {
        "config": config, "strategy": {**degrees, "fsdp": "megatron" if fsdp else "absent"}, "ddp": ddp, "optimizer": optimizer,
        "precision": precision, "mock": batches, "data": batches,
    }  # fmt: skip


# The newest release in every run; each takes its process four seconds.
@pytest.mark.parametrize(
    "version", [version if version == "2.7" else pytest.param(version, marks=pytest.mark.proof) for version in CORE]
)
def test_nemo_takes_what_the_plan_says(version: str):
    """Every value arrives, typos in every section are refused, and so is what a release has no argument for."""
    cases, refused = [], set()
    for case in range(len(PLANS)):
        try:
            cases.append(exported(version, case))
        except FieldNotExpressibleError as refusal:
            refused.add(refusal.context["field"])
        except InvalidInputError as illegal:
            refused.add(illegal.problems[0].code)
    assert refused == REFUSED[version]
    wrong = [cases[1][1].replace(*typo) for typo in TYPOS]
    _, adapted = exported(version, 0, adapter={"rank": 8, "dropout": 0.1, "target_modules": ["q_proj", "down_proj"]})
    answers = asked(version, [*(text for _, text in cases), *wrong, adapted])
    for (plan, _), answer in zip(cases, answers, strict=False):
        assert "error" not in answer, answer["error"]
        for section, wanted in expected(plan).items():
            assert {name: answer["sections"][section].get(name, "absent") for name in wanted} == wanted, plan.strategy
        if answer["layout"] is not None:
            assert tuple(answer["layout"]) == plan.layers_per_stage
        else:
            assert len(set(plan.layers_per_stage)) == 1
    planted = answers[len(cases) : -1]
    assert [typo for typo, answer in zip(TYPOS, planted, strict=True) if "error" not in answer] == []
    assert answers[-1]["sections"]["adapter"] == {
        "class": "CanonicalLoRA", "target_modules": ["linear_q", "linear_fc2"], "dim": 8, "alpha": 32, "dropout": 0.1,
    }  # fmt: skip
