"""The memory tables against PyTorch itself: a block on the meta device, with every saved tensor and live storage counted.

No GPU and no memory is used: meta tensors have sizes only. Attention goes through the flash operator (it has a meta kernel
and saves what CUDA saves), RMSNorm through a function that saves what the fused CUDA kernel saves (the CPU one is composite).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from cost_models.frameworks import FRAMEWORKS, memory_traits
from cost_models.hardware import load_calibration
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.model import resolve_model
from cost_models.inputs.training import resolve_training
from cost_models.job import Job
from cost_models.memory.activations import batch_sizes, layer_parts
from cost_models.memory.layer_memory import LayerMemory, layer_memory
from cost_models.memory.loss import LOSS_BYTES, logits_and_loss
from cost_models.strategies.fields import NAMES
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import ARRAY_FIELDS, build_strategies

torch = pytest.importorskip("torch", reason="torch is not installed: it is the oracle here, never a dependency")
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

HIDDEN, HEADS, KV_HEADS, WIDTH = 4096, 32, 8, 14336
HEAD_DIM = HIDDEN // HEADS
RANDOM_STATE_BYTES = 64
"""Seed and offset of dropout, which the model leaves out."""


class RmsNorm(torch.autograd.Function):
    """Saves its input, its weight and one fp32 value per row, like the fused kernel."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class Block(torch.nn.Module):
    """A Llama block as torchtitan 0.2 writes it, or with 0.3's one product for query, key and value."""

    def __init__(self, tokens: int, *, fused: bool = False) -> None:
        super().__init__()
        self.tokens, self.fused = tokens, fused
        kv = KV_HEADS * HEAD_DIM
        make = {"device": "meta", "dtype": torch.bfloat16}
        shapes = {"wq": (HIDDEN, HIDDEN), "wk": (kv, HIDDEN), "wv": (kv, HIDDEN), "wo": (HIDDEN, HIDDEN),
                  "w1": (WIDTH, HIDDEN), "w2": (HIDDEN, WIDTH), "w3": (WIDTH, HIDDEN)}  # fmt: skip
        if fused:
            shapes = {"wqkv": (HIDDEN + 2 * kv, HIDDEN), **{name: shapes[name] for name in ("wo", "w1", "w2", "w3")}}
        for name, shape in shapes.items():
            setattr(self, name, torch.nn.Parameter(torch.empty(*shape, **make)))
        self.norm1, self.norm2 = (torch.nn.Parameter(torch.empty(HIDDEN, **make)) for _ in range(2))
        self.frequencies = torch.empty(1, tokens, 1, HEAD_DIM // 2, device="meta", dtype=torch.complex64)

    def rotated(self, x: Any) -> Any:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.frequencies).flatten(3).type_as(x)

    def projected(self, n: Any) -> tuple[Any, Any, Any]:
        """Query, key and value; 0.3 makes each of them whole from its strided part (FusedQKVLinear)."""
        if not self.fused:
            one, two, three = (
                functional.linear(n, w).view(1, self.tokens, -1, HEAD_DIM) for w in (self.wq, self.wk, self.wv)
            )
            return one, two, three
        groups = HEADS // KV_HEADS
        parts = functional.linear(n, self.wqkv).view(1, self.tokens, KV_HEADS, groups + 2, HEAD_DIM)
        one, two, three = (
            part.reshape(1, self.tokens, -1, HEAD_DIM).contiguous()
            for part in torch.split(parts, [groups, 1, 1], dim=-2)
        )
        return one, two, three

    def forward(self, x: Any) -> Any:
        n = RmsNorm.apply(x, self.norm1)
        q, k, v = self.projected(n)
        q, k = self.rotated(q).transpose(1, 2), self.rotated(k).transpose(1, 2)
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        context = flash(q, k, v.transpose(1, 2), 0.0, is_causal=True)[0]
        h = x + functional.linear(context.transpose(1, 2).reshape(1, self.tokens, HIDDEN), self.wo)
        n = RmsNorm.apply(h, self.norm2)
        return h + functional.linear(
            functional.silu(functional.linear(n, self.w1)) * functional.linear(n, self.w3), self.w2
        )


