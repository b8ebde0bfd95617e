"""A plan written as Megatron-LM's arguments and read again is the same plan, or the refusal names a field of it."""

from __future__ import annotations

import random
import shlex
from itertools import pairwise
from typing import Any

import pytest

from cost_models import presets
from cost_models.errors import InvalidInputError
from planner.export.formats.arguments import read_script, read_words
from planner.export.launch_plan import LaunchPlan, launch_plan
from planner.export.quantities import ABOUT_DATA_AND_DATES, FieldNotExpressibleError, Quantities, idle_fields
from planner.export.settings import InputFile, Setting, Settings
from planner.export.targets import TARGETS
from planner.export.targets.megatron.names import ALL

MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "gpt3-6.7b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2", "deepseek-v3", "gpt-oss-20b",
    "qwen2.5-7b", "mistral-7b", "gemma-2-9b",
)  # fmt: skip
OF_NO_LAUNCH = {
    *ABOUT_DATA_AND_DATES, "training.recipe", "zero_param_shard_size", "model.intermediate_size", "model.max_position_embeddings",
}  # fmt: skip
"""What the arguments cannot tell apart: a recipe from what it chose, a dense width that no layer has, a limit of rotary positions."""


def drawn_row(draw: random.Random) -> dict[str, Any]:
    pick = draw.choice
    model = pick(MODELS)
    spec = presets.load("models", model, pointer="/model").spec
    experts = pick([1, 2, 4, 8]) if "moe" in spec else 1
    strategy = {
        "tp": pick([1, 1, 2, 4, 8]), "pp": pick([1, 1, 2, 4]), "cp": pick([1, 1, 2, 4]), "vpp": pick([1, 1, 2]), "ep": experts,
        "etp": pick([1, 1, None]), "zero": pick([0, 1, 1, 2, 3]), "micro_batch_size": pick([1, 2]),
        "sequence_parallel": pick([True, True, False]), "recompute": pick(["none", "selective", "full"]),
        "cp_comm": pick(["p2p", "a2a", "allgather", "a2a+p2p"]), "moe_dispatcher": pick(["alltoall", "allgather", "flex"]),
        "overlap": pick([{}, {"grad_reduce": False}, {"tp_comm": True}, {"param_gather": False}, {"moe_all_to_all": True}]),
        "offload": pick([{}, {}, {"optimizer_fraction": pick([0.25, 0.3, 1.0])}, {"activation_layers": 3},
                        {"activation_modules": pick([["core_attn"], ["attn_norm", "core_attn", "attn_proj"]])},
                        {"optimizer_fraction": 1.0, "optimizer_overlap": "pipelined"}]),
        "zero_shard_size": pick([None, None, 4]),
    }  # fmt: skip
    if strategy["recompute"] == "full":
        strategy |= pick(
            [{}, {"recompute_method": pick(["block", "uniform"]), "recompute_num_layers": pick([1, 2, 3])}]
        )
    if draw.random() < 0.3:
        stages = strategy["pp"] * strategy["vpp"]
        cuts = sorted(draw.choices(range(spec["num_layers"] + 1), k=stages - 1))
        bounds = [0, *cuts, spec["num_layers"]]
        strategy["layers_per_stage"] = [high - low for low, high in pairwise(bounds)]
    return {
        "model": {"preset": model},
        "cluster": {"preset": pick(["dgx-h100", "dgx-b200", "dgx-a100-80gb"]), "num_nodes": pick([1, 2, 8])},
        "training": {
            "seq_length": 2048, "global_batch_size": 512, "precision": pick(["bf16", "bf16", "fp16", "fp8", "fp32", "nvfp4"]),
            "framework": "megatron", "framework_version": pick(TARGETS["megatron"].versions),
            **pick([{}, {}, {"cross_entropy": pick(["fused", "te"])}, {"optimizer": "sgd"}, {"optimizer_state_dtype": "bf16"},
                    {"cuda_graphs": True}, {"expandable_segments": True}, {"dropout": 0.1}, {"grad_dtype": "bf16"}]),
        },
        "strategy": {name: value for name, value in strategy.items() if value not in (None, {})},
    }  # fmt: skip


