"""What a layer of Megatron Core's own ("local") modules costs its host at each tensor-parallel degree, beside a plain layer.

    torchrun --standalone --nproc-per-node 4 -m benchmarks.megatron_host --tp 2 --out tp2.json

Needs GPUs, PyTorch and megatron-core. A model with few layers and one with more run forward and backward under Megatron's
DistributedDataParallel (fp32 gradients, distributed optimizer, overlapped reduction). What one layer adds to a micro-batch is the
difference between the two, divided by the number of layers between them. This is done with so few tokens that the device waits for
the host, and with the tokens of real training. The host of a shared machine varies, so everything is measured in rounds, together
with the agent's plain Llama layer (profiler/bench/host.py). Attention is PyTorch's scaled_dot_product_attention; nothing is fused, compiled or
captured. Kernels and their device seconds are counted by PyTorch's profiler in a step of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import __version__ as version
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch.profiler import ProfilerActivity, profile

from profiler.bench.host import layer_class

WIDTH, FEED_FORWARD, VOCABULARY = 2048, 8192, 4096
# The difference of two depths cancels embedding, output layer and loss, and eight layers between them average out their noise.
FEW, MORE = 4, 12
TOKENS = {"short": (1, 64), "real": (2, 2048)}
"""Micro-batch and sequence length."""
MICRO_BATCHES = 4
ROUNDS, STEPS = 3, 5
LIBRARY = {"gpt": {"gated": False, "norm": "LayerNorm", "groups": None, "bias": True, "heads": 16},
           "llama": {"gated": True, "norm": "RMSNorm", "groups": 8, "bias": False, "heads": 32}}  # fmt: skip


class Attention(torch.nn.Module):  # type: ignore[misc]
    """PyTorch's attention in place of Megatron's unfused one, with the sequence first, as Megatron lays it out."""

    def __init__(self, *_positional: Any, **_named: Any) -> None:
        super().__init__()

    def forward(self, query: Any, key: Any, value: Any, *_rest: Any, **_named: Any) -> Any:
        q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return seen.permute(2, 0, 1, 3).reshape(query.shape[0], query.shape[1], -1)


class Norm:
    """PyTorch's norm. Megatron's wrapper of it refuses sequence parallelism, for which no more than this mark is needed."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_named: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        made = kind(hidden_size, eps=eps)
        for parameter in made.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return made


def build(name: str, layers: int, tp: int) -> Any:
    """A GPT of Megatron's local modules under its data parallelism."""
    library = LIBRARY[name]
    config = TransformerConfig(
        num_layers=layers, hidden_size=WIDTH, num_attention_heads=library["heads"], num_query_groups=library["groups"],
        ffn_hidden_size=FEED_FORWARD, tensor_model_parallel_size=tp, sequence_parallel=tp > 1, bf16=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, add_bias_linear=library["bias"],
        normalization=library["norm"], gated_linear_unit=library["gated"], attention_dropout=0.0, hidden_dropout=0.0,
        activation_func=torch.nn.functional.silu if library["gated"] else torch.nn.functional.gelu,
        apply_rope_fusion=False, gradient_accumulation_fusion=False, masked_softmax_fusion=False,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(normalization=library["norm"])
    spec.submodules.self_attention.submodules.core_attention = Attention
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    block = TransformerBlockSubmodules(layer_specs=[spec] * layers, layer_norm=Norm)
    model = GPTModel(
        config, block, vocab_size=VOCABULARY, max_sequence_length=4096, position_embedding_type="rope",
        share_embeddings_and_output_weights=True,
    ).cuda().bfloat16()  # fmt: skip
    wrapped = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, overlap_grad_reduce=True, use_distributed_optimizer=True
    )
    return DistributedDataParallel(config, wrapped, model)


def step(model: Any, tokens: Any) -> None:
    """All micro-batches of one optimizer step, with gradients reduced in the last one."""
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    model.zero_grad_buffer()
    for index in range(MICRO_BATCHES):
        if index + 1 < MICRO_BATCHES:
            with model.no_sync():
                model(tokens, positions, None, labels=tokens).mean().backward()
        else:
            model(tokens, positions, None, labels=tokens).mean().backward()
    model.finish_grad_sync()


