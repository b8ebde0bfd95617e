"""The model that the scripts around Hugging Face's modules make: filled at once, or left unwritten until its shards are drawn."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from launch_rows import exported, row_of
from planner.export.targets.accelerate import TARGET

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TINY = {
    "name": "llama", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip


def script_of(folder: Path, **training: Any) -> dict[str, Any]:
    """The names that hf_model.py defines beside the files of a launch of Accelerate."""
    training = {"seq_length": 32, "model_impl": "transformers", "attention_kernel": "cudnn", **training}
    _, launch = exported(TARGET, row_of("fsdp", model=TINY, nodes=1, batch=4, training=training, dp=2, zero=3))
    for file in launch.files:
        (folder / file.path).write_text(file.content)
    return runpy.run_path(str(folder / "hf_model.py"))


def test_shards_that_are_drawn_later_make_the_same_model(tmp_path: Path) -> None:
    script = script_of(tmp_path)
    build, train = script["build_model"], script["read"]("train.json")
    torch.manual_seed(0)
    at_once, later = (build(train, torch.float32, torch.device("cpu"), filled=filled) for filled in (True, False))
    for parameter in later.parameters():
        parameter.data.fill_(7.0)  # memory that nobody wrote may hold anything
    script["fill"](later)

    assert later.lm_head.weight is later.model.embed_tokens.weight
    for (name, expected), (found_name, found) in zip(at_once.named_parameters(), later.named_parameters(), strict=True):
        assert name == found_name
        if expected.ndim == 1:
            assert torch.equal(found, expected)
        else:
            # transformers draws with a deviation of 0.02 too (LlamaConfig.initializer_range).
            assert found.std().item() == pytest.approx(expected.std().item(), rel=0.1)
    for (_, expected), (_, found) in zip(at_once.named_buffers(), later.named_buffers(), strict=True):
        assert torch.equal(found, expected)


def test_only_shards_without_adapters_are_drawn_later(tmp_path: Path) -> None:
    assert script_of(tmp_path)["is_filled"](sharded=False)
    assert not script_of(tmp_path)["is_filled"](sharded=True)
    assert script_of(tmp_path, adapter={"rank": 4})["is_filled"](sharded=True)
