"""Measured rows of the runs with other optimizers, hybrids, towers and documents: python -m scripts.wider_runs_as_rows

Reads the records of data/measured_h200/wider_runs_*.json, which `benchmarks.wider_runs_on_gpu` wrote, and writes
data/measured_h200/wider_rows.jsonl: one row for each run that ended.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from benchmarks.record import ROOT

SOURCE = ROOT / "data" / "measured_h200"
TARGET = SOURCE / "wider_rows.jsonl"
_NAME = "own_wider_h200"
_OPTIMIZERS = {
    "adamw": "adam", "muon": "muon", "muon-packed": "muon", "adam-8bit-bitsandbytes": "adam-8bit", "adam-8bit-torchao": "adam-8bit",
    "adam-4bit-torchao": "adam-4bit", "adafactor": "adafactor", "lion": "lion", "sgd-momentum": "sgd-momentum",
}  # fmt: skip
_FORMS: Mapping[str, Mapping[str, str]] = {
    "bf16": {"param_dtype": "bf16", "main_param_dtype": "none", "grad_dtype": "bf16", "optimizer_state_dtype": "bf16"},
    "autocast": {"param_dtype": "fp32", "grad_dtype": "fp32"},
    "fsdp2": {"param_dtype": "fp32", "grad_dtype": "fp32"},
}
_SAID = {
    "bf16": "everything in bf16 on one GPU",
    "autocast": "fp32 parameters under torch.autocast on one GPU",
    "fsdp2": "plain FSDP2 (fully_shard per layer and root), fp32 parameters, bf16 compute, fp32 reduction",
}

_MEASURED = (
    "step time = median of the steps after the warm-up; forward with backward, and clip with update, in steps after them that wait "
    "between the two; peaks over the measured steps, worst rank"
)
_PACKED = "no framework's own Muon: benchmarks/wider_runs/optimizers.py sends each matrix to one rank and back"


def main() -> None:
    """Writes the file and says how many rows it holds."""
    rows = []
    for path in sorted(SOURCE.glob("wider_runs_*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        rows += [_row(run, found, path.name) for run in found["runs"] if run["status"] == "ok"]
    TARGET.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}  {len(rows)} rows")


def _row(run: Mapping[str, Any], record: Mapping[str, Any], file: str) -> dict[str, Any]:
    case, result, world = run["case"], run["result"], run["world"]
    what = {
        "model": {"hf_config": result["hf_config"]},
        "cluster": {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": world, "intra_node": "nvswitch"},
        "training": _training(case, result["hf_config"], world),
        "strategy": {
            "tp": 1, "pp": 1, "dp": world, "cp": 1, "ep": 1, "zero": 3 if case["form"] == "fsdp2" else 0,
            "micro_batch_size": case["batch"], "recompute": "full" if case["recompute"] else "none",
        },
    }  # fmt: skip
    ranks = result["ranks"]
    digest = hashlib.sha256(json.dumps([case["name"], what], sort_keys=True).encode()).hexdigest()[:10]
    versions = ", ".join(f"{name} {release}" for name, release in sorted(result["packages"].items()))
    machine = record["machine"]
    return {
        "id": f"{_NAME}-{digest}",
        "source": _NAME,
        "group": None,
        **what,
        "measured": {
            "step_time_s": result["step_time_s"],
            "step_time_range_s": [min(result["step_s"]), max(result["step_s"])],
            "forward_backward_s": ranks[0]["forward_backward_s"],
            "update_s": ranks[0]["update_s"],
            "verdict": "fits",
            "peak_memory_gib": max(each["peak_allocated_bytes"] for each in ranks) / 2**30,
            "memory_kind": "allocated",
            "reserved_gib": max(each["peak_reserved_bytes"] for each in ranks) / 2**30,
            "device_gib": max(each["device_bytes"] for each in ranks) / 2**30,
            "state_gib": max(each["state_bytes"] for each in ranks) / 2**30,
            "parameters": result["parameters"]["all"],
            "trained_parameters": result["parameters"]["trained"],
        },
        "complete": case["optimizer"] != "muon-packed",
        "unknown": [_PACKED] if case["optimizer"] == "muon-packed" else [],
        "notes": _notes(case, file),
        "citation": (
            f"own measurement, {versions}, CUDA {result['cuda']}, driver {machine['driver']}, {world} of {machine['gpus']} H200-SXM-141GB, "
            f"{record['date']}"
        ),
    }  # fmt: skip


def _notes(case: Mapping[str, Any], file: str) -> str:
    said = [
        f"{case['name']}: {case['model']}", f"transformers model, {_SAID[case['form']]}, clipping 1.0, no accumulation", file, _MEASURED
    ]  # fmt: skip
    if case["optimizer"] not in _OPTIMIZERS.values():
        said.append(f"optimizer {case['optimizer']}")
    if "documents" in case:
        said.append(f"documents of {case['documents']} tokens, torch.nn.attention.varlen")
    return "; ".join(said)


def _training(case: Mapping[str, Any], config: Mapping[str, Any], world: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seq_length": case["seq_length"], "global_batch_size": case["batch"] * world, "precision": "bf16", "framework": "fsdp",
        "attention": "flash", "attention_kernel": "fa2" if case["attention"] == "varlen" else "sdpa", "cross_entropy": "unfused",
        "compile": False, "dropout": 0, "software_date": "2026-11", "model_impl": "transformers", **_FORMS[case["form"]],
    }  # fmt: skip
    if case["optimizer"] != "adamw":
        found["optimizer"] = _OPTIMIZERS[case["optimizer"]]
    if case["optimizer"] == "lion":
        # bitsandbytes' 32-bit optimizers hold their state in fp32, whatever the parameter's type (optim/optimizer.py, get_state_buffer).
        found["optimizer_state_dtype"] = "fp32"
    if len(case.get("documents", ())) > 1:
        counts = Counter(case["documents"])
        total = sum(counts.values())
        found["document_lengths"] = [[length, count / total] for length, count in sorted(counts.items())]
    if "towers" in case:
        high, wide = case["image_patches"]
        merged = config["vision_config"]["spatial_merge_size"] ** 2
        found["towers"] = {
            "vision": case["towers"], "images_per_sequence": case["images_per_sequence"], "tokens_per_image": high * wide // merged,
        }  # fmt: skip
    return found


if __name__ == "__main__":
    main()
