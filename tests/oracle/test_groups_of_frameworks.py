"""Groups of ranks before those who form them: Megatron Core's RankGenerator and PyTorch's DeviceMesh.

`python -m scripts.megatron_wheels` fetches Megatron Core; of its module only the generator is run, which needs no torch.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from typing import Any

import pytest

from planner.mesh.rank_groups import device_mesh, rank_groups
from scripts.megatron_wheels import FOLDER, RELEASES

MEGATRON_ORDER = "tp-cp-ep-dp-pp"
SPLITS = (
    {"tp": 2, "cp": 2, "dp": 4, "pp": 2, "etp": 1, "ep": 4},
    {"tp": 4, "cp": 1, "dp": 6, "pp": 3, "etp": 4, "ep": 2},
    {"tp": 1, "cp": 4, "dp": 2, "pp": 1, "etp": 1, "ep": 8},
    {"tp": 8, "cp": 1, "dp": 3, "pp": 5, "etp": 2, "ep": 6},
)


def generator(release: str) -> Any:
    """The class `RankGenerator` of a release, cut out of its module."""
    path = FOLDER / release / "megatron" / "core" / "parallel_state.py"
    if not path.exists():
        pytest.skip(f"{path} is not there: run python -m scripts.megatron_wheels")
    wanted = ("generate_masked_orthogonal_rank_groups", "RankGenerator")
    parts = [node for node in ast.parse(path.read_text("utf-8")).body if getattr(node, "name", "") in wanted]
    assert len(parts) == len(wanted)
    names: dict[str, Any] = {"List": list}
    exec(compile(ast.Module(parts, []), str(path), "exec"), names)
    return names["RankGenerator"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_megatron_forms_the_same_groups(release: str, split: dict[str, int]) -> None:
    generate = generator(release)
    found = rank_groups({**split, "zero": 0}, has_experts=True)
    edp = split["tp"] * split["cp"] * split["dp"] // (split["etp"] * split["ep"])
    dense = generate(tp=split["tp"], ep=1, dp=split["dp"], pp=split["pp"], cp=split["cp"], order=MEGATRON_ORDER)
    experts = generate(tp=split["etp"], ep=split["ep"], dp=edp, pp=split["pp"], cp=1, order=MEGATRON_ORDER)
    named = {
        "tp": (dense, "tp"), "cp": (dense, "cp"), "dp": (dense, "dp"), "pp": (dense, "pp"), "etp": (experts, "tp"),
        "ep": (experts, "ep"), "edp": (experts, "dp"), **({"dp_cp": (dense, "dp-cp")} if split["cp"] > 1 else {}),
    }  # fmt: skip
    assert set(found) == set(named)
    for name, (its, token) in named.items():
        assert sorted(found[name].members().tolist()) == sorted(its.get_ranks(token)), name


SHARDED = (
    {"tp": 2, "cp": 2, "dp": 4, "pp": 2, "zero": 3, "zero_shard_size": 4},
    {"tp": 2, "cp": 1, "dp": 8, "pp": 1, "zero": 2, "zero_shard_size": 8},
    {"tp": 1, "cp": 2, "dp": 4, "pp": 3, "zero": 1, "zero_shard_size": 2},
)
PROGRAM = """
import json, math, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
for axes, rank in json.loads(sys.argv[1]):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=math.prod(axes.values()))
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    told = {name: mesh[name].mesh.flatten().tolist() for name in axes}
    told["shard"] = mesh["dp_shard", "cp"].mesh.flatten().tolist()
    print(json.dumps(told))
    dist.destroy_process_group()
"""
"""The members of one rank's group along each axis, over a process group that talks to nobody."""


def test_a_device_mesh_forms_the_same_groups() -> None:
    pytest.importorskip("torch")
    cases = [
        (split, rank)
        for split in SHARDED
        for world in [split["tp"] * split["cp"] * split["dp"] * split["pp"]]
        for rank in (0, world // 2 + 1, world - 1)
    ]
    asked = json.dumps([(device_mesh(split), rank) for split, rank in cases])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, asked], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases)
    for (split, rank), told in zip(cases, answers, strict=True):
        found = rank_groups(split, has_experts=False)
        for axis, name in (("tp", "tp"), ("cp", "cp"), ("pp", "pp"), ("shard", "zero_shard")):
            assert told[axis] == found[name].group_of(rank), (axis, split, rank)
        if "zero_replica" in found:
            assert told["dp_replicate"] == found["zero_replica"].group_of(rank)
