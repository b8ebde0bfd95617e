"""What changes with a framework's release, and what a framework does on its own, against the frameworks' source.

torchtitan 0.1.0, 0.2.2 and 0.3.0, Megatron Core 0.1.0 to 0.19.2, nanotron's main branch.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from builders import job_of, llama_model, request_of, row_of
from cost_models.frameworks import FRAMEWORKS
from cost_models.hardware.flash_constants import FLASH_CURVES
from cost_models.layers.attention_core import running_kernel
from cost_models.memory.moments import moments
from planner.request.job import resolve_job
from planner.rows import evaluate_rows

GIB = 2.0**30
LAYER = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
TOKENS = 8192


def row(framework: str, strategy: dict[str, Any] | None = None, *, gpu: str = "H100-SXM-80GB", **training: Any) -> Any:
    asked = request_of(llama_model(), framework, gpu=gpu, **{"seq_length": TOKENS, **training})
    return {**asked, "strategy": {"micro_batch_size": 1, **(strategy or {})}}


def answer(*args: Any, **training: Any) -> dict[str, Any]:
    (found,) = evaluate_rows([row(*args, **training)])
    assert found["step_time_s"] is not None, found["reasons"]
    return found


def terms_at(moment: str, framework: str, strategy: dict[str, Any], **training: Any) -> dict[str, float]:
    """Bytes by term of the last stage at a moment."""
    job = job_of(llama_model(), framework, **{"seq_length": TOKENS, **training})
    strategies = row_of(job, all_stages=True, **strategy)
    return {name: float(np.ravel(value)[-1]) for name, value in moments(job, strategies).terms[moment].items()}


class TestChunkedLoss:
    """torchtitan 0.3: components/loss.py, ChunkedLossWrapper of 8 chunks in every model's config_registry.py."""

    FULL: ClassVar = {"recompute": "full", "zero": 3}

    def test_one_eighth_of_the_logits_is_alive(self) -> None:
        """12 bytes a logit, and 2 for the piece's own, which the loop still names; / 8; the hidden states' gradients in fp32
        (4h a token), and copies of the pieces (2h) where a micro-batch holds several sequences.
        """
        logits = TOKENS * 128256
        found = terms_at("loss", "torchtitan", self.FULL)["logits_and_loss"]
        assert found == pytest.approx(14 / 8 * logits + 4 * 4096 * TOKENS)
        two = terms_at("loss", "torchtitan", {**self.FULL, "micro_batch_size": 2})["logits_and_loss"]
        assert two == pytest.approx(2 * (14 / 8 * logits + (2 + 4) * 4096 * TOKENS))
        whole = terms_at("loss", "torchtitan", self.FULL, framework_version="0.2.2")["logits_and_loss"]
        assert whole == pytest.approx(12 * logits)

    def test_a_compiled_loss_is_cut_too(self) -> None:
        """4 bytes a logit of Inductor's kernels, / 8."""
        found = terms_at("loss", "torchtitan", self.FULL, compile=True)["logits_and_loss"]
        assert found == pytest.approx(4 / 8 * TOKENS * 128256 + 4 * 4096 * TOKENS)

    def test_the_heads_gradient_is_there_while_later_chunks_run(self) -> None:
        """Gradient in bf16 and its sum over the chunks in fp32: 6 bytes of each of the head's 4096 x 128256 elements more."""
        at_loss = {v: terms_at("loss", "torchtitan", self.FULL, framework_version=v) for v in ("0.2", "0.3")}
        more = at_loss["0.3"]["gradient_reduce"] - at_loss["0.2"]["gradient_reduce"]
        assert more == pytest.approx(6 * 4096 * 128256)

    def test_a_pipelines_last_stage_keeps_no_logits(self) -> None:
        """Its output is the hidden states: trainer.py sets _skip_lm_head on the last stage's model part."""
        pipeline = {"pp": 2, "zero": 2, "recompute": "full"}
        kept = {v: terms_at("layer_backward", "torchtitan", pipeline, framework_version=v) for v in ("0.2", "0.3")}
        assert kept["0.2"]["logits_and_loss"] == pytest.approx(2 * TOKENS * 128256)
        assert kept["0.3"].get("logits_and_loss", 0.0) == 0

    def test_memory_of_an_8b_model(self) -> None:
        """43.7 GiB allocated with whole logits of two sequences; the audit of torchtitan's source puts 0.3 near 27."""
        strategy = {"recompute": "full", "micro_batch_size": 2}
        old, new = (
            answer("torchtitan", strategy, framework_version=v)["memory"]["peak_allocated_bytes"]
            for v in ("0.2", "0.3")
        )
        assert old / GIB == pytest.approx(43.7, abs=0.1)
        assert 26 < new / GIB < 28