def seconds(call: Callable[[], None]) -> list[float]:
    """Wall seconds of some steps after a step of warm-up, each that of the slowest rank."""
    call()
    taken = []
    for _ in range(STEPS):
        # NCCL's barrier is itself a kernel: the second synchronisation waits until all ranks have passed it.
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        slowest = torch.tensor([time.perf_counter() - begun], device="cuda")
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        taken.append(float(slowest))
    return taken


def plain() -> Callable[[], None]:
    """Forward and backward of the agent's plain layers, as many as MORE, on so few tokens that they wait for the host."""
    made = layer_class(torch, WIDTH)
    stack = torch.nn.Sequential(*(made() for _ in range(MORE))).cuda().bfloat16()
    x = torch.randn(1, TOKENS["short"][1], WIDTH, device="cuda", dtype=torch.bfloat16)
    return lambda: stack(x).float().sum().backward()


def kernels(call: Callable[[], None]) -> dict[str, float]:
    """Kernels of one step and their device seconds: computing, and communicating."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as observed:
        call()
        torch.cuda.synchronize()
    found = {"kernels": 0.0, "busy_s": 0.0, "collectives": 0.0, "collective_s": 0.0, "operators": 0.0}
    for event in observed.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            found["operators"] += event.name.startswith("aten::")
        elif event.name.startswith("ncclDevKernel"):
            found["collectives"] += 1
            found["collective_s"] += event.device_time_total * 1e-6
        elif not event.name.startswith("nccl:"):
            found["kernels"] += 1
            found["busy_s"] += event.device_time_total * 1e-6
    return found


def measure(tp: int) -> list[dict[str, Any]]:
    """Seconds and kernels that one layer adds to one micro-batch, for each kind of model."""
    cases: dict[tuple[str, str, int], Callable[[], None]] = {("plain", "short", MORE): plain()}
    optimizers: dict[str, Callable[[], None]] = {}
    for name in LIBRARY:
        for layers in (FEW, MORE):
            model = build(name, layers, tp)
            for kind, shape in TOKENS.items():
                tokens = torch.randint(0, VOCABULARY, shape, device="cuda")
                cases[name, kind, layers] = partial(step, model, tokens)
        wanted = OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, use_distributed_optimizer=True)
        optimizers[name] = get_megatron_optimizer(wanted, [model]).step
    counted = {key: kernels(call) for key, call in cases.items()}
    taken: dict[tuple[str, str, int], list[float]] = {key: [] for key in cases}
    updates: dict[str, list[float]] = {name: [] for name in optimizers}
    # Megatron can be told to collect garbage at fixed steps only; a collection inside a round would count against whichever model ran.
    gc.collect()
    gc.disable()
    for _ in range(ROUNDS):
        for key, call in cases.items():
            taken[key] += seconds(call)
        for name, call in optimizers.items():
            updates[name] += seconds(call)
    middle = {key: median(times) for key, times in taken.items()}
    plain_s = middle["plain", "short", MORE] / MORE
    free, total = torch.cuda.mem_get_info()
    result = []
    for name in LIBRARY:
        row: dict[str, Any] = {"model": name, "tp": tp, "dp": dist.get_world_size() // tp, "plain_layer_s": plain_s}
        row["device_bytes_beyond_allocator"] = total - free - torch.cuda.memory_reserved()
        row["optimizer_step_s"] = median(updates[name])
        for kind, (micro_batch, length) in TOKENS.items():
            few, more, per = counted[name, kind, FEW], counted[name, kind, MORE], (MORE - FEW) * MICRO_BATCHES
            row[kind] = {
                "micro_batch_size": micro_batch, "seq_length": length,
                "layer_s": (middle[name, kind, MORE] - middle[name, kind, FEW]) / per,
                "layer": {key: (more[key] - few[key]) / per for key in more},
                "quartiles_s": {str(n): quantiles(taken[name, kind, n], n=4) for n in (FEW, MORE)},
            }  # fmt: skip
        result.append(row)
    return result


def main() -> None:
    """Measures both kinds of model at one tensor-parallel degree; rank 0 writes the file."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tp", type=int, required=True)
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=given.tp)
    model_parallel_cuda_manual_seed(1)
    found = measure(given.tp)
    if dist.get_rank() == 0:
        about = {"megatron_core": version, "torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
        given.out.write_text(json.dumps({**about, "layers": found}, indent=1) + "\n")
        for row in found:
            print(json.dumps(row), flush=True)
    dist.barrier()
    os._exit(0)  # taking Megatron's groups down one by one can hang


if __name__ == "__main__":
    main()
