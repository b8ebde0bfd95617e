"""A gate on the attention's output (AFMoE), and an activation with parameters of its own (Apertus): what each adds."""

from __future__ import annotations

import numpy as np
import pytest

from builders import request_of
from cost_models.errors import InvalidInputError
from cost_models.inputs.model import resolve_model
from cost_models.layers.flops import model_flops_per_step
from cost_models.layers.parameters import count_parameters
from cost_models.layers.shapes import layer_gemms
from planner.request.job import resolve_job
from planner.rows import evaluate_rows

SPEC = {
    "num_layers": 3, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
    "intermediate_size": 1024, "vocab_size": 1000,
}  # fmt: skip
TOKENS = 4 * 1024


def job(model, framework="torchtitan"):
    return resolve_job(row(model, framework))


def row(model, framework="torchtitan"):
    asked = request_of(model, framework, cluster={"gpus_per_node": 1}, seq_length=1024, global_batch_size=4)
    return {**asked, "strategy": {"tp": 1, "pp": 1, "dp": 1, "micro_batch_size": 4, "recompute": "none"}}


def test_a_gate_is_one_matrix_from_the_width_to_the_heads():
    """512 x (8 x 128) in each of 3 layers."""
    plain, gated = (count_parameters(resolve_model({**SPEC, "attention_gate": gate})).total for gate in (False, True))
    assert gated - plain == 3 * 512 * 1024


def test_a_gate_multiplies_each_token_by_its_matrix():
    """2 operations a weight forward and 4 backward."""
    plain, gated = (model_flops_per_step(job({**SPEC, "attention_gate": gate})) for gate in (False, True))
    assert gated - plain == pytest.approx(6 * TOKENS * 3 * 512 * 1024, rel=1e-12)


@pytest.mark.parametrize("framework", ["torchtitan", "megatron"])
def test_the_products_of_a_gated_layer_hold_its_matrix(framework):
    """Whether the gate is a product of its own or part of a fused one, the work is that of one more query projection."""
    one = np.array([1.0])

    def work(gate):
        priced = job({**SPEC, "attention_gate": gate}, framework)
        kind = priced.model.layer_kinds[0]
        gemms = layer_gemms(priced, kind, tokens=np.array([float(TOKENS)]), tp=one, ep=one, etp=one)
        return sum(float((g.m * g.n * g.k * g.batch * g.repeats)[0]) for g in gemms)

    assert work(True) - work(False) == TOKENS * 512 * 1024


def test_a_gate_keeps_its_sigmoid_and_the_product_for_the_backward():
    """Two bf16 tensors of 1024 elements a token more in each of 3 layers (modeling_afmoe.py), while the loss is made."""
    large = {**SPEC, "vocab_size": 100_000}
    plain, gated = evaluate_rows([row({**large, "attention_gate": gate}) for gate in (False, True)])
    stages = [answer["memory"]["stages"][0] for answer in (plain, gated)]
    assert [stage["peak_moment"] for stage in stages] == ["loss", "loss"]
    without, with_gate = (stage["breakdown_bytes"]["activations"] for stage in stages)
    assert with_gate - without == pytest.approx(3 * TOKENS * 2 * 2 * 1024, rel=1e-9)
    assert gated["time_breakdown_s"]["elementwise"] > plain["time_breakdown_s"]["elementwise"]


def test_a_gate_on_latent_attention_is_refused():
    mla = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    spec = {name: value for name, value in SPEC.items() if name not in ("num_key_value_heads", "head_dim")}
    with pytest.raises(InvalidInputError, match="latent attention"):
        resolve_model({**spec, "mla": mla, "attention_gate": True})


def test_the_scalars_of_an_activation_are_counted_once_a_layer():
    plain, learned = (count_parameters(resolve_model({**SPEC, "activation_parameters": n})).total for n in (0, 2))
    assert learned - plain == 3 * 2
