"""Writes what `benchmarks.trials` runs on two H200 into a folder: python -m benchmarks.trial_rows FOLDER [--again]

`rows.jsonl` holds evaluate rows, those first that tell most, and a folder beside it each launch that `meshwright export` writes for one
of them, so that the machine with the GPUs needs no planner. Rows that the planner or an exporter refuses are an error here. Those that
data/measured_h200 holds measured records of are left out, unless asked for again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT
from planner.export.export import export_row
from planner.rows import evaluate_rows

MEASURED = ROOT / "data" / "measured_h200"
ASKED = ("id", "model", "cluster", "training", "strategy")
"""Fields of an evaluate row."""
_1B: dict[str, Any] = {
    "name": "llama-1.3b", "num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
    "intermediate_size": 5632, "vocab_size": 32000,
}  # fmt: skip
_3B = {"preset": "llama-3.2-3b", "tie_word_embeddings": False, "name": "llama-3.2-3b, untied"}
_8B = {"preset": "llama-3.1-8b"}
_QWEN = {
    "preset": "qwen3-8b", "name": "qwen3-1.7b", "num_layers": 28, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "intermediate_size": 6144, "tie_word_embeddings": True,
}  # fmt: skip
_CLUSTER = {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 2, "intra_node": "nvswitch"}
_NATIVE = {
    "framework": "torchtitan", "framework_version": "0.2", "precision": "bf16", "cross_entropy": "unfused", "compile": False, "dropout": 0, "param_dtype": "fp32",
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

_COMPILED = {**_NATIVE, "compile": True}
_FULL = {"recompute": "full"}

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
    # The second round: what the first one left open, each with its terms.
    ("8b-ds-z2-full", _8B, _DEEPSPEED, "deepspeed", {"dp": 2, "zero": 2, "micro_batch_size": 2, **_FULL}),
    ("1b-pt-z2", _1B, _NATIVE, None, {"dp": 2, "zero": 2, "micro_batch_size": 4}),
    ("8b-plain-z3-full", _8B, _PLAIN, "pytorch", {"dp": 2, "zero": 3, "micro_batch_size": 2, **_FULL}),
    ("8b-pt-tp", _8B, _NATIVE, None, {"tp": 2, "sequence_parallel": True, "micro_batch_size": 1}),
    ("1b-pt-z3-compiled", _1B, _COMPILED, None, {"dp": 2, "zero": 3, "micro_batch_size": 2}),
    ("8b-acc-fsdp-z3-full", _8B, _FSDP, "accelerate", {"dp": 2, "zero": 3, "micro_batch_size": 1, **_FULL}),
    ("3b-pt-z3", _3B, _NATIVE, None, {"dp": 2, "zero": 3, "micro_batch_size": 2}),
    ("8b-pt-z2", _8B, _NATIVE, None, {"dp": 2, "zero": 2, "micro_batch_size": 1}),
    ("3b-acc-fsdp-z3-full", _3B, _FSDP, "accelerate", {"dp": 2, "zero": 3, "micro_batch_size": 4, **_FULL}),
    ("3b-pt-pp", _3B, _NATIVE, None, {"pp": 2, "micro_batch_size": 1}),
    ("8b-pt-z3-compiled", _8B, _COMPILED, None, {"dp": 2, "zero": 3, "micro_batch_size": 1}),
    ("8b-hf-fsdp-z2", _8B, _FSDP, "transformers", {"dp": 2, "zero": 2, "micro_batch_size": 1}),
    ("3b-pt-tp", _3B, _NATIVE, None, {"tp": 2, "sequence_parallel": True, "micro_batch_size": 2}),
    ("2b-pt-z3", _QWEN, _NATIVE, None, {"dp": 2, "zero": 3, "micro_batch_size": 4}),
    ("1b-pt-z3-full", _1B, _NATIVE, None, {"dp": 2, "zero": 3, "micro_batch_size": 4, **_FULL}),
    ("8b-pt-z3-full", _8B, _NATIVE, None, {"dp": 2, "zero": 3, "micro_batch_size": 2, **_FULL}),
    ("8b-pt-pp", _8B, _NATIVE, None, {"pp": 2, "micro_batch_size": 1}),
    ("1b-hf-fsdp-z2", _1B, _FSDP, "transformers", {"dp": 2, "zero": 2, "micro_batch_size": 4}),
    ("3b-hf-ds-z2", _3B, _DEEPSPEED, "transformers", {"dp": 2, "zero": 2, "micro_batch_size": 1}),
    ("2b-hf-fsdp-z3", _QWEN, _FSDP, "transformers", {"dp": 2, "zero": 3, "micro_batch_size": 2}),
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
        found.append(row | ({"launch": name, "target": target} if target else {}))
    return found


def measured_ids() -> set[str]:
    """Names of the rows of which a record is kept that ended well."""
    lines = [line for file in MEASURED.glob("trials_*.jsonl") for line in file.read_text().splitlines() if line.strip()]
    return {found["row"]["id"] for found in map(json.loads, lines) if "row" in found and found["status"] == "ok"}


def write(everything: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Writes `rows.jsonl`, and beside it the launch of each row with a `target`."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = [{name: row[name] for name in ASKED} for row in everything]
    for row, own, answer in zip(everything, asked, evaluate_rows(asked), strict=True):
        # A plan that does not fit would be measured for nothing; one at risk tells most about memory.
        assert answer["verdict"] in ("fits", "at-risk"), (row["id"], answer)
        for file in export_row(own, row["target"]) if "target" in row else ():
            path = folder / row["launch"] / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.content)
    lines = [json.dumps({name: value for name, value in row.items() if name != "target"}) for row in everything]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--again", action="store_true", help="also the rows that have been measured")
    arguments = parser.parse_args()
    known = set() if arguments.again else measured_ids()
    write([row for row in rows() if row["id"] not in known], arguments.folder)


if __name__ == "__main__":
    main()
