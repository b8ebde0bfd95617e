"""Which optimizers a framework has beside Adam, from which release on, and how it spreads an update that needs whole matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from cost_models.frameworks.releases import precedes
from cost_models.specs.training import Framework, Optimizer, Training

MuonSpread = Literal["owned", "sent", "repeated", "dealt", "tensors"]
"""Where the ranks that share a matrix's state orthogonalise it.

owned: the rank that holds the whole matrix and its momentum. sent: shards of the update go to one rank and come back. repeated: every
rank that holds a part of the matrix makes all of it. dealt: ranks gather all matrices, make them in turn and gather what was made. tensors: each
product is split over the ranks, which exchange operands (DTensor).
"""


@dataclass(frozen=True, slots=True)
class OptimizerSupport:
    """One optimizer of one framework."""

    source: str
    since: str | None = None
    """First release that has it; None: every known one."""
    zero: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages with which it runs."""
    zero_since: Mapping[int, str] | None = None
    """Stages that came with a later release."""
    overlaps_whole_since: str | None = None
    """Release from which gradients that nothing shards can be reduced beside the backward."""
    without_half: bool = False
    """It does not train in fp16."""
    takes_parts: bool = True
    """It takes parts of matrices that tensor parallelism splits."""
    takes_groups: bool = True
    """It shards its state over groups of fewer than all data-parallel ranks, where the framework does so."""
    takes_stacks: bool = True
    """It takes a layer's experts in one tensor of three dimensions, as transformers holds them from 5.0 on."""

    def stages(self, version: str) -> tuple[int, ...]:
        """ZeRO stages with which this release runs it."""
        later = self.zero_since or {}
        return tuple(stage for stage in self.zero if stage not in later or not precedes(version, later[stage]))


_ADAM = OptimizerSupport("every framework's default")
_TORCH_SGD = OptimizerSupport("torch/optim/sgd.py")
_MEGATRON = "megatron/core/optimizer/__init__.py"
_HF_NAMES = "transformers/training_args.py (OptimizerNames)"
LAYER_WISE_LAYOUT_SINCE: Final = "0.18"
"""Megatron Core: gradients lie in buffers of which every rank owns whole matrices, so that they are scattered and gathered like
those of the distributed optimizer (layer_wise_optimizer.py, compute_full_param_layout). Before, every rank reduces all gradients."""
OPTIMIZERS: Final[Mapping[Framework, Mapping[Optimizer, OptimizerSupport]]] = {
    "megatron": {
        "adam": _ADAM, "sgd": OptimizerSupport(f"{_MEGATRON} (torch.optim.SGD with momentum)"),
        "sgd-momentum": OptimizerSupport(f"{_MEGATRON} (torch.optim.SGD with momentum)"),
        # Neither Megatron-FSDP nor torch's takes them (megatron/training/arguments.py), nor fp16 (optimizer/__init__.py).
        "muon": OptimizerSupport(
            "megatron/core/optimizer/muon.py, emerging_optimizers.py", "0.16", (0, 1), without_half=True,
            overlaps_whole_since=LAYER_WISE_LAYOUT_SINCE, takes_groups=False,
        ),
        "lion": OptimizerSupport(
            "megatron/training/arguments.py (--optimizer lion)", "0.17", (0, 1), {1: LAYER_WISE_LAYOUT_SINCE},
            without_half=True, takes_groups=False,
        ),
    },
    "megatron-deepspeed": {"adam": _ADAM, "sgd": _TORCH_SGD, "sgd-momentum": _TORCH_SGD},
    "deepspeed": {
        "adam": _ADAM, "sgd": _TORCH_SGD, "sgd-momentum": _TORCH_SGD,
        "adam-8bit": OptimizerSupport("bitsandbytes (AdamW8bit), which the script hands to deepspeed.initialize"),
        "adam-4bit": OptimizerSupport("torchao/optim/adam.py (AdamW4bit), which the script hands to deepspeed.initialize"),
        "adafactor": OptimizerSupport("transformers/optimization.py, which the script hands to deepspeed.initialize"),
        "lion": OptimizerSupport("deepspeed/ops/lion/fused_lion.py", "0.12"),
        # Stage 0 ran plain SGD until 0.19.8 (issue 8441).
        "muon": OptimizerSupport("deepspeed/runtime/zero/muon; pull requests 7509 and 7798", "0.18", (1, 2, 3), {3: "0.19"}),
    },
    "torchtitan": {
        "adam": _ADAM, "sgd": _TORCH_SGD, "sgd-momentum": _TORCH_SGD,
        "adam-8bit": OptimizerSupport("torchao/optim/adam.py (AdamW8bit)"),
        # Its recipes lay matrices out over dp_shard and ep alone (torchtitan/models/kimi_k2_7/config_registry.py).
        "muon": OptimizerSupport("torchtitan/distributed/flex_shard/dist_muon.py", "0.3", (2, 3), takes_parts=False),
    },
    "fsdp": {
        "adam": _ADAM, "sgd": _TORCH_SGD, "sgd-momentum": _TORCH_SGD,
        "adam-8bit": OptimizerSupport(_HF_NAMES),
        "adam-4bit": OptimizerSupport(f"{_HF_NAMES}; torchao/optim/adam.py (AdamW4bit)"),
        # bitsandbytes' operators have no sharding strategy for DTensors (functional.py, optimizer_update_32bit).
        "lion": OptimizerSupport(_HF_NAMES, zero=(0,)),
        # Its means over rows and columns mix plain and distributed tensors, which both transformers' and PyTorch's refuse.
        "adafactor": OptimizerSupport(_HF_NAMES, zero=(0,)),
        "muon": OptimizerSupport("torch/optim/_muon.py", "2.9", takes_stacks=False),
    },
    "nanotron": {"adam": _ADAM, "sgd": _TORCH_SGD},
}  # fmt: skip
assert set(OPTIMIZERS) == set(get_args(Framework))


