"""Draws plans, judges them by our rules, and asks each framework's own configuration classes.

The classes must accept every plan that is judged legal and refuse every one that is judged illegal. What they cannot know, because
it is refused only when modules are built or run, is counted by rule. Needs torch and the frameworks: megatron-core 0.16, deepspeed
0.19, torchtitan 0.3, accelerate. Usage, from the checkout:
python -m scripts.framework_rules [--plans 1000] [--frameworks megatron,deepspeed]
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cost_models.job import Job
from planner.request.job import resolve_job
from planner.rules import reasons
from planner.schemas import StrategyInput
from planner.strategies.parse import resolve_strategies
from scripts.framework_judges import ASK, SEEN_LATER, VERSIONS, Plan, refusal


def drawn_plans(framework: str, seed: int) -> Iterator[Plan]:
    """Endless plans, the same ones for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - a reproducible draw, no secret
    while True:
        job = _drawn_job(framework, draw)
        given = _drawn_strategy(framework, job, draw)
        resolved = resolve_strategies(job, [StrategyInput(**given)])
        found = resolved.problems[0] or (reasons(job, resolved.strategies, 0) if resolved.strategies else [])
        yield Plan(job, given, tuple(dict.fromkeys(reason["code"] for reason in found)))


def _drawn_job(framework: str, draw: random.Random) -> Job:
    # Numbers that degrees of 2, 3, 4 and 8 divide only now and then, since a rule shows only when it is broken.
    kv_heads = draw.choice([1, 2, 3, 4, 8])
    heads = kv_heads * draw.choice([1, 2, 3, 4])
    model: dict[str, Any] = {
        "num_layers": draw.randint(2, 24), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": 64, "hidden_size": heads * 64, "intermediate_size": draw.choice([1536, 3072, 4096, 1000]),
        "vocab_size": 32000, "tie_word_embeddings": draw.random() < 0.2,
    }  # fmt: skip
    if draw.random() < 0.4:
        experts = draw.choice([4, 6, 8, 16])
        model["moe"] = {"num_experts": experts, "top_k": 2, "expert_intermediate_size": draw.choice([512, 768])}
    training = {
        "seq_length": draw.choice([2048, 4096, 6144, 3000]), "global_batch_size": draw.choice([16, 24, 32, 48, 64, 128]),
        "precision": "bf16", "framework": framework, "framework_version": VERSIONS[framework],
    }  # fmt: skip
    cluster = {"gpu": "H100-SXM-80GB", "num_nodes": draw.choice([1, 2, 3]), "gpus_per_node": 8}
    return resolve_job({"model": model, "cluster": cluster, "training": training})


def _drawn_strategy(framework: str, job: Job, draw: random.Random) -> dict[str, Any]:
    # Values that are listed several times are drawn more often: with every degree above one, almost no plan would be legal.
    tp, pp, cp = draw.choice([1, 1, 2, 3, 4, 8]), draw.choice([1, 1, 2, 3, 4]), draw.choice([1, 1, 1, 2, 4])
    vpp = draw.choice([1, 1, 2]) if pp > 1 or draw.random() < 0.1 else 1
    dp = draw.choice([1, 2, job.cluster.num_gpus // (tp * pp * cp) or 1])
    ep = draw.choice([1, 2, 3, 4]) if job.model.moe or draw.random() < 0.1 else 1
    given: dict[str, Any] = {
        "tp": tp, "pp": pp, "cp": cp, "dp": dp, "vpp": vpp, "ep": ep, "etp": draw.choice([1, 1, 1, tp]),
        "micro_batch_size": draw.choice([1, 1, 2, 3]), "zero": draw.choice([0, 1, 2, 3]),
        "sequence_parallel": tp > 1 and draw.random() < 0.7, "recompute": draw.choice(["none", "none", "selective", "full"]),
    }  # fmt: skip
    if framework == "deepspeed":
        given["sequence_parallel"] = False
    if draw.random() < 0.15:
        given["zero_shard_size"] = draw.choice([1, 2, 3, 4])
    if given["recompute"] == "full" and draw.random() < 0.5:
        given |= {"recompute_method": draw.choice(["block", "uniform"]), "recompute_num_layers": draw.choice([1, 2])}
    if framework == "torchtitan" and pp > 1 and draw.random() < 0.4:
        given["schedule"] = draw.choice(["gpipe", "1f1b", "interleaved", "zb-v", "dualpipe-v"])
    return given


@dataclass(slots=True)
class Verdicts:
    """How one framework judged the plans."""

    legal: int = 0
    legal_refused: Counter[str] = field(default_factory=Counter)
    illegal: int = 0
    illegal_refused: int = 0
    illegal_accepted: Counter[str] = field(default_factory=Counter)


def compared(framework: str, plans: int, *, seed: int = 0) -> Verdicts:
    """Verdicts on `plans` legal and `plans` illegal plans."""
    seen = Verdicts()
    for plan in drawn_plans(framework, seed):
        if seen.legal >= plans and seen.illegal >= plans:
            return seen
        if (seen.illegal if plan.codes else seen.legal) >= plans or len(plan.codes) > 1:
            # Only a plan that breaks a single rule tells whether the framework has that rule too.
            continue
        against = refusal(framework, plan)
        if plan.codes:
            seen.illegal += 1
            seen.illegal_refused += against is not None
            if against is None:
                seen.illegal_accepted[plan.codes[0]] += 1
        else:
            seen.legal += 1
            if against is not None:
                seen.legal_refused[against.split("\n")[0][:160]] += 1
    raise AssertionError


def main(arguments: list[str]) -> int:
    """Prints the table; the exit code is 1 if a legal plan is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=1000)
    parser.add_argument("--frameworks", default=",".join(ASK))
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # of the frameworks
    warnings.simplefilter("ignore")
    worst = 0
    for framework in options.frameworks.split(","):
        seen = compared(framework, options.plans)
        refused = sum(seen.legal_refused.values())
        worst = max(worst, refused)
        print(f"{framework} {VERSIONS[framework]}: legal {seen.legal}, of them refused {refused}; "
              f"illegal {seen.illegal}, of them refused {seen.illegal_refused}")  # fmt: skip
        for message, count in seen.legal_refused.most_common():
            print(f"    legal but refused {count:5}  {message}")
        for code, count in seen.illegal_accepted.most_common():
            print(f"    illegal, unseen   {count:5}  {code}: {SEEN_LATER[framework].get(code, 'NOT EXPLAINED')}")
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
