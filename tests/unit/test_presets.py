"""Presets are data with unit, source and date; an unknown name is answered with the nearest one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cost_models import presets
from cost_models.errors import InvalidInputError
from cost_models.parameters import count_parameters
from cost_models.specs.model_input import resolve_model

FOLDER = Path(presets.__file__).parent
CONTRACT = {
    "models": """gpt2-xl gpt3-1.3b gpt3-6.7b gpt3-13b gpt3-175b mt-nlg-530b megatron-1t bloom-176b opt-66b falcon-40b
        mpt-7b mpt-30b llama-2-7b llama-2-13b llama-2-70b llama-3.1-8b llama-3.1-70b llama-3.1-405b llama-3.2-1b
        llama-3.2-3b mistral-7b mixtral-8x7b mixtral-8x22b qwen2.5-7b qwen2.5-72b qwen3-8b qwen3-32b qwen3-30b-a3b
        qwen3-235b-a22b gemma-2-9b gemma-3-27b phi-4 olmo-2-13b nemotron-4-340b gpt-oss-20b gpt-oss-120b deepseek-v2
        deepseek-v3""",
    "gpus": """V100-SXM-16GB V100-SXM-32GB A100-SXM-40GB A100-SXM-80GB A100-PCIe-80GB A800-SXM-80GB H100-SXM-80GB
        H100-PCIe-80GB H800-SXM-80GB H20-SXM-96GB H200-SXM-141GB GH200-96GB B200-SXM-180GB GB200-186GB L40S-48GB
        RTX4090-24GB MI250X-128GB MI300X-192GB MI355X-288GB""",
    "clusters": """dgx-a100-80gb dgx-h100 dgx-h200 dgx-b200 gb200-nvl72 hgx-h800 aws-p4d aws-p4de aws-p5 aws-p5en
        azure-nd-a100-v4 azure-nd-h100-v5 gcp-a3-high gcp-a3-mega gcp-a3-ultra selene jean-zay-a100 mi300x-8
        a100-pcie-pairs-8 l40s-pcie-8 rtx4090-pcie-8""",
}


@pytest.mark.parametrize("kind", presets.KINDS)
def test_every_name_of_the_contract_is_there(kind):
    assert set(presets.names(kind)) == set(CONTRACT[kind].split())


@pytest.mark.parametrize("kind", ["gpus", "clusters"])
def test_every_constant_has_unit_source_and_date(kind):
    for name in presets.names(kind):
        for constant, entry in json.loads((FOLDER / kind / f"{name}.json").read_text())["constants"].items():
            assert set(entry) == {"value", "unit", "source", "date"}, (name, constant)
            assert all(entry[key] for key in ("unit", "source", "date")), (name, constant)


@pytest.mark.parametrize("name", presets.names("models"))
def test_a_model_preset_has_a_source_and_its_published_count(name):
    """Counts are those of the published weights where there are any (without multi-token prediction)."""
    preset = presets.load("models", name)
    assert preset.facts["source"]
    assert preset.facts["date"]
    model = resolve_model({"preset": name})
    assert count_parameters(model).total == preset.facts["num_parameters"]
    assert model.assumed == {}


def test_counts_that_papers_print():
    # Megatron-LM 2021 table 1 prints 1008.0 billion; GPT-3 is called 175B; MT-NLG 530B.
    def billions(name):
        return count_parameters(resolve_model({"preset": name})).total / 1e9

    assert round(billions("megatron-1t"), 1) == 1008.0
    assert round(billions("gpt3-175b")) == 175
    assert round(billions("mt-nlg-530b")) == 530


def test_active_parameters_of_mixtures():
    def active(name):
        return count_parameters(resolve_model({"preset": name})).active / 1e9

    # Model cards: 12.9B, 21B, 37B, 3.3B, 22B; DeepSeek leaves the 0.5-0.9B input embedding out.
    assert active("mixtral-8x7b") == pytest.approx(12.9, abs=0.05)
    assert active("deepseek-v2") - 0.52 == pytest.approx(21, abs=0.5)
    assert active("deepseek-v3") - 0.93 == pytest.approx(37, abs=0.5)
    assert active("qwen3-30b-a3b") == pytest.approx(3.3, abs=0.1)
    assert active("qwen3-235b-a22b") == pytest.approx(22, abs=0.5)


@pytest.mark.parametrize(
    ("kind", "name", "nearest"),
    [("models", "llama-3-8b", "llama-3.1-8b"), ("gpus", "h100", "H100"), ("clusters", "dgx-h10", "dgx-h100")],
)
def test_an_unknown_name_is_answered_with_the_nearest(kind, name, nearest):
    with pytest.raises(InvalidInputError) as caught:
        presets.load(kind, name, pointer="/here")
    assert caught.value.problems[0].pointer == "/here"
    assert nearest in caught.value.problems[0].hint


@pytest.mark.parametrize("name", ["../gpus/L40S-48GB", "", "/etc/passwd", "dgx-h100.json"])
def test_a_name_is_never_a_path(name):
    with pytest.raises(InvalidInputError):
        presets.load("clusters", name)
