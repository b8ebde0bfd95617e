"""What each code in a plan response's `rejected` says about the strategies that it counts, as the end of a sentence.

The codes are those of the rules, of memory and of targets. A count stands for strategies with different values, so these
phrases name none; the reasons of a single strategy do.
"""

from __future__ import annotations

from collections.abc import Mapping

REJECTIONS: Mapping[str, str] = {
    "out-of-memory": "need more memory than a GPU has",
    "at-risk-of-memory": "may need more memory than a GPU has",
    "host-memory": "offload more than the hosts' memory holds",
    "nvme-capacity": "offload more than the nodes' drives hold",
    "misses-target": "are slower than the targets allow",
    "recipe-unsupported-by-gpu": "use an fp8 recipe that the GPU does not run",
    "precision-unsupported-by-framework": "train in a precision that the framework does not have",
    "precision-not-supported": "train in a precision that the GPU does not have",
    "attention-unsupported-by-gpu": "use an attention kernel that the GPU does not run",
    "attention-unsupported-by-framework": "use an attention kernel that the framework does not have",
    "cross-entropy-unsupported": "compute the loss in a way that the framework does not have",
    "world-exceeds-gpus": "need more GPUs than the cluster has",
    "gpus-not-divisible": "do not fill whole nodes",
    "batch-not-divisible": "do not split the batch into whole micro-batches",
    "heads-not-divisible": "have a tp that does not divide the attention heads",
    "kv-heads-not-divisible": "have a tp that does not suit the number of key-value heads",
    "mlp-not-divisible": "have a tp that does not divide the MLP's width",
    "layers-not-divisible": "have a pp that does not divide the layers",
    "layers-per-stage-mismatch": "list layers per stage that do not add up to the model's",
    "sequence-not-divisible": "have a cp or tp that does not divide the sequence",
    "sequence-parallel-needs-tp": "are sequence-parallel without tensor parallelism",
    "sequence-parallel-unsupported": "use sequence parallelism, which the framework does not have",
    "tensor-parallel-unsupported": "use tensor parallelism, which the framework does not have here",
    "pipeline-unsupported": "use a pipeline, which the framework does not have for this model",
    "split-unsupported": "split the layers in a way that the framework cannot be told",
    "context-parallel-unsupported": "use context parallelism, which the framework does not have here",
    "context-parallel-needs-flash": "use context parallelism without flash attention",
    "layers-unsupported-by-framework": "train layers that the framework has no modules for",
    "context-parallel-levels": "have no two levels of context parallelism, or name them for another cp_comm",
    "context-parallel-comm-unsupported": "use a cp_comm that the framework does not have",
    "context-parallel-heads": "exchange heads over a number of context-parallel ranks that does not divide them",
    "virtual-stages-unsupported": "use virtual pipeline stages, which the framework does not have",
    "virtual-stages-need-pipeline": "have virtual pipeline stages without a pipeline",
    "interleaving-needs-micro-batches": "interleave stages with a number of micro-batches that does not make whole rounds of pp",
    "interleaving-needs-p2p-overlap": "interleave two stages without overlapping their sends",
    "schedule-unsupported": "use a pipeline schedule that the framework does not have",
    "schedule-mismatch": "use a pipeline schedule that does not suit their virtual stages",
    "too-few-micro-batches": "have fewer micro-batches than the pipeline schedule needs",
    "cuda-graphs-with-pipeline": "use CUDA graphs in a pipeline, which the framework cannot do",
    "experts-missing": "use expert parallelism on a model without experts",
    "experts-not-divisible": "have an ep that does not divide the experts",
    "expert-mlp-not-divisible": "have an etp that does not divide an expert's width",
    "expert-ranks-not-divisible": "have an ep and etp that do not divide the ranks they are taken from",
    "expert-parallel-unsupported": "use expert parallelism in a way that the framework cannot",
    "expert-tensor-parallel-unsupported": "use expert tensor parallelism in a way that the framework cannot",
    "moe-needs-sequence-parallel": "use tensor parallelism on experts without sequence parallelism",
    "dispatcher-unsupported": "use a moe_dispatcher that the framework or the GPU does not have",
    "zero-unsupported": "use a ZeRO stage that the framework does not have",
    "zero-with-pipeline": "use a ZeRO stage that the framework does not combine with a pipeline",
    "zero-with-tensor-parallel": "use a ZeRO stage that the framework does not combine with tensor parallelism",
    "zero-shard-size-not-divisible": "have a zero_shard_size that does not divide the ranks it is taken from",
    "zero-shard-size-unsupported": "shard in groups smaller than the framework can",
    "zero-param-shard-size-unsupported": "have a second shard group for parameters, which the framework does not have here",
    "zero-quantized-unsupported": "quantise what ZeRO sends, which the framework or the split does not allow",
    "adapter-unsupported": "split a model with adapters in a way that the framework does not have",
    "quantized-base-unsupported": "shard a quantised base that the framework cannot shard",
    "optimizer-unsupported": "use an optimizer that the framework does not have, or not with their ZeRO stage",
    "recompute-unsupported": "recompute in a way that the framework does not have",
    "recompute-modules-unsupported": "recompute modules that the framework cannot be told",
    "recompute-count-mismatch": "recompute more layers than a stage holds",
    "recompute-per-stage-mismatch": "list recomputed layers for another number of stages",
    "overlap-unsupported": "overlap communication that the framework cannot overlap",
    "offload-unsupported": "offload what the framework cannot offload",
    "sync-unsupported": "keep replicas together in a way that the framework does not have here",
    "compression-unsupported": "compress gradients in a way that the framework does not have here",
    "compression-with-zero": "compress gradients that ZeRO shards",
    "sync-with-zero": "shard state with a sync.method that needs whole replicas",
    "sync-needs-whole-replicas": "split a replica that the sync or compression needs whole",
    "sync-needs-islands": "have one group of replicas, which has no other to synchronise with",
    "island-cut": "have replicas that do not lie whole on one island",
    "pools-not-supported": "spread stages over pools, which the framework cannot do",
    "pool-unknown": "name a pool that the cluster does not have",
    "pool-per-stage-mismatch": "name pools for another number of stages",
    "pool-exceeded": "need more nodes than a pool has",
    "unequal-data-parallel-shares": "would give replicas of a stage unequal shares of the batch",
}


def rejection(code: str) -> str:
    """The end of a sentence about the strategies that a code counts, followed by the code itself."""
    words = REJECTIONS.get(code)
    return f"break the rule {code}" if words is None else f"{words} ({code})"


def rejections(rejected: Mapping[str, int], *, most: int) -> str:
    """How many strategies each reason ruled out, the commonest first, to follow "Of the strategies,"; empty without any."""
    ordered = sorted(rejected.items(), key=lambda item: -item[1])
    told = "; ".join(f"{count:,} {rejection(code)}" for code, count in ordered[:most])
    rest = sum(count for _, count in ordered[most:])
    reasons = f"{len(ordered) - most} other reason{'s' * (len(ordered) - most > 1)}"
    return told + (f"; {rest:,} are ruled out for {reasons}" if rest else "")
