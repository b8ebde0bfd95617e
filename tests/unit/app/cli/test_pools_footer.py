"""Pools on the command line: the title names the pools, the footer says where the stages of the best plan lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import run

REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {
        "pools": [
            {"name": "old", "preset": "dgx-a100-80gb", "num_nodes": 2},
            {"name": "new", "preset": "dgx-h100", "num_nodes": 1},
        ]
    },
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
    "constraints": {"allowed": {"tp": [2, 4], "vpp": [1], "cp": [1]}},
    "top_k": 2,
}


@pytest.fixture
def request_file(tmp_path: Path) -> str:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(REQUEST))
    return str(path)


def test_the_table_says_where_the_stages_lie(request_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", request_file]) == 0
    out, err = capsys.readouterr()
    assert "2 x 8 A100-SXM-80GB + 1 x 8 H100-SXM-80GB" in out
    assert "Plan 1 puts" in out
    assert "on old (" in out
    assert "start the nodes of the pools in the order of" in " ".join(err.split())


def test_one_kind_of_node_beside_pools_is_bad_input(request_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", request_file, "--num-nodes", "4"]) == 2
    assert "num_nodes is given beside pools" in capsys.readouterr().err


def test_the_pool_of_every_stage_can_be_fixed(request_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", request_file, "--fixed", 'pool_per_stage=["new", "old", "old"]', "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert [each["strategy"]["pool_per_stage"] for each in plans] == [["new", "old", "old"]] * 2
