"""Whether `evaluate` gives every ranked plan the price that `plan` gave it, to the last digit: 24 jobs, up to 1,000 plans each.

The strategy of a plan is fed back with the request that the response states, once in a file with all others and once as the only
row. Whatever a row's price owes to its neighbours, or to how a request is written, shows as a difference.
Run: python -m benchmarks.plan_against_evaluate [NAME...].
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.record import record
from meshwright import evaluate, plan

TOP_K = 1000
GOAL = "<= 0"
WRITTEN_DIFFERENTLY = frozenset({"id", "assumed", "warnings"})
"""Fields of an evaluation that follow from how it was asked for and not from the plan."""
Document = dict[str, Any]


def job(model: str, cluster: Document, batch: int, framework: str, seq_length: int = 8192, **training: Any) -> Document:
    """A plan request with nothing fixed."""
    given = {"seq_length": seq_length, "global_batch_size": batch, "precision": "bf16", "framework": framework}
    return {"model": {"preset": model}, "cluster": cluster, "training": given | training, "top_k": TOP_K}


def nodes(preset: str, num_nodes: int = 1) -> Document:
    """A cluster of one kind of node."""
    return {"preset": preset, "num_nodes": num_nodes}


def pools(**kinds: tuple[str, int]) -> Document:
    """A cluster of several kinds of node: preset and number of nodes by name."""
    return {"pools": [{"name": name, "preset": preset, "num_nodes": many} for name, (preset, many) in kinds.items()]}


JOBS: dict[str, Document] = {
    "8b_fsdp": job("llama-3.1-8b", nodes("dgx-h100", 2), 128, "fsdp"),
    "8b_fsdp_4_nodes": job("llama-3.1-8b", nodes("dgx-h100", 4), 128, "fsdp"),
    "gemma_2_9b_fsdp_b200": job("gemma-2-9b", nodes("dgx-b200", 2), 128, "fsdp"),
    "1b_fsdp_rtx4090": job("llama-3.2-1b", nodes("rtx4090-pcie-8"), 64, "fsdp", 2048),
    "8b_torchtitan": job("llama-3.1-8b", nodes("dgx-h100", 2), 64, "torchtitan"),
    "8b_torchtitan_fp8": job("llama-3.1-8b", nodes("dgx-h100", 4), 128, "torchtitan", precision="fp8"),
    "1b_torchtitan_l40s": job("llama-3.2-1b", nodes("l40s-pcie-8"), 64, "torchtitan", 2048),
    "deepseek_v2_torchtitan": job("deepseek-v2", nodes("dgx-h200", 16), 1024, "torchtitan", 4096),
    "8b_megatron": job("llama-3.1-8b", nodes("dgx-h100", 2), 128, "megatron"),
    "70b_megatron": job("llama-3.1-70b", nodes("dgx-h100", 16), 512, "megatron"),
    "gpt3_175b_megatron_a100": job("gpt3-175b", nodes("dgx-a100-80gb", 32), 1536, "megatron", 2048),
    "mixtral_megatron": job("mixtral-8x7b", nodes("dgx-h100", 4), 256, "megatron", 4096),
    "deepseek_v3_megatron": job("deepseek-v3", nodes("hgx-h800", 64), 3840, "megatron", 4096),
    "qwen3_30b_nvl72": job("qwen3-30b-a3b", nodes("gb200-nvl72", 18), 256, "megatron", 4096, precision="fp8"),
    "8b_deepspeed": job("llama-3.1-8b", nodes("dgx-a100-80gb", 4), 128, "deepspeed", 4096),
    "13b_deepspeed_l40s": job("llama-2-13b", nodes("l40s-pcie-8", 4), 64, "deepspeed", 4096),
    "6.7b_megatron_deepspeed": job("gpt3-6.7b", nodes("jean-zay-a100", 8), 512, "megatron-deepspeed", 2048),
    "bloom_megatron_deepspeed": job("bloom-176b", nodes("jean-zay-a100", 48), 2048, "megatron-deepspeed", 2048),
    "8b_nanotron": job("llama-3.1-8b", nodes("dgx-h100", 2), 64, "nanotron"),
    "70b_nanotron": job("llama-3.1-70b", nodes("dgx-h100", 16), 512, "nanotron"),
    "1b_nanotron": job("llama-3.2-1b", nodes("azure-nd-h100-v5", 2), 256, "nanotron", 4096),
    "8b_pools_megatron": job(
        "llama-3.1-8b", pools(old=("dgx-a100-80gb", 1), new=("dgx-h100", 1)), 64, "megatron", 4096
    ),
    "70b_pools_torchtitan": job(
        "llama-3.1-70b", pools(old=("dgx-a100-80gb", 4), new=("dgx-h100", 4)), 256, "torchtitan", 4096
    ),
    "8b_pools_nanotron": job(
        "llama-3.1-8b", pools(old=("dgx-a100-80gb", 1), new=("dgx-h100", 1)), 64, "nanotron", 4096
    ),
}  # fmt: skip


@dataclass
class Differences:
    """How the prices of the plans of one job compare."""

    plans: int = 0
    differing: int = 0
    """Plans in which any number, verdict or reason differs."""
    largest: float = 0.0
    """Largest relative difference of step times."""
    fields: dict[str, int] = field(default_factory=dict)
    """How often each field differs."""

    def add(self, planned: Document, evaluated: Document) -> None:
        """Counts one plan."""
        differing = set(differing_fields(planned, evaluated))
        self.differing += bool(differing)
        for name in differing:
            self.fields[name] = self.fields.get(name, 0) + 1
        if "step_time_s" in differing and evaluated["step_time_s"]:
            self.largest = max(self.largest, abs(planned["step_time_s"] / evaluated["step_time_s"] - 1.0))


def differing_fields(one: Any, other: Any, name: str = "") -> Iterator[str]:
    """Names of the fields in which two evaluations differ, lists taken as one field."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if name or key not in WRITTEN_DIFFERENTLY:
                yield from differing_fields(one.get(key), other.get(key), f"{name}.{key}" if name else key)
    elif one != other:
        yield name


def compared(request: Document) -> Differences:
    """The ranked plans of a request against `evaluate` of each, all together and one by one."""
    response = plan(request)
    stated = {name: response["request"][name] for name in ("model", "cluster", "training")}
    rows = [{**stated, "strategy": each["strategy"]} for each in response["plans"]]
    # Together they are priced as one batch, alone each as a batch of one. A formula that looks at its neighbours, by a maximum or a
    # table over the batch, gives itself away.
    found = Differences(plans=len(rows))
    for each, together in zip(response["plans"], evaluate(rows), strict=True):
        found.add(each["evaluation"], together)
    for each, row in zip(response["plans"], rows, strict=True):
        found.add(each["evaluation"], next(iter(evaluate([row]))))
    return found


def main(names: list[str]) -> None:
    """Prints the differences of each job, and records how many there are in total."""
    total = Differences()
    for name in names:
        found = compared(JOBS[name])
        total.plans += found.plans
        total.differing += found.differing
        total.largest = max(total.largest, found.largest)
        print(
            f"{name}: {found.plans} plans, {found.differing} differ, at most {found.largest:.3g} {found.fields or ''}"
        )
    details = {"jobs": len(names), "plans": total.plans, "largest_relative_difference": total.largest}
    # A run over some of the jobs is for looking into a difference, and must not replace the recorded total.
    if names == list(JOBS):
        record("plan_against_evaluate", value=total.differing, unit="differing plans", goal=GOAL, **details)


if __name__ == "__main__":
    main(sys.argv[1:] or list(JOBS))
