"""What a mixture of experts in PyTorch's operators, as trials run it, saves for its backward, counted by torch's own hooks."""

from __future__ import annotations

import pytest
import saved_tensors

from builders import dense_model, job_of, row_of, with_experts
from cost_models.frameworks import memory_traits
from cost_models.memory.activations import batch_sizes, layer_parts

torch = pytest.importorskip("torch")
HIDDEN, TOKENS = 128, 512


@pytest.mark.parametrize(("experts", "top_k", "width"), [(8, 4, 64), (16, 2, 128), (4, 1, 256)])
def test_a_mixture_keeps_what_the_model_counts(experts: int, top_k: int, width: int) -> None:
    """Rows and, in fp32, what is weighed; four hidden tensors; the router's. Groups are padded by up to 8 rows an expert."""
    from profiler.trial.experts import Mixture

    given = with_experts(
        dense_model(2, hidden_size=HIDDEN), num_experts=experts, top_k=top_k, expert_intermediate_size=width
    )
    job = job_of(given, "torchtitan", seq_length=TOKENS, global_batch_size=8, compile=False, param_dtype="bf16")
    rows = row_of(job, micro_batch_size=1)
    traits = memory_traits(job.training)
    parts = layer_parts(job, traits, job.model.layer_kinds[0], batch_sizes(job, traits, rows))
    layer = Mixture(job.model, None).bfloat16()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    found = saved_tensors.saved_bytes(layer, lambda: layer(x))[0] - x.untyped_storage().nbytes()
    padding = 8 * experts * (2 * HIDDEN + 8 * width)
    indices = TOKENS * top_k * 40
    assert float(parts.experts[0]) * 0.97 <= found <= float(parts.experts[0]) + padding + indices
