"""Presets are data with unit, source and date; an unknown name is answered with the nearest one."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from cost_models import presets
from cost_models.errors import InvalidInputError
from cost_models.inputs.model import resolve_model
from cost_models.layers.parameters import count_parameters

FOLDER = Path(presets.__file__).parent
CONTRACT = {
    "models": """gpt2-xl gpt3-1.3b gpt3-6.7b gpt3-13b gpt3-175b mt-nlg-530b megatron-1t bloom-176b opt-66b falcon-40b
        mpt-7b mpt-30b llama-2-7b llama-2-13b llama-2-70b llama-3.1-8b llama-3.1-70b llama-3.1-405b llama-3.2-1b
        llama-3.2-3b mistral-7b mixtral-8x7b mixtral-8x22b qwen2.5-7b qwen2.5-72b qwen3-8b qwen3-32b qwen3-30b-a3b
        qwen3-235b-a22b gemma-2-9b gemma-3-27b phi-4 olmo-2-13b nemotron-4-340b gpt-oss-20b gpt-oss-120b deepseek-v2
        deepseek-v3 deepseek-v3.2 nemotron-h-8b nemotron-h-56b nemotron-nano-9b-v2 nemotron-3-nano-30b-a3b qwen3-next-80b-a3b
        granite-4.0-h-small jamba-v0.1 lfm2-1.2b""",
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


def constants(kind: str, name: str) -> dict[str, dict]:
    return json.loads((FOLDER / kind / f"{name}.json").read_text())["constants"]


@pytest.mark.parametrize("kind", ["gpus", "clusters"])
def test_every_constant_has_unit_source_date_and_check(kind):
    """`checked` says where else the figure was found, or that it was found nowhere else."""
    for name in presets.names(kind):
        for constant, entry in constants(kind, name).items():
            assert set(entry) == {"value", "unit", "source", "date", "checked"}, (name, constant)
            assert all(entry[key] for key in ("unit", "source", "date", "checked")), (name, constant)
            assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", entry["date"]), (name, constant)


GPUS = {name: presets.load("gpus", name).spec for name in presets.names("gpus")}
UNITS = {
    "memory_gib": "GiB", "peak_tflops": "1e12 operations/s, dense", "memory_bandwidth_gb_per_s": "1e9 bytes/s",
    "nvlink_gb_per_s": "1e9 bytes/s, one direction", "pcie_gb_per_s": "1e9 bytes/s, one direction", "power_limit_w": "W",
}  # fmt: skip


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_is_in_range_and_its_units_say_what_is_meant(name):
    spec = GPUS[name]
    for constant, unit in UNITS.items():
        assert constants("gpus", name)[constant]["unit"].startswith(unit), constant
    assert 10 < spec["memory_gib"] < 300
    assert 200 < spec["memory_bandwidth_gb_per_s"] <= 8192
    assert 0 <= spec["nvlink_gb_per_s"] <= 900
    assert spec["pcie_gb_per_s"] in (15.75, 31.5, 63.0)
    assert 50 < spec["num_sms"] <= 304
    assert 60 <= spec["power_limit_w"] <= 1400
    assert spec["reference"] in GPUS


@pytest.mark.parametrize("name", GPUS)
def test_no_peak_is_a_sparse_one(name):
    """Each narrower type doubles the rate, and no peak needs a clock that its tensor cores never ran at: a sparse one
    would need twice the real 1.4-2.5 GHz. (The H20's peaks are limited below its clock.)
    """
    peaks, sms = GPUS[name]["peak_tflops"], GPUS[name]["num_sms"]
    assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]
    for wide, narrow in (("fp16", "fp8"), ("fp8", "nvfp4"), ("tf32", "fp16")):
        if wide in peaks and narrow in peaks:
            assert 1.95 < peaks[narrow] / peaks[wide] < 2.05, (wide, narrow)
    # Dense fp16 operations a clock and SM, from the architectures' white papers.
    most = {"volta": 1024, "ampere": 2048, "ada": 1024, "hopper": 4096, "blackwell": 8192, "cdna2": 1024,
            "cdna3": 2048, "cdna4": 4096}  # fmt: skip
    clock_ghz = peaks["fp16"] * 1e12 / (most[GPUS[name]["generation"]] * sms) / 1e9
    assert 0.4 < clock_ghz < 2.6


def test_generations_are_monotone():
    chain = ["V100-SXM-32GB", "A100-SXM-80GB", "H100-SXM-80GB", "B200-SXM-180GB"]
    for older, newer in itertools.pairwise(chain):
        for field in ("memory_gib", "memory_bandwidth_gb_per_s", "nvlink_gb_per_s", "num_sms", "power_limit_w"):
            if (field, newer) != ("memory_gib", "H100-SXM-80GB"):
                assert GPUS[newer][field] > GPUS[older][field], (field, newer)
        assert GPUS[newer]["peak_tflops"]["fp16"] > 2 * GPUS[older]["peak_tflops"]["fp16"]
    for limited, whole in (("A800-SXM-80GB", "A100-SXM-80GB"), ("H800-SXM-80GB", "H100-SXM-80GB")):
        assert GPUS[limited]["nvlink_gb_per_s"] < GPUS[whole]["nvlink_gb_per_s"]
        assert GPUS[limited]["peak_tflops"] == GPUS[whole]["peak_tflops"]


@pytest.mark.parametrize("name", presets.names("clusters"))
def test_a_cluster_is_in_range_and_states_no_price(name):
    spec = presets.load("clusters", name).spec
    assert spec["nic_gbit_per_s"] in (100, 200, 400)
    assert 1 <= spec["nics_per_node"] <= 32
    # No more network than two 400 Gbit/s ports a GPU, no less than an eighth of a 100 Gbit/s one.
    assert 12.5 <= spec["nics_per_node"] * spec["nic_gbit_per_s"] / spec["gpus_per_node"] <= 800
    assert spec["pcie"]["gpus_per_switch"] <= spec["pcie"]["gpus_per_socket"] <= spec["gpus_per_node"]
    assert "price_per_gpu_hour" not in spec
    if "nvlink_domain_gpus" in spec:
        assert spec["nvlink_domain_gpus"] == 72


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
    [
        ("models", "llama-3-8b", "llama-3.1-8b"),
        ("gpus", "h100", "H100"),
        ("gpus", "L4", "Did you mean 'L40S-48GB'?"),  # two letters inside a name
        ("gpus", "L", "Known: A100-PCIe-80GB, "),  # one is in too many
        ("clusters", "dgx-h10", "dgx-h100"),
        ("clusters", "dgx-a100", "dgx-a100-"),  # one letter from dgx-h100, and yet another machine
    ],
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