@dataclass
class Live(TorchDispatchMode):
    """Bytes of storages made inside, alive now and at most."""

    known: set[int] = field(default_factory=set)
    now: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def ignore(self, tensors: Iterator[Any]) -> None:
        self.known |= {tensor.untyped_storage()._cdata for tensor in tensors}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        self.most = max(self.most, self.now)
        return out

    def _see(self, storage: Any) -> None:
        key = storage._cdata
        if key in self.known:
            return
        self.known.add(key)
        size = storage.nbytes()
        self.now += size
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def op_policy(_ctx: Any, func: Any, *_args: Any, counts: dict[str, int], **_kwargs: Any) -> Any:
    """torchtitan's selective policy: attention outputs and every other matmul are saved."""
    ops = torch.ops.aten
    if func == ops.mm.default:
        counts["mm"] += 1
        return CheckpointPolicy.MUST_SAVE if counts["mm"] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
    saved = func == ops._scaled_dot_product_flash_attention.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def counting(blocks: list[Block], *inputs: Any) -> Iterator[Live]:
    """A counter that ignores the parameters, their gradients and these inputs."""
    live = Live()
    for block in blocks:
        for parameter in block.parameters():
            parameter.grad = torch.zeros_like(parameter)
            live.ignore(iter((parameter, parameter.grad)))
        live.ignore(iter((block.frequencies,)))
    live.ignore(iter(inputs))
    with live:
        yield live


