"""Writes what `benchmarks.trials` runs on two H200 into a folder: python -m benchmarks.trial_rows FOLDER

`rows.jsonl` holds evaluate rows, those first that tell most, and a folder beside it each launch that `meshwright export` writes for one
of them, so that the machine with the GPUs needs no planner. Rows that the planner or an exporter refuses are an error here.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from planner.export.export import export_row
from planner.rows import evaluate_rows

_1B: dict[str, Any] = {
    "name": "llama-1.3b", "num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
    "intermediate_size": 5632, "vocab_size": 32000,
}  # fmt: skip
_3B = {"preset": "llama-3.2-3b", "tie_word_embeddings": False, "name": "llama-3.2-3b, untied"}
_8B = {"preset": "llama-3.1-8b"}
_CLUSTER = {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 2, "intra_node": "nvswitch"}
_NATIVE = {
    "framework": "torchtitan", "precision": "bf16", "cross_entropy": "unfused", "compile": False, "dropout": 0, "param_dtype": "fp32",
    "grad_dtype": "fp32",
}  # fmt: skip
_FSDP = {
    "framework": "fsdp",
    "precision": "bf16",
    "model_impl": "transformers",
    "compile": False,
    "dropout": 0,
    "param_dtype": "fp32",
}
_PLAIN = {**_FSDP, "model_impl": "native"}
_DEEPSPEED = {
    "framework": "deepspeed",
    "precision": "bf16",
    "model_impl": "transformers",
    "attention_kernel": "sdpa",
    "compile": False,
    "dropout": 0,
}

# Name, model, training, target of its export (None: PyTorch's own parallelism), strategy.
ROWS: tuple[tuple[str, dict[str, Any], dict[str, Any], str | None, dict[str, Any]], ...] = (
    ("1b-hf-fsdp-z3", _1B, _FSDP, "transformers", {"dp": 2, "zero": 3, "micro_batch_size": 2}),
    ("1b-pt-z3", _1B, _NATIVE, None, {"dp": 2, "zero": 3, "micro_batch_size": 2}),
    ("1b-hf-ds-z2", _1B, _DEEPSPEED, "transformers", {"dp": 2, "zero": 2, "micro_batch_size": 2}),
    ("1b-pt-pp", _1B, _NATIVE, None, {"pp": 2, "micro_batch_size": 1}),
    ("1b-pt-tp", _1B, _NATIVE, None, {"tp": 2, "sequence_parallel": True, "micro_batch_size": 4}),
    ("8b-pt-z3", _8B, _NATIVE, None, {"dp": 2, "zero": 3, "micro_batch_size": 1}),
    ("1b-acc-fsdp-z2", _1B, _FSDP, "accelerate", {"dp": 2, "zero": 2, "micro_batch_size": 2}),
    ("8b-hf-fsdp-z3-full", _8B, _FSDP, "transformers", {"dp": 2, "zero": 3, "micro_batch_size": 2, "recompute": "full"}),
    ("1b-ds-z3", _1B, _DEEPSPEED, "deepspeed", {"dp": 2, "zero": 3, "micro_batch_size": 2}),
    ("1b-plain-z3", _1B, _PLAIN, "pytorch", {"dp": 2, "zero": 3, "micro_batch_size": 4}),
    ("3b-hf-fsdp-z3", _3B, _FSDP, "transformers", {"dp": 2, "zero": 3, "micro_batch_size": 2}),
    ("1b-pt-ddp", _1B, _NATIVE, None, {"dp": 2, "zero": 0, "micro_batch_size": 2}),
    ("3b-pt-z2-full", _3B, _NATIVE, None, {"dp": 2, "zero": 2, "micro_batch_size": 2, "recompute": "full"}),
    ("1b-hf-ddp", _1B, _FSDP, "transformers", {"dp": 2, "zero": 0, "micro_batch_size": 2}),
    ("8b-hf-ds-z3-full", _8B, _DEEPSPEED, "transformers", {"dp": 2, "zero": 3, "micro_batch_size": 2, "recompute": "full"}),
    ("1b-ds-z1", _1B, _DEEPSPEED, "deepspeed", {"dp": 2, "zero": 1, "micro_batch_size": 2}),
    ("8b-pt-pp-full", _8B, _NATIVE, None, {"pp": 2, "micro_batch_size": 1, "recompute": "full"}),
    ("3b-ds-z3-full", _3B, _DEEPSPEED, "deepspeed", {"dp": 2, "zero": 3, "micro_batch_size": 2, "recompute": "full"}),
    ("1b-pt-cp", _1B, _NATIVE, None, {"cp": 2, "zero": 3, "micro_batch_size": 2}),
)  # fmt: skip
_DEGREES = {"tp": 1, "pp": 1, "dp": 1, "cp": 1, "ep": 1, "vpp": 1, "zero": 0, "recompute": "none"}


def rows() -> list[dict[str, Any]]:
    """The evaluate rows, with `launch` where launch files run them."""
    found = []
    for name, model, training, target, strategy in ROWS:
        batch = 8 if "8b" in name else 16
        row = {
            "id": name, "model": model, "cluster": _CLUSTER,
            "training": {**training, "seq_length": 4096, "global_batch_size": batch, "software_date": "2026-11"},
            "strategy": {**_DEGREES, **strategy},
        }  # fmt: skip
        # Compiling DeepSpeed's own Adam takes longer than a trial; PyTorch's does the same work.
        options = ["--torch-adam"] if training["framework"] == _DEEPSPEED["framework"] else []
        found.append(row | ({"launch": name, "target": target, "options": options} if target else {}))
    return found


def main() -> None:
    """Writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    everything = rows()
    asked = [{name: row[name] for name in ("id", "model", "cluster", "training", "strategy")} for row in everything]
    for row, own, answer in zip(everything, asked, evaluate_rows(asked), strict=True):
        # A plan that does not fit would be measured for nothing.
        assert answer["verdict"] == "fits", (row["id"], answer)
        for file in export_row(own, row["target"]) if "target" in row else ():
            path = folder / row["launch"] / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.content)
    lines = [json.dumps({name: value for name, value in row.items() if name != "target"}) for row in everything]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
