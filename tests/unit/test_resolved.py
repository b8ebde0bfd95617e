"""A resolved job written back means the same job, also where a user's own GPU bears a preset's name."""

from __future__ import annotations

import pytest

from cost_models import presets
from cost_models.specs.cluster_input import resolve_cluster
from cost_models.specs.model_input import resolve_model
from planner.resolved import cluster_document, model_document

OWN_H100 = {
    "name": "H100-SXM-80GB", "memory_gib": 79.1, "peak_tflops": {"bf16": 800.0},
    "memory_bandwidth_gb_per_s": 3352, "nvlink_gb_per_s": 450,
}  # fmt: skip


def test_a_gpu_of_ones_own_under_a_preset_name_keeps_its_figures():
    cluster = resolve_cluster({"gpu": OWN_H100, "num_nodes": 2, "gpus_per_node": 8})
    document = cluster_document(cluster)
    assert document["gpu"]["peak_tflops"]["bf16"] == 800.0
    assert resolve_cluster(document).gpu == cluster.gpu


def test_a_preset_gpu_is_written_by_its_name():
    cluster = resolve_cluster({"gpu": "H100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 8})
    assert cluster_document(cluster)["gpu"] == "H100-SXM-80GB"


@pytest.mark.parametrize("name", presets.names("clusters"))
def test_a_cluster_preset_comes_back_the_same(name):
    cluster = resolve_cluster({"preset": name, "num_nodes": 4})
    again = resolve_cluster(cluster_document(cluster))
    for field in cluster.__slots__:
        if field not in ("assumed", "warnings"):
            assert getattr(again, field) == getattr(cluster, field), field


@pytest.mark.parametrize("document", [
    *({"preset": name} for name in presets.names("models")), {"hf_config": {"model_type": "olmo"}},
    {"hf_config": {"model_type": "llama4_text"}}, {"hf_config": {"model_type": "dbrx"}},
])  # fmt: skip
def test_a_model_comes_back_the_same(document):
    model = resolve_model(document)
    again = resolve_model(model_document(model))
    for field in model.__slots__:
        if field not in ("assumed", "warnings"):
            assert getattr(again, field) == getattr(model, field), field