def applied(block: Block, mode: str) -> Callable[[Any], Any]:
    """The block under a recomputation mode."""
    if mode == "none":
        return block
    settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if mode == "selective":

        def contexts() -> Any:
            counts = {False: {"mm": 0}, True: {"mm": 0}}

            def policy(ctx: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
                return op_policy(ctx, func, *args, counts=counts[ctx.is_recompute], **kwargs)

            return create_selective_checkpoint_contexts(policy)

        settings["context_fn"] = contexts
    return lambda x: checkpoint(block, x, **settings)


def counted(mode: str, tokens: int, *, fused: bool = False) -> tuple[int, int]:
    """Bytes a block adds to what is saved, and its backward's peak above the state it starts from."""
    blocks = [Block(tokens, fused=fused) for _ in range(3)]
    x = torch.empty(1, tokens, HIDDEN, device="meta", dtype=torch.bfloat16, requires_grad=True)
    marks = []
    with counting(blocks, x) as live:
        h = x
        for block in blocks:
            h = applied(block, mode)(h)
            marks.append(live.now)
        gradient = torch.empty_like(h)
        start = live.now
        live.most = start
        torch.autograd.backward(h, gradient)
    del h, gradient
    return marks[2] - marks[1], live.most - start


@pytest.fixture(scope="module")
def job() -> Job:
    return job_of("0.2.2")


def job_of(version: str, **changed: Any) -> Job:
    """One block of Llama 3 8B's sizes under a release of torchtitan."""
    model = resolve_model({
        "num_layers": 1, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "intermediate_size": WIDTH, "vocab_size": 1000,
    })  # fmt: skip
    cluster = resolve_cluster({"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8})
    given = {"seq_length": 1024, "global_batch_size": 8, "precision": "bf16", "framework": "torchtitan"}
    training = resolve_training({**given, "framework_version": version, **changed}, model=model, cluster=cluster)
    return Job(model, cluster, training, load_calibration(cluster))


def modelled(job: Job, mode: str, tokens: int) -> LayerMemory:
    """The layer from the memory model, for a micro-batch of this many tokens."""
    layouts = build_layouts([Layout(1, 1, (1,))], model=job.model)
    columns = dict.fromkeys(ARRAY_FIELDS, (0,)) | dict.fromkeys(
        ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "zero_shard_size", "zero_param_shard_size", "num_micro_batches"),
        (1,),
    )
    columns |= {"zero": (3,), "micro_batch_size": (tokens // 1024,), "recompute": (NAMES["recompute"].index(mode),)}
    rows = build_strategies(columns, layouts=layouts)
    traits = memory_traits(job.training)
    parts = layer_parts(job, traits, job.model.layer_kinds[0], batch_sizes(job, traits, rows))
    return layer_memory(parts, rows, traits=traits)


@pytest.mark.parametrize("tokens", [1024, 8192])
@pytest.mark.parametrize("mode", ["none", "selective"])
def test_saved_and_backward_bytes_are_what_pytorch_holds(job: Job, mode: str, tokens: int) -> None:
    """Exact: not one tensor more or less than autograd keeps, but for the flash kernel's random state."""
    saved, transient = counted(mode, tokens)
    layer = modelled(job, mode, tokens)
    assert saved == pytest.approx(layer.kept[0], abs=RANDOM_STATE_BYTES, rel=0)
    assert transient == pytest.approx(layer.transient[0], abs=RANDOM_STATE_BYTES, rel=0)


@pytest.mark.parametrize("mode", ["none", "selective"])
def test_one_product_for_query_key_and_value_saves_what_pytorch_holds(mode: str) -> None:
    """torchtitan 0.3, exact: the policy's every second product is another one, and nothing of the joined output stays."""
    saved, _ = counted(mode, 1024, fused=True)
    layer = modelled(job_of("0.3"), mode, 1024)
    assert saved == pytest.approx(layer.kept[0], abs=RANDOM_STATE_BYTES, rel=0)


@pytest.mark.parametrize("tokens", [1024, 8192])
def test_full_recomputation_keeps_the_input_and_makes_the_rest_anew(job: Job, tokens: int) -> None:
    saved, transient = counted("full", tokens)
    layer = modelled(job, "full", tokens)
    hidden = 2 * HIDDEN * tokens
    assert saved == hidden
    modelled_transient = layer.whole[0] - hidden + layer.transient[0]
    assert transient == pytest.approx(modelled_transient, abs=RANDOM_STATE_BYTES, rel=0)


def test_backward_of_math_attention_holds_two_gradients_of_the_scores() -> None:
    """Of the probabilities and, made by the softmax's backward while those live, of the scores; the rest is narrow: 8 of 2048."""
    heads, tokens = 4, 2048
    shape = {"device": "meta", "dtype": torch.bfloat16, "requires_grad": True}
    q, k, v = (torch.empty(heads, tokens, 8, **shape) for _ in range(3))
    with counting([], q, k, v) as live:
        out = functional.softmax(q @ k.transpose(1, 2), dim=-1) @ v
        gradient = torch.empty_like(out)
        live.most = start = live.now
        out.backward(gradient)
    held = (live.most - start) / (heads * tokens * tokens)
    assert held == pytest.approx(2 * 2, rel=0.02)
    matrix = HEADS * 8192 * 1024
    assert modelled(job_of("0.2.2", attention="math"), "none", 8192).transient[0] / matrix == pytest.approx(
        held, rel=0.02
    )


def test_eager_cross_entropy_peaks_at_twelve_bytes_a_logit() -> None:
    """Log-probabilities, their gradient and the input's gradient, fp32 each; the bf16 logits are gone by then."""
    tokens, vocab = 2048, 32000
    hidden = torch.empty(tokens, 256, device="meta", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.nn.Parameter(torch.empty(vocab, 256, device="meta", dtype=torch.bfloat16))
    weight.grad = torch.zeros_like(weight)
    labels = torch.empty(tokens, device="meta", dtype=torch.int64)
    with counting([], hidden, weight, weight.grad, labels) as live:
        logits = functional.linear(hidden, weight)
        loss = functional.cross_entropy(logits.float(), labels)
        del logits
        loss.backward()
    assert live.most / (tokens * vocab) == pytest.approx(LOSS_BYTES["torch", "unfused"].peak, rel=1e-3)


@pytest.mark.parametrize("sequences", [1, 2])
def test_a_chunked_cross_entropy_holds_what_one_piece_and_the_gradients_take(sequences: int) -> None:
    """torchtitan 0.3's loop over 8 pieces of the sequence: product, loss, backward, the gradient into a buffer of fp32."""
    length, vocab, pieces = 2048, 32000, 8
    hidden = torch.empty(sequences, length, 256, device="meta", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.nn.Parameter(torch.empty(vocab, 256, device="meta", dtype=torch.bfloat16))
    weight.grad = torch.zeros_like(weight)
    labels = torch.empty(sequences * length // pieces, device="meta", dtype=torch.int64)
    with counting([], hidden, weight, weight.grad, labels) as live:
        cut = torch.split(hidden, length // pieces, dim=1)
        parts = [part.contiguous().detach().requires_grad_() for part in cut]
        buffer = torch.zeros_like(hidden, dtype=torch.float32)
        for position, part in enumerate(parts):
            logits = functional.linear(part, weight)
            functional.cross_entropy(logits.flatten(0, 1).float(), labels, reduction="sum").backward()
            buffer[:, position * length // pieces : (position + 1) * length // pieces] = part.grad.float()
            part.grad = None
    tokens = np.array([float(sequences * length)])
    job = job_of("0.3")
    found = logits_and_loss(
        replace(job, model=replace(job.model, hidden_size=256)), memory_traits(job.training), tokens=tokens,
        vocab_share=np.array([float(vocab)]), tp=np.ones(1), sequences=np.array([float(sequences)]),
    )  # fmt: skip
    assert live.most == pytest.approx(found[0], rel=1e-3)


def test_foreach_adamw_holds_one_copy_of_the_parameters() -> None:
    """It is what transformers asked for until 2.8 of PyTorch; the fused one, asked for since, holds nothing."""
    parameters = [torch.nn.Parameter(torch.empty(1000, 1000, device="meta")) for _ in range(8)]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    optimizer.step()
    with counting([]) as live:
        optimizer.step()
    before = job_of("2.7", framework="fsdp").framework.memory
    assert live.most == pytest.approx(before.optimizer_copies * 4 * 8e6, rel=1e-3)
    assert FRAMEWORKS["fsdp"].memory.optimizer_copies == 0