def told(plan: LaunchPlan) -> dict[str, Any]:
    """The fields that matter, in one form for what means the same."""
    fields = dict(Quantities(plan, target="", version=""))
    idle = idle_fields(plan)
    if fields["training.attention"] == "math":
        fields.pop("training.attention_kernel")
    if fields["training.precision"] != "fp8":
        fields.pop("training.fp8_recipe")
    moe = fields.get("model.moe")
    if moe:
        shared = moe["num_shared_experts"] * moe["shared_expert_intermediate_size"]
        fields["model.moe"] = moe | {"num_shared_experts": int(shared > 0), "shared_expert_intermediate_size": shared}
    return {name: value for name, value in fields.items() if name not in idle and name not in OF_NO_LAUNCH}


def checked(row: dict[str, Any]) -> str:
    """ "refused" with the field checked, or "same" with the plan compared; "illegal" where there is no such plan."""
    try:
        plan = launch_plan(row)
    except InvalidInputError:
        return "illegal"
    version = row["training"]["framework_version"]
    quantities = Quantities(plan, target="megatron", version=version)
    try:
        launch = TARGETS["megatron"].write(quantities)
        quantities.finish()
    except FieldNotExpressibleError as refusal:
        return "refused" if refusal.context["field"] in quantities else "refused without a field"
    node = plan.nodes[0]
    line = f"torchrun --nnodes {node.num_nodes} --nproc-per-node {node.ranks_per_node} " + shlex.join(launch.command)
    exports = "".join(f"export {each.name}={each.value}\n" for each in launch.variables)
    settings = Settings([*_exported(exports), *read_words(line, "launch.sh")])
    parts = TARGETS["megatron"].read(settings)
    assert [each.text for each in settings.unknown() if each.key != "@"] == []
    again = {
        "model": dict(parts.model), "cluster": row["cluster"], "strategy": {**parts.strategy, "dp": plan.strategy["dp"]},
        "training": {**parts.training, "framework_version": version, "software_date": plan.training["software_date"]},
    }  # fmt: skip
    assert told(launch_plan(again)) == told(plan), (row, line)
    return "same"


def _exported(text: str) -> list[Setting]:
    return read_script(InputFile("launch.sh", text)) if text else []


def seen(seed: int, count: int) -> dict[str, int]:
    draw = random.Random(seed)
    found = [checked(drawn_row(draw)) for _ in range(count)]
    return {kind: found.count(kind) for kind in ("same", "refused", "illegal")}


def test_a_plan_survives_its_launch_line():
    counts = seen(0, 800)
    assert counts["same"] > 100
    assert counts["refused"] > 10
    assert sum(counts.values()) == 800


def test_no_words_break_the_reader():
    """Options with values of other kinds, foreign and hostile: each is taken or stays unknown, and nothing is raised."""
    draw = random.Random(5)
    values = (
        "0",
        "1",
        "-1",
        "7",
        "1.2.3",
        "1e9",
        "x",
        "'E|L'",
        "'Et*4|t*4L'",
        "'[1]*9'",
        "'('",
        "9" * 30,
        "True",
        "''",
        "a b",
        "$X",
    )
    reader = TARGETS["megatron"].read
    assert reader is not None
    for _ in range(2000):
        options = draw.choices(ALL, k=draw.randint(1, 12))
        text = " ".join(f"{each.option} {draw.choice(['', *values])}" for each in options)
        settings = Settings(read_words("python pretrain_gpt.py " + text, "args"))
        parts = reader(settings)
        assert parts.training["framework"] == "megatron"


@pytest.mark.proof
def test_thousands_of_plans_survive_their_launch_lines():
    assert seen(1, 30_000)["same"] > 2000