class TestParametersInPipelines:
    """torchtitan/distributed/fsdp.py: reshard_after_forward "default" is `not pp_enabled`; the same rule in 0.1 and 0.2."""

    @pytest.mark.parametrize("version", ["0.1", "0.2.2", "0.3"])
    def test_the_default_keeps_parameters_gathered(self, version: str) -> None:
        assumed = answer("torchtitan", {"pp": 2}, framework_version=version)["assumed"]
        assert assumed["zero"] == 2
        assert answer("torchtitan", {}, framework_version=version)["assumed"]["zero"] == 3

    def test_other_frameworks_keep_their_stage(self) -> None:
        assert answer("megatron", {"pp": 2})["assumed"]["zero"] == 1
        assert answer("deepspeed", {"pp": 2, "zero": 1})["step_time_s"] > 0

    def test_the_stage_holds_its_parameters_in_bf16(self) -> None:
        """16 layers and the head on the last stage, 2 bytes each, beside the fp32 shards."""
        held = terms_at("layer_backward", "torchtitan", {"pp": 2})["parameter_gather"]
        assert held == pytest.approx(2 * (16 * LAYER + 4096 * 128256 + 4096))

    def test_they_are_gathered_and_reduced_once_a_step(self) -> None:
        """torch/distributed/pipelining/stage.py (backward_maybe_with_nosync): more micro-batches cost no more of either."""
        off = {"pp": 2, "zero": 2, "overlap": {"grad_reduce": False, "param_gather": False}}
        few, many = (
            answer("torchtitan", off, global_batch_size=batch)["time_breakdown_s"]["dp_comm"] for batch in (32, 128)
        )
        assert few > 0
        assert many == pytest.approx(few, rel=1e-9)

    def test_a_stated_reduction_counts(self) -> None:
        once, each = (
            answer("torchtitan", {"pp": 2, "zero": 2, "grad_sync": sync})["time_breakdown_s"]["dp_comm"]
            for sync in ("last", "each")
        )
        assert once < each


class TestAttentionKernels:
    @pytest.mark.parametrize(
        ("framework", "training", "gpu", "kernel"),
        [
            # torchtitan/models/attention.py: FlashAttention first in 0.1, cuDNN first from 0.2
            ("torchtitan", {"framework_version": "0.1"}, "H100-SXM-80GB", "sdpa"),
            ("torchtitan", {"framework_version": "0.2.2", "software_date": "2026-11"}, "H100-SXM-80GB", "cudnn"),
            ("torchtitan", {"framework_version": "0.2"}, "V100-SXM-32GB", "sdpa"),
            # PyTorch: cuDNN first on Hopper where it is newer than 9.15; wheels carry 9.10 to 2.10, 9.19 from 2.11
            ("fsdp", {"framework_version": "2.8"}, "H100-SXM-80GB", "sdpa"),
            ("fsdp", {"framework_version": "2.11"}, "H100-SXM-80GB", "cudnn"),
            ("fsdp", {"framework_version": "2.11"}, "A100-SXM-80GB", "sdpa"),
            ("deepspeed", {"software_date": "2026-02"}, "H100-SXM-80GB", "sdpa"),
            ("deepspeed", {"software_date": "2026-11"}, "H100-SXM-80GB", "cudnn"),
        ],
    )
    def test_what_scaled_dot_product_attention_runs(self, framework, training, gpu, kernel) -> None:
        precision = "fp16" if gpu.startswith("V100") else "bf16"
        given = row(framework, gpu=gpu, precision=precision, attention="flash", attention_kernel="sdpa", **training)
        given["training"]["precision"] = precision
        job = resolve_job({name: given[name] for name in ("model", "cluster", "training")})
        assert job.training.attention_kernel == "sdpa"  # what the user said stays
        assert running_kernel(job) == kernel

    def test_flex_attention_lies_between_flash_attention_2_and_cudnn_on_hopper(self) -> None:
        """Measured on an H100: 415-433 TFLOP/s forward of 989, with the model's 1 + 512 / length for short sequences."""
        forward, backward = (curves[128][0].value for curves in FLASH_CURVES["hopper", "flex"])
        assert forward == pytest.approx(433 * (1 + 512 / 8192) / 989, rel=0.03)
        assert backward == pytest.approx(368 * (1 + 512 / 8192) / 989, rel=0.03)
        for direction in (0, 1):
            speeds = [FLASH_CURVES["hopper", kernel][direction][128][0].value for kernel in ("fa2", "flex", "cudnn")]
            assert speeds == sorted(speeds)

    def test_flex_attention_on_ampere_is_what_its_authors_published(self) -> None:
        """0.90 of FlashAttention 2 forward and 0.85 backward, of which the paper says 0.60 and 0.50 of the peak."""
        flex = [curves[128][0].value for curves in FLASH_CURVES["ampere", "flex"]]
        assert flex == pytest.approx([0.90 * 0.60, 0.85 * 0.50])

    def test_the_kernel_decides_the_time_of_attention(self) -> None:
        """0.2 runs cuDNN's kernel, 0.1 FlashAttention 2: at 8192 tokens an H100 sustains 547 and 465 TFLOP/s of one, 321 and 287 of the
        other, and 3.5 parts of operations take 1/547 + 2.5/465 against 1/321 + 2.5/287.
        """
        old, new = (
            answer("torchtitan", {"recompute": "none"}, framework_version=v)["time_breakdown_s"]["attention"]
            for v in ("0.1", "0.2")
        )
        assert old / new == pytest.approx((1 / 321 + 2.5 / 287) / (1 / 547 + 2.5 / 465), rel=0.05)


