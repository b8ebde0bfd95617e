"""Every limit of a request from both sides: the last value that is read, and the first that is refused at its own place."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cost_models.errors import InvalidInputError, MeshwrightError
from planner.request.checked_request import check_request

REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 8},
    "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
}
GPU = {
    "name": "toy", "memory_gib": 80, "peak_tflops": {"bf16": 100}, "memory_bandwidth_gb_per_s": 1000, "nvlink_gb_per_s": 100,
}  # fmt: skip
NODE = {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8}


def refused(pointer: str, value: Any) -> list[str]:
    """Places of the problems of a request with this value there."""
    request: Any = copy.deepcopy(REQUEST)
    *path, name = pointer.split("/")[1:]
    if pointer.startswith("/cluster/gpu/"):
        request["cluster"]["gpu"] = dict(GPU)
    inside = request
    for part in path:
        inside = inside.setdefault(part, {})
    inside[name] = value
    try:
        check_request(request)
    except InvalidInputError as error:
        return [problem.pointer for problem in error.problems]
    except MeshwrightError as error:
        return [error.code]
    return []


@pytest.mark.parametrize(
    ("pointer", "last", "first"),
    [
        ("/top_k", 1, 0),
        ("/top_k", 1000, 1001),
        ("/time_limit_s", 86_400.0, 86_400.5),
        ("/wait_s", 0.0, -0.5),
        ("/wait_s", 60.0, 60.5),
        ("/seed", 0, -1),
        ("/seed", 2**31 - 1, 2**31),
        ("/constraints/memory_headroom_fraction", 0.0, -0.1),
        ("/constraints/memory_headroom_fraction", 0.999, 1.0),
        ("/constraints/num_nodes/min", 2, 3),
        ("/constraints/fixed/tp", 1, 0),
        ("/constraints/fixed/tp", 10_000_000, 10_000_001),
        ("/constraints/fixed/zero", 3, 4),
        ("/constraints/allowed/micro_batch_size", list(range(1, 1001)), list(range(1, 1002))),
        ("/constraints/allowed/micro_batch_size", [1], []),
        ("/cluster/num_nodes", 2**18 // 8, 2**18 // 8 + 1),
        ("/cluster/gpus_per_node", 1024, 1025),
        ("/cluster/nics_per_node", 1024, 1025),
        ("/cluster/nic_gbit_per_s", 1e6, 1.5e6),
        ("/cluster/host_memory_gib", 1e9, 1.5e9),
        ("/cluster/host_link_gb_per_s", 1e9, 1.5e9),
        ("/cluster/price_per_gpu_hour", 0.0, -0.5),
        ("/cluster/price_per_gpu_hour", 1e6, 1.5e6),
        ("/cluster/gpu/memory_gib", 1e6, 1.5e6),
        ("/cluster/gpu/memory_bandwidth_gb_per_s", 1e9, 1.5e9),
        ("/cluster/gpu/nvlink_gb_per_s", 0.0, -0.5),
        ("/cluster/gpu/nvlink_gb_per_s", 1e9, 1.5e9),
        ("/cluster/gpu/num_sms", 100_000, 100_001),
        ("/cluster/gpu/power_limit_w", 1e6, 1.5e6),
        ("/cluster/host_adam_gb_per_s", 1e9, 1.5e9),
        ("/cluster/network/oversubscription", 1.0, 0.9),
        ("/cluster/network/oversubscription", 1000.0, 1000.5),
        ("/cluster/network/latency_us", 0.0, -0.5),
        ("/cluster/network/latency_us", 1e6, 1.5e6),
        ("/cluster/intra_node", {"bandwidth_gb_per_s": 1e9}, {"bandwidth_gb_per_s": 1.5e9}),
        ("/constraints/fixed/offload/optimizer_fraction", 0.0, -0.1),
        ("/constraints/fixed/offload/optimizer_fraction", 1.0, 1.1),
        ("/targets/min_tokens_per_s", 1e-6, 0.9e-6),
        ("/targets/min_tokens_per_s", 1e15, 1.1e15),
        ("/training/dropout", 0.0, -0.1),
        ("/training/software_date", "2026-12", "2026-13"),
        ("/model/name", "n" * 300, "n" * 301),
        ("/model/num_layers", 10_000, 10_001),
    ],
)
def test_a_limit_is_the_last_value_that_is_read(pointer: str, last: Any, first: Any) -> None:
    assert refused(pointer, last) == []
    inside = "/bandwidth_gb_per_s" if pointer == "/cluster/intra_node" else ""
    assert refused(pointer, first) == [pointer + inside]


def test_a_cluster_has_at_most_six_pools() -> None:
    pools = [{"name": f"pool-{number}", **NODE} for number in range(7)]
    network = {"fabric": "infiniband"}

    def places(count: int) -> list[str]:
        request = REQUEST | {"cluster": {"pools": pools[:count], "network": network}}
        try:
            check_request(request)
        except InvalidInputError as error:
            return [problem.pointer for problem in error.problems]
        return []

    assert places(6) == []
    assert places(7) == ["/cluster/pools"]


def test_a_config_lists_as_many_layers_as_a_model_may_have() -> None:
    """10,000 of them; the kinds of more are not even read."""
    layers = {"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128,
              "intermediate_size": 3072, "vocab_size": 1000, "num_hidden_layers": 10_000}  # fmt: skip
    assert refused("/model", {"hf_config": {**layers, "layer_types": ["full_attention"] * 10_000}}) == []
    more = {**layers, "layer_types": ["full_attention"] * 10_001}
    assert "/model/hf_config/layer_types" in refused("/model", {"hf_config": more})
