"""Reinforcement learning is refused by name, in one sentence that says what can be planned: the trainer alone.

Trainer, rollout engine and reference model take turns on the same GPUs there, and how long a rollout takes depends on what the model
writes. Nothing here models that.
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.errors import NotModelledError, Problem
from cost_models.hints import child, shown

PROGRAMS = frozenset({"verl", "openrlhf", "nemo-rl", "nemo_rl", "nemo-aligner", "slime", "areal", "prime-rl", "skyrl"})
"""What users of these programs give as the framework; each of them trains with FSDP, DeepSpeed or Megatron."""
FIELDS = frozenset({"rl", "rl_algorithm", "rollout", "rollouts", "rollout_engine", "grpo", "ppo", "actor", "critic", "reference_model", "reward_model"})  # fmt: skip
"""Names under which a training job might describe the rest of such a run."""
HOW = (
    "Plan the trainer alone: give the framework that trains (fsdp, deepspeed or megatron), the GPUs that it trains on as the cluster, and "
    "in cluster.reserved_memory_gib what rollout engine and reference model keep on each of them."
)


def refuse_reinforcement(document: Mapping[str, object], *, pointer: str) -> None:
    """Refuses a job that describes rollouts beside its trainer.

    Raises:
        NotModelledError: it names such a program as its framework, or has a field for such a part.
    """
    # Nothing else of the document is read: a request of such a program has more that is wrong, and one sentence says why.
    framework = document.get("framework")
    named = "framework" if isinstance(framework, str) and framework.lower() in PROGRAMS else None
    field = named or next((name for name in document if name in FIELDS), None)
    if field is None:
        return
    what = f"framework is {shown(framework)}" if named else f"{field} is given"
    message = f"{what}: a trainer that shares its GPUs with the rollouts of reinforcement learning is not modelled"
    raise NotModelledError([Problem(child(pointer, field), message, HOW, "not-modelled")])
