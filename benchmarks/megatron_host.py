"""What a layer of Megatron Core's own ("local") modules costs its host: seconds a micro-batch, by tensor parallelism.

    torchrun --standalone --nproc-per-node 4 -m benchmarks.megatron_host --tp 2 --out tp2.json

Needs GPUs, PyTorch and megatron-core; nothing else of meshwright. A model of few and one of more layers run forward and
backward under Megatron's DistributedDataParallel (fp32 gradients, distributed optimizer's buffers, reduction overlapped);
what one layer adds is the difference over the layers between them. Twice: with so few tokens that the device waits for the
host, and with the tokens of real training. Attention is PyTorch's scaled_dot_product_attention; nothing is fused, compiled
or captured. Kernels and their device seconds are counted by PyTorch's profiler in a run of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WIDTH, FEED_FORWARD, HEAD_WIDTH = 2048, 8192, 64
FEW, MORE = 4, 12
TOKENS = {"short": (1, 64), "real": (2, 2048)}
"""Micro-batch and sequence length."""
MICRO_BATCHES = 4
LIBRARY = {"gpt": {"gated": False, "norm": "LayerNorm", "groups": None, "bias": True, "heads": 16},
           "llama": {"gated": True, "norm": "RMSNorm", "groups": 8, "bias": False, "heads": 32}}  # fmt: skip


class Attention(torch.nn.Module):  # type: ignore[misc]
    """PyTorch's attention in the place of Megatron's unfused one; sequence first, as Megatron lays it out."""

    def __init__(self, *_positional: Any, **_named: Any) -> None:
        super().__init__()

    def forward(self, query: Any, key: Any, value: Any, *_rest: Any, **_named: Any) -> Any:
        q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return seen.permute(2, 0, 1, 3).reshape(query.shape[0], query.shape[1], -1)


class Norm:
    """PyTorch's norm; Megatron's wrapper of it refuses sequence parallelism, which needs no more than this mark."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_named: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        made = kind(hidden_size, eps=eps)
        for parameter in made.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return made


def build(name: str, layers: int, tp: int) -> Any:
    """A GPT of Megatron's local modules under its data parallelism."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

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
        config, block, vocab_size=4096, max_sequence_length=4096, position_embedding_type="rope",
        share_embeddings_and_output_weights=True,
    ).cuda().bfloat16()  # fmt: skip
    wrapped = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, overlap_grad_reduce=True, use_distributed_optimizer=True
    )
    return DistributedDataParallel(config, wrapped, model)


def step(model: Any, tokens: Any) -> None:
    """One optimizer step's micro-batches, gradients reduced in the last."""
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    model.zero_grad_buffer()
    for index in range(MICRO_BATCHES):
        if index + 1 < MICRO_BATCHES:
            with model.no_sync():
                model(tokens, positions, None, labels=tokens).mean().backward()
        else:
            model(tokens, positions, None, labels=tokens).mean().backward()
    model.finish_grad_sync()


def seconds(model: Any, tokens: Any, *, repeats: int) -> list[float]:
    """Wall seconds of steps, the slowest rank's each."""
    for _ in range(3):
        step(model, tokens)
    taken = []
    gc.collect()
    gc.disable()
    for _ in range(repeats):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        step(model, tokens)
        torch.cuda.synchronize()
        slowest = torch.tensor([time.perf_counter() - begun], device=tokens.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        taken.append(float(slowest))
    gc.enable()
    return taken


def kernels(model: Any, tokens: Any) -> dict[str, float]:
    """Kernels of one step and their device seconds: computing, and communicating."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as observed:
        step(model, tokens)
        torch.cuda.synchronize()
    found = {"kernels": 0, "busy_s": 0.0, "collectives": 0, "collective_s": 0.0, "operators": 0}
    for event in observed.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            collective = event.name.startswith("nccl")
            if event.name.startswith(("Memcpy HtoD", "Memcpy DtoH", "record_param_comms")):
                continue
            found["collectives" if collective else "kernels"] += 1
            found["collective_s" if collective else "busy_s"] += event.device_time_total * 1e-6
        elif event.name.startswith("aten::"):
            found["operators"] += 1
    return found


def one_model(name: str, tp: int) -> dict[str, Any]:
    """Seconds and kernels that one layer adds to one micro-batch."""
    wall: dict[str, dict[int, list[float]]] = {kind: {} for kind in TOKENS}
    counted: dict[str, dict[int, dict[str, float]]] = {kind: {} for kind in TOKENS}
    for layers in (FEW, MORE):
        model = build(name, layers, tp)
        for kind, (micro_batch, length) in TOKENS.items():
            tokens = torch.randint(0, 4096, (micro_batch, length), device="cuda")
            wall[kind][layers] = seconds(model, tokens, repeats=10 if kind == "short" else 6)
            counted[kind][layers] = kernels(model, tokens)
        del model
        gc.collect()
        torch.cuda.empty_cache()
    per = (MORE - FEW) * MICRO_BATCHES
    result: dict[str, Any] = {"model": name, "tp": tp, "dp": dist.get_world_size() // tp}
    for kind in TOKENS:
        middle = {layers: sorted(times)[len(times) // 2] for layers, times in wall[kind].items()}
        few, more = counted[kind][FEW], counted[kind][MORE]
        result[kind] = {
            "micro_batch_size": TOKENS[kind][0], "seq_length": TOKENS[kind][1],
            "layer_s": round((middle[MORE] - middle[FEW]) / per, 7),
            "steps_s": {str(layers): [round(t, 5) for t in times] for layers, times in wall[kind].items()},
            "layer": {key: round((more[key] - few[key]) / per, 9) for key in more},
        }  # fmt: skip
    free, total = torch.cuda.mem_get_info()
    result["device_bytes_beyond_allocator"] = total - free - torch.cuda.memory_reserved()
    return result


def main() -> None:
    """Measures both kinds of model at one tensor-parallel degree; rank 0 writes the file."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tp", type=int, required=True)
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    from megatron.core import __version__ as version
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=given.tp)
    model_parallel_cuda_manual_seed(1)
    found = [one_model(name, given.tp) for name in LIBRARY]
    if dist.get_rank() == 0:
        about = {"megatron_core": version, "torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
        given.out.write_text(json.dumps({**about, "layers": found}, indent=1) + "\n")
        for row in found:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
