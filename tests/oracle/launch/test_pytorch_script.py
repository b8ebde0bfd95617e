"""The generated PyTorch script runs as written: two processes on a CPU, random tokens, one line of JSON for each step."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch_rows import exported, row_of
from planner.export.targets.pytorch import TARGET

pytest.importorskip("torch")
pytest.importorskip("transformers")

TINY = {
    "name": "llama", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 64,
}  # fmt: skip

MIXTURE = {
    **{name: value for name, value in TINY.items() if name != "intermediate_size"},
    "moe": {"num_experts": 4, "top_k": 2, "expert_intermediate_size": 96},
}


@pytest.mark.parametrize(
    ("impl", "strategy"),
    [
        # With the proofs, since the mixture below is sharded and recomputed by the same lines.
        pytest.param(
            "transformers",
            {"dp": 2, "zero": 3, "recompute": "full"},
            id="sharded-modules-of-transformers",
            marks=pytest.mark.proof,
        ),
        pytest.param("transformers", {"dp": 1, "tp": 2, "sequence_parallel": True}, id="split-modules-of-transformers"),
        pytest.param("native", {"dp": 2, "zero": 0}, id="replicas-of-the-own-decoder"),
        pytest.param(
            "experts",
            {"dp": 2, "zero": 3, "recompute": "full", "grad_sync": "each"},
            id="sharded-experts-of-transformers",
        ),
    ],
)
def test_two_processes_train_two_steps(impl: str, strategy: dict[str, Any], tmp_path: Path):
    model, impl = (MIXTURE, "transformers") if impl == "experts" else (TINY, impl)
    optimizer = "muon" if impl == "native" else "adam"
    training = {"seq_length": 32, "model_impl": impl, "grad_reduce_dtype": "fp32", "optimizer": optimizer}
    row = row_of("fsdp", model=model, nodes=1, batch=4, training=training, **strategy)
    quantities, launch = exported(TARGET, row)
    for file in launch.files:
        path = tmp_path / file.path
        path.parent.mkdir(exist_ok=True)
        path.write_text(file.content)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *launch.mock_command,
    ]
    command[-1] = "2"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["seconds"] > 0 and 4 < line["loss"] < 6 for line in lines)  # log 128 is 4.85
    assert quantities.plan.world_size == 2


def test_the_own_decoders_rotary_embedding_depends_on_distances_alone(tmp_path: Path):
    """The angle of a pair turns by theta ** (-2 pair / head_dim) a position, so scores of queries and keys know how far apart they are."""
    torch = pytest.importorskip("torch")
    row = row_of("fsdp", model=TINY, nodes=1, batch=4, training={"seq_length": 32, "model_impl": "native"}, dp=2)
    _, launch = exported(TARGET, row)
    path = tmp_path / "train.py"
    path.write_text(next(file.content for file in launch.files if file.path == "train.py"))
    script = runpy.run_path(str(path))

    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 16, generator=generator)

    def score(position: int) -> float:
        turn_query, turn_key = (
            script["rotations"](torch.tensor([[at]]), 16, 500000.0) for at in (position + 5, position)
        )
        return float((script["rotated"](query, turn_query) * script["rotated"](key, turn_key)).sum())

    assert score(2) == pytest.approx(score(31), abs=1e-4)
    turned = script["rotated"](
        torch.tensor([1.0, 0.0, 1.0, 0.0]).view(1, 1, 1, 4), script["rotations"](torch.tensor([[3]]), 4, 100.0)
    )
    # Two pairs: 3 radians, and 3 * 100 ** (-2 / 4) = 0.3.
    assert turned.flatten().tolist() == pytest.approx([-0.98999, 0.14112, 0.95534, 0.29552], abs=1e-4)


@pytest.mark.parametrize("config", [
    {"model_type": "gpt2", "n_layer": 1, "n_embd": 64, "n_head": 4, "vocab_size": 80},
    {"model_type": "gpt_neox", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 80},
    {"model_type": "nemotron_h", "hidden_size": 64, "hybrid_override_pattern": "M*", "mamba_num_heads": 8, "n_groups": 2, "vocab_size": 80},
], ids=lambda config: config["model_type"])  # fmt: skip
def test_muon_leaves_embedding_and_head_to_adam_whatever_they_are_called(config: dict[str, Any], tmp_path: Path):
    """GPT-2 calls its embedding wte, GPT-NeoX its two ends embed_in and embed_out, Nemotron-H embeddings."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    training = {"seq_length": 32, "model_impl": "native", "optimizer": "muon"}
    _, launch = exported(TARGET, row_of("fsdp", model=TINY, nodes=1, batch=4, training=training, dp=2))
    path = tmp_path / "train.py"
    path.write_text(next(file.content for file in launch.files if file.path == "train.py"))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    found = runpy.run_path(str(path))["matrices_of"](model)
    assert found
    assert not [each.shape for each in found if each.ndim != 2 or 80 in each.shape]