@dataclass(frozen=True, slots=True)
class MuonFacts:
    """How a framework runs Muon where state is sharded."""

    spread: Mapping[int, MuonSpread]
    """By ZeRO stage."""
    gram_since: str | None = None
    """Release from which it iterates on the small square of rows and restores the matrix at the end."""
    batches_experts: bool = False
    """A layer's experts are one tensor, and one kernel for each product."""
    padded_since: str | None = None
    """Release from which gradients and parameters lie in buffers of which every rank owns whole matrices (`owned`)."""
    staged_since: str | None = None
    """Release from which momentum is written into a copy until the step is taken (`repeated`)."""

    def holds(self, since: str | None, version: str) -> bool:
        """Whether this release has what came with another."""
        return since is not None and not precedes(version, since)


MUON: Final[Mapping[Framework, MuonFacts]] = {
    "megatron": MuonFacts({1: "owned"}, padded_since=LAYER_WISE_LAYOUT_SINCE),
    # deepspeed/runtime/zero/stage_1_and_2.py (get_flat_partition, _muon_staging_momentum), stage3.py (_muon_update_sub_group)
    "deepspeed": MuonFacts({1: "repeated", 2: "repeated", 3: "dealt"}, gram_since="0.19", staged_since="0.19"),
    "torchtitan": MuonFacts({2: "sent", 3: "sent"}, batches_experts=True),
    "fsdp": MuonFacts({2: "tensors", 3: "tensors"}),
}


def muon_facts(training: Training) -> MuonFacts:
    """How the job's framework runs Muon; one that does not have it is taken to leave every matrix whole."""
    return MUON.get(training.framework, MuonFacts({}))


def exchanges_matrices(training: Training) -> bool:
    """Whether ranks exchange parts of matrices in the update, which costs fewer of them less."""
    return training.optimizer == "muon" and not {"owned", "repeated"}.issuperset(muon_facts(training).spread.values())


def reduces_whole_units(training: Training) -> bool:
    """Whether a stage that shards parameters all-reduces its gradients in place of scattering them: DeepSpeed's Muon refuses
    `reduce_scatter` (deepspeed/runtime/zero/stage3.py, __avg_scatter_contiguous_grads).
    """
    return training.optimizer == "muon" and "dealt" in muon_facts(training).spread.values()


def reduces_for_whole_matrices(training: Training) -> bool:
    """Whether every rank receives all reduced gradients because a rank owns whole matrices of them (Megatron's dist_muon to 0.17)."""
    whole = training.framework == "megatron" and training.optimizer in ("muon", "lion")
    return whole and precedes(training.framework_version, LAYER_WISE_LAYOUT_SINCE)


def overlaps_whole_gradients(training: Training) -> bool:
    """Whether gradients that nothing shards can be reduced beside the backward (megatron/training/arguments.py, Muon optimizer check)."""
    support = OPTIMIZERS[training.framework].get(training.optimizer)
    since = None if support is None else support.overlaps_whole_since
    return since is None or not precedes(training.framework_version, since)


def updates_dtensors(training: Training, zero: int) -> bool:
    """Whether the optimizer's tensors are DTensors at this ZeRO stage (torchtitan's replicas; torch/distributed/fsdp/_fully_shard)."""
    return training.framework == "torchtitan" or (training.framework == "fsdp" and zero >= 2)


def has_looped_lion(training: Training) -> bool:
    """Whether the framework's Lion is bitsandbytes', which takes one tensor after another; DeepSpeed's and Megatron's are fused."""
    return training.framework == "fsdp"


def updates_flat_parts(training: Training) -> bool:
    """Whether ZeRO hands the optimizer one flat part of all parameters in place of their tensors
    (deepspeed/runtime/zero/stage_1_and_2.py, single_partition_of_fp32_groups).
    """
    return training.framework == "deepspeed"