class TestNanotron:
    def test_releases(self) -> None:
        """Tags 0.4 of 2024-03-04 and 0.5 of 2024-04-19; what came later is its main branch."""
        assert FRAMEWORKS["nanotron"].releases[:2] == (("0.4", "2024-03"), ("0.5", "2024-04"))

    def test_sequence_parallelism_is_off_unless_asked_for(self) -> None:
        """parallelism_config.py: tp_mode None becomes ALL_REDUCE."""
        assert answer("nanotron", {"tp": 4})["assumed"]["sequence_parallel"] is False

    def test_gathered_inputs_are_gathered_again_since_july_2024(self) -> None:
        """tp_recompute_allgather: two norm outputs a layer, 2h T each, kept by a quarter in place of whole; two buffers of 2h T."""
        split = {"tp": 4, "sequence_parallel": True, "recompute": "none"}
        old, new = (terms_at("loss", "nanotron", split, software_date=date) for date in ("2024-06", "2024-07"))
        whole = 2 * 4096 * TOKENS
        # 32 layers and the final norm's output
        saved = (32 * 2 + 1) * whole * (1 - 1 / 4)
        assert old["activations"] - new["activations"] == pytest.approx(saved)
        assert new["comm_workspace"] - old["comm_workspace"] == pytest.approx(2 * whole)


class TestMegatronsLoss:
    def test_the_parser_leaves_it_unfused(self) -> None:
        """model_parallel_config.py: cross_entropy_loss_fusion False, cross_entropy_fusion_impl native; 6 bytes a logit."""
        found = terms_at("loss", "megatron", {"recompute": "full"})["logits_and_loss"]
        assert found == pytest.approx(6 * TOKENS * 128256)
        recipe = terms_at("loss", "megatron", {"recompute": "full"}, recipe="nvidia-perf")["logits_and_loss"]
        assert recipe == pytest.approx(2 * TOKENS * 128256)


class TestHabits:
    def test_what_megatrons_parser_would_not_do_is_said(self) -> None:
        assumed = answer("megatron", {"tp": 2})["assumed"]
        habits = assumed["recipe_habits"]
        assert set(habits) == {"zero", "sequence_parallel", "overlap.grad_reduce", "overlap.param_gather", "dropout"}
        assert assumed["zero"] == 1
        assert "parser leaves it off" in habits["zero"]

    def test_what_the_user_says_is_no_habit(self) -> None:
        stated = {"tp": 2, "zero": 1, "sequence_parallel": True, "overlap": {"grad_reduce": True, "param_gather": True}}
        assert "recipe_habits" not in answer("megatron", stated, dropout=0.0)["assumed"]

    @pytest.mark.parametrize(("version", "said"), [("0.2.2", True), ("0.3", False)])
    def test_torchtitans_selective_was_every_second_layer(self, version: str, said: bool) -> None:
        """job_config.py of 0.2.2: selective_ac_option "2"; llama3_8b.toml says "op". 0.3 knows the operators alone."""
        habits = answer("torchtitan", {}, framework_version=version)["assumed"].get("recipe_habits", {})
        assert ("recompute" in habits) is said

    def test_the_chunked_loss_is_every_recipes(self) -> None:
        assert "cross_entropy" in answer("torchtitan", {})["assumed"]["recipe_habits"]


def test_a_recipe_is_megatrons() -> None:
    (found,) = evaluate_rows([row("torchtitan", recipe="nvidia-perf")])
    assert found["verdict"] == "invalid"
    assert "written for megatron" in found["reasons"][0]["message"]


def test_evaluating_a_batch_of_releases_needs_no_order() -> None:
    """Facts of one release never leak into another's job."""
    rows = [row("torchtitan", framework_version=v) for v in ("0.1", "0.3", "0.2", "0.3", "0.1")]
    found = [each["step_time_s"] for each in evaluate_rows(rows)]
    assert found[0] == found[4]
    assert found[1] == found[3]
    assert len(set(found)) == 3
