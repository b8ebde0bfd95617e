"""`ds_config.json` of plans before DeepSpeed's own class: its values are the plan's, and a typo in each part is refused."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.export.launch_plan import launch_plan
from planner.export.quantities import Quantities
from planner.export.targets import TARGETS
from scripts.framework_judges import ranks

PACKAGES = Path(os.environ.get("MESHWRIGHT_LAUNCH_PACKAGES", ".oracles/launch")).resolve()
pytestmark = [pytest.mark.launch, pytest.mark.filterwarnings("ignore")]
PLANS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"zero": 0}, {"precision": "fp32"}),
    ({"zero": 2, "offload": {"optimizer_fraction": 1.0}, "micro_batch_size": 2}, {"grad_dtype": "fp32"}),
    ({"recompute": "full", "offload": {"optimizer_fraction": 0.5, "parameters": True}}, {"optimizer": "sgd"}),
    ({"zero_param_shard_size": 4}, {"precision": "fp16"}),
    ({"zero_quantized_weights": True, "zero_quantized_gradients": True}, {}),
    (
        {
            "offload": {
                "optimizer_fraction": 1.0,
                "optimizer_device": "nvme",
                "optimizer_overlap": "pipelined",
                "parameters": True,
                "parameter_device": "nvme",
            }
        },
        {},
    ),
    ({"zero": 2, "micro_batch_size": 8, "offload": {"optimizer_fraction": 1.0, "optimizer_overlap": "zenflow"}}, {}),
    ({"overlap": {"grad_reduce": False, "param_gather": False}}, {}),
    ({"zero": 1, "pp": 4}, {}),
    ({"zero": 2, "tp": 2}, {}),
    ({"zero": 2}, {"optimizer": "muon"}),
]


def built(config: dict[str, Any], *, world: int, replicas: int) -> Any:
    """The framework's object, as an engine of these ranks would make it."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    for folder in (PACKAGES, PACKAGES / "deepspeed-0.19.8"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    # A kernel for shared memory that it would compile on a CPU, and that no configuration needs.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    with ranks(world):
        comm.init_distributed(dist_backend="gloo", verbose=False, auto_mpi_discovery=False)
        mpu = SimpleNamespace(get_data_parallel_world_size=lambda: replicas)
        return DeepSpeedConfig(json.loads(json.dumps(config)), mpu=mpu)


@pytest.mark.parametrize(("strategy", "training"), PLANS)
def test_deepspeed_reads_the_plan(strategy: dict[str, Any], training: dict[str, Any]):
    plan = launch_plan({
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8,
                    "nvme": {"read_gb_per_s": 25, "write_gb_per_s": 12}},
        "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "deepspeed", **training},
        "strategy": {"micro_batch_size": 1, **strategy},
    })  # fmt: skip
    launch = TARGETS["deepspeed"].write(Quantities(plan, target="deepspeed", version="0.19"))
    config = json.loads(next(file.content for file in launch.files if file.path == "ds_config.json"))
    named, world = plan.strategy, plan.world_size
    found = built(config, world=world, replicas=named["dp"])
    micro = named["micro_batch_size"]
    batch = (found.train_batch_size, found.train_micro_batch_size_per_gpu, found.gradient_accumulation_steps)
    assert batch == (64, micro, 64 // (micro * named["dp"]))
    zero = found.zero_config
    assert int(zero.stage) == named["zero"]
    if named["zero"]:
        assert zero.overlap_comm == named["overlap"]["grad_reduce"]
    optimizer, parameters = zero.offload_optimizer, zero.offload_param
    assert (optimizer.ratio if optimizer else 0.0) == named["offload"]["optimizer_fraction"]
    assert (parameters is not None) == named["offload"]["parameters"]
    offload = named["offload"]
    assert (optimizer is not None and optimizer.device == "nvme") == (offload.get("optimizer_device") == "nvme")
    assert (optimizer is not None and optimizer.pipeline) == (offload.get("optimizer_overlap") == "pipelined")
    assert (parameters is not None and parameters.device == "nvme") == (offload.get("parameter_device") == "nvme")
    assert (zero.zenflow is not None) == (offload.get("optimizer_overlap") == "zenflow")
    assert zero.zero_quantized_weights == named.get("zero_quantized_weights", False)
    assert zero.zero_quantized_gradients == named.get("zero_quantized_gradients", False)
    assert zero.zero_hpz_partition_size == strategy.get("zero_param_shard_size", 1)
    enabled = (found.bfloat16_config.enabled, found.float16_config.enabled)
    assert enabled == (plan.training["precision"] == "bf16", plan.training["precision"] == "fp16")
    assert found.grad_accum_dtype == plan.training["grad_dtype"]
    assert (found.tensor_parallel_config.autotp_size or 1) == named["tp"]
    assert named["pp"] == (found.pipeline["stages"] if "pipeline" in config else 1)
    for part in {"zero_optimization", "bf16", "fp16", "tensor_parallel"} & config.keys():
        with pytest.raises(ValueError, match="stagee"):
            built({**config, part: {**config[part], "stagee": 1}}, world=world, replicas=named["dp"])
    with pytest.raises(AssertionError, match="batch"):
        built({**config, "gradient_accumulation_steps": 7}, world=world, replicas=named["dp"])
