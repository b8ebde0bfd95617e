"""What a launch says of forced collectives: NCCL's variables with a warning, or a refusal that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.errors import NotExpressibleError
from planner.export.export import export_row
from planner.export.formats.arguments import read_script
from planner.export.settings import InputFile

MODEL = {
    "num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 8192,
    "vocab_size": 32000,
}  # fmt: skip


def launch_of(framework: str = "megatron", gpu: str = "H100-SXM-80GB", **collectives: Any) -> str:
    row = {
        "model": MODEL,
        "cluster": {
            "gpu": gpu, "num_nodes": 2, "gpus_per_node": 8, "nics_per_node": 8, "nic_gbit_per_s": 400,
            "network": {"fabric": "infiniband"}, **({"collectives": collectives} if collectives else {}),
        },
        "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": framework},
        "strategy": {"micro_batch_size": 1, "zero": 3 if framework == "torchtitan" else 1},
    }  # fmt: skip
    return next(file.content for file in export_row(row, framework) if file.path == "launch.sh")


def variables(script: str) -> dict[str, str]:
    settings = read_script(InputFile("launch.sh", script))
    return {each.key: each.value for each in settings if each.key.startswith("$NCCL_")}


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_forced_algorithms_become_variables_with_a_warning(framework: str) -> None:
    """NCCL's syntax: a function, a colon, its algorithms; semicolons between functions (src/graph/tuning.cc, parseList)."""
    script = launch_of(framework, algorithm={"all_reduce": "nvls-tree", "all_gather": "ring"}, protocol="Simple")
    assert variables(script) == {"$NCCL_ALGO": "allgather:ring;allreduce:nvlstree", "$NCCL_PROTO": "Simple"}
    assert "measure a run without them as well" in script.replace("\n# ", " ")


def test_collnet_is_switched_on_where_it_is_forced() -> None:
    found = variables(launch_of(algorithm={"all_reduce": "collnet"}))
    assert found == {"$NCCL_ALGO": "allreduce:collnetdirect,collnetchain", "$NCCL_COLLNET_ENABLE": "1"}


def test_nothing_forced_says_nothing() -> None:
    assert variables(launch_of()) == variables(launch_of(library="nccl")) == {}
    assert launch_of() == launch_of(library="nccl")


@pytest.mark.parametrize(
    ("gpu", "collectives", "field", "instead"),
    [
        ("H100-SXM-80GB", {"library": "gloo"}, "library", "nccl"),
        ("H100-SXM-80GB", {"library": "msccl", "algorithm": {"all_reduce": "torus-2d"}}, "library", "nccl"),
        ("MI300X-192GB", {"algorithm": {"all_reduce": "halving-doubling"}}, "algorithm.all_reduce", "auto"),
    ],
)
def test_what_no_variable_tells_is_refused(gpu: str, collectives: dict[str, Any], field: str, instead: str) -> None:
    with pytest.raises(NotExpressibleError) as caught:
        launch_of(gpu=gpu, **collectives)
    assert caught.value.code == "plan-not-expressible"
    assert caught.value.context["field"] == f"cluster.collectives.{field}"
    assert instead in caught.value.hint
