"""Writes a plan for NeMo 2: one Python script, whose classes' arguments are the plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from cost_models.frameworks.releases import precedes
from planner.export.formats.python_module import Code, call
from planner.export.quantities import Quantities
from planner.export.target import Launch, LaunchFile
from planner.export.targets.megatron.adapters import said_adapter
from planner.export.targets.megatron.attributes import PLACES, Attributes, attributes, spelled
from planner.export.targets.megatron.environment import environment
from planner.export.targets.megatron.front_end import check_positions, on_core
from planner.export.targets.megatron.names import NAMES
from planner.export.targets.megatron.write import MOCK_STEPS, checked, core_settings, steps
from planner.export.targets.nemo import keys

SCRIPT = "train.py"
_IMPORT = re.compile(r"^from \S+ import (\w+)\n", re.MULTILINE)
"""An import of one name, which is left out of a script that does not use the name."""
SUPERSEDED = (
    "NVIDIA deprecated NeMo 2's language models with 25.11 in favour of Megatron-Bridge: new work belongs there "
    "(--framework megatron-bridge says the same plans)."
)
_DEFAULT_BUCKET, _BUCKET_A_RANK = 40_000_000, 1_000_000
"""megatron/core/distributed/distributed_data_parallel.py: elements of a bucket where nothing is said."""


def write(q: Quantities) -> Launch:
    """The launch of a plan of megatron.

    Raises:
        FieldNotExpressibleError: NeMo, or the Megatron Core that this release runs on, cannot be told a field.
    """
    return Launch(
        files=(LaunchFile(SCRIPT, script(q)),),
        command=(SCRIPT,),
        mock_command=(SCRIPT, "--mock-data"),
        variables=environment(q),
        notes=(
            f"nemo_toolkit {q.version} with its llm extra must be installed, which runs on Megatron Core {keys.CORE[q.version]}.",
            SUPERSEDED,
        ),
        own_data=("Add --data-path and --tokenizer; learning rate and schedule are yours to set in the script.",),
    )  # fmt: skip


def script(q: Quantities) -> str:
    """The script.

    Raises:
        FieldNotExpressibleError: there is no argument for a field.
    """
    core = on_core(q, keys.CORE)
    check_positions(q)
    # collections/llm/gpt/model/base.py: its forward step returns no schedule for the overlap.
    q.only("overlap.moe_all_to_all", [False], why="its forward step has no schedule for it")
    if precedes(q.version, keys.FP4_SINCE):
        precisions = ["bf16", "fp16", "fp32", "fp8"]
        q.only("training.precision", precisions, why="MegatronMixedPrecision has fp4 since 2.7")
    values = core_settings(core)
    list(checked(core, values))
    found = {
        place: value
        for place, value in attributes(values).items()
        if place not in PLACES or NAMES[PLACES[place].name].is_in(core.release)
    }
    blocks = _blocks(q, found)
    text = (files(__package__) / "templates" / "train.py.txt").read_text()
    for name, block in blocks.items():
        text = text.replace(f"__{name}__", block)
    return _IMPORT.sub(lambda found: found[0] if len(re.findall(rf"\b{found[1]}\b", text)) > 1 else "", text)


def _blocks(q: Quantities, found: Attributes) -> Mapping[str, str]:
    """The parts of the script that differ from plan to plan, by their names in the template."""
    groups = _groups(q, found)
    latent = q.peek("model.mla") is not None
    tp_overlap = bool(groups[keys.CONFIG].pop("tp_comm_overlap", False))
    nodes = q.plan.nodes
    # torchrun tells Lightning the ranks of a node and the nodes; both are asserted to be these.
    trainer = {"devices": nodes[0].ranks_per_node, "num_nodes": sum(each.num_nodes for each in nodes)}
    adapter = said_adapter(q)
    return {
        "VERSION": q.version, "SUPERSEDED": SUPERSEDED, "TOKENIZERS": keys.TOKENIZERS[q.version],
        "VOCABULARY": str(q.peek("model.vocab_size")), "CLASS": keys.LATENT if latent else f"llm.{keys.CONFIG}",
        "CONFIG": call(keys.LATENT if latent else f"llm.{keys.CONFIG}", groups[keys.CONFIG]),
        "STRATEGY": call(f"nl.{keys.STRATEGY}", groups[keys.STRATEGY]),
        "PRECISION": call(f"nl.{keys.PRECISION}", groups[keys.PRECISION]),
        "OPTIMIZER": call(keys.OPTIMIZER, groups[keys.OPTIMIZER]), "MOCK_DATA": _lines(groups[keys.DATA], 12), "DATA": _lines(groups[keys.DATA], 8),
        "TRAINER": _lines(trainer, 8),
        "STEPS": str(steps(q) or MOCK_STEPS),
        "OVERLAP": call(keys.OVERLAP, _overlaps(q, found)) if tp_overlap else "None",
        "ADAPTER": call(f"llm.peft.{adapter[0]}", adapter[1]) if adapter else "None",
    }  # fmt: skip


def _lines(arguments: Mapping[str, Any], indent: int) -> str:
    return "".join(f"{' ' * indent}{name}={value!r},\n" for name, value in arguments.items())


def _groups(q: Quantities, found: Attributes) -> dict[str, dict[str, Any]]:
    """Arguments by class."""
    groups: dict[str, dict[str, Any]] = {
        name: {} for name in (keys.CONFIG, keys.STRATEGY, keys.DDP, keys.OPTIMIZER, keys.PRECISION, keys.DATA)
    }
    groups[keys.OPTIMIZER] = {
        "lr": 1e-4,
        "min_lr": 1e-5,
        "weight_decay": 0.1,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "clip_grad": 1.0,
    }
    classes = {
        "model": keys.CONFIG,
        "ddp": keys.DDP,
        "optimizer": keys.OPTIMIZER,
        "train": keys.DATA,
        "precision": keys.PRECISION,
    }
    for part, name, value in spelled(found):
        if part in classes and not (part == "precision" and name in keys.PRECISIONS):
            group = keys.STRATEGY if part == "model" and name in keys.OF_STRATEGY else classes[part]
            groups[group][name] = _code(name, value)
    config, strategy = groups[keys.CONFIG], groups[keys.STRATEGY]
    _fill_config(q, config)
    precision = next(word for name, word in keys.PRECISIONS.items() if found["precision", name])
    groups[keys.PRECISION] = {"precision": precision, **groups[keys.PRECISION], "autocast_enabled": False}
    groups[keys.DATA]["seq_length"] = config["seq_length"]
    strategy["pipeline_dtype"] = groups[keys.PRECISION]["pipeline_dtype"]
    if "num_distributed_optimizer_instances" in groups[keys.DDP]:
        strategy["num_distributed_optimizer_instances"] = groups[keys.DDP]["num_distributed_optimizer_instances"]
    if q.peek("zero") >= 2:
        strategy["fsdp"] = "megatron"
        if not precedes(q.version, keys.FSDP_FORMAT_SINCE):
            strategy["save_ckpt_format"] = found["checkpoint", "ckpt_format"]
    elif found.get(("precision", "fp8_param_gather")) and found["precision", "fp8_recipe"] == "mxfp8":
        # MXFP8 parameters are gathered through the buffer of gradients.
        groups[keys.PRECISION]["reuse_grad_buf_for_mxfp8_param_ag"] = True
    if q.peek("training.cuda_graphs"):
        # GPTConfig.configure_model asserts it; the strategy hands it on.
        strategy["use_te_rng_tracker"] = True
    strategy["ddp"] = Code(call(keys.DDP, groups[keys.DDP], "        "))
    return groups


def _fill_config(q: Quantities, config: dict[str, Any]) -> None:
    """What the class takes otherwise than Megatron-LM does where nothing is said: fusions, and a vocabulary that is not padded."""
    latent, rotary = q.peek("model.mla") is not None, config["position_embedding_type"] == "rope"
    parts = config["make_vocab_size_divisible_by"] * q.peek("tp")
    config |= {
        "vocab_size": Code(f"-(-{keys.VOCABULARY} // {parts}) * {parts}"),
        "bias_activation_fusion": config["gated_linear_unit"] or config["add_bias_linear"], "bias_dropout_fusion": True,
        "apply_rope_fusion": rotary and not latent,
    }  # fmt: skip
    if config["transformer_impl"] == "local":
        config["transformer_layer_spec"] = Code("local_layer_spec")
    elif isinstance(config.get("moe_layer_freq"), list):
        # Layers of two kinds, dense and with experts, need a specification of the whole block.
        config["transformer_layer_spec"] = Code("partial(get_gpt_decoder_block_spec, use_transformer_engine=True)")


def _overlaps(q: Quantities, found: Attributes) -> dict[str, Any]:
    """Every argument of the callback, which otherwise chooses for itself, and which alone starts tensor-parallel overlap."""
    ranks = q.peek("dp") * q.peek("cp")
    return {
        "tp_comm_overlap": True, "overlap_p2p_comm": found.get(("model", "overlap_p2p_comm"), False),
        "batch_p2p_comm": found.get(("model", "batch_p2p_comm"), q.peek("pp") > 1),
        "overlap_grad_reduce": found["ddp", "overlap_grad_reduce"], "overlap_param_gather": found["ddp", "overlap_param_gather"],
        "align_param_gather": found.get(("ddp", "align_param_gather"), False),
        "bucket_size": max(_DEFAULT_BUCKET, _BUCKET_A_RANK * ranks),
    }  # fmt: skip


def _code(name: str, value: Any) -> Any:
    """Enumerations, types and functions as code."""
    if name.endswith("dtype"):
        return Code(f"torch.{value}")
    if name == "activation_func":
        return Code(f"F.{value}")
    if name == "attention_backend":
        return Code(f"AttnBackend.{value}")
    return tuple(value) if name == "window_size" else value
