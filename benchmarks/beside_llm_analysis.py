"""The same job in llm-analysis and here: strategies covered, CPU seconds, the best plan of each, and each priced by the other.

llm-analysis (github.com/cli99/llm-analysis) prices one layout a call and searches nothing, so every layout that it can express is
asked. It lives in an environment of its own:
    python -m venv FOLDER && FOLDER/bin/pip install --no-deps llm-analysis==0.2.2 && FOLDER/bin/pip install "fire<0.6"
Run: python -m benchmarks.beside_llm_analysis FOLDER/bin/python.
"""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GPUS, SEQ_LENGTH, BATCH = 128, 8192, 512
MODEL = {
    "num_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28_672,
    "vocab_size": 128_256, "tie_word_embeddings": True,
}  # fmt: skip
"""Llama 3.1 70B, whose embedding and head are one matrix, since llm-analysis counts one."""
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "cluster": {"preset": "dgx-h100", "num_nodes": GPUS // 8},
    "training": {"seq_length": SEQ_LENGTH, "global_batch_size": BATCH, "precision": "bf16", "framework": "megatron"},
}
EFFICIENCY = 0.5
"""What llm-analysis recommends for Megatron (its constant.py); without it all GPUs run at their peak."""
RECOMPUTE = ("none", "selective", "full")
TIE = 1e-6


def divisors(number: int) -> list[int]:
    """All divisors, in rising order."""
    return [each for each in range(1, number + 1) if number % each == 0]


def layouts() -> list[dict[str, Any]]:
    """Every layout that both can express: no context parallelism and no virtual stages."""
    return [
        {"tp": tp, "pp": pp, "dp": dp, "zero": zero, "micro_batch_size": size, "recompute": recompute}
        for tp in divisors(8)
        for pp in divisors(80)
        if GPUS % (tp * pp) == 0
        for dp in [GPUS // (tp * pp)]
        if BATCH % dp == 0
        for zero in range(4 if dp > 1 else 1)
        for size in divisors(BATCH // dp)
        for recompute in RECOMPUTE
    ]


def priced_there(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Seconds of a step and GiB to spare of these layouts by llm-analysis, which must be installed here."""
    analysis, config = (importlib.import_module(f"llm_analysis.{name}") for name in ("analysis", "config"))
    logging.disable(logging.CRITICAL)
    # It has two matrices in an MLP, gated or not; these hold as many weights as the three of this model.
    width = MODEL["intermediate_size"] * 3 // 2
    model = config.ModelConfig(
        name="model", num_layers=MODEL["num_layers"], n_head=MODEL["num_attention_heads"], hidden_dim=MODEL["hidden_size"],
        vocab_size=MODEL["vocab_size"], max_seq_len=SEQ_LENGTH, num_key_value_heads=MODEL["num_key_value_heads"],
        ffn_embed_dim=width, expansion_ratio=width / MODEL["hidden_size"],
    )  # fmt: skip
    gpu = config.get_gpu_config_by_name("h100-sxm-80gb")
    found = []
    for each in asked:
        mesh = config.ParallelismConfig(tp_size=each["tp"], pp_size=each["pp"], dp_size=each["dp"], sp_size=each["tp"])
        priced = analysis.LLMAnalysis(model, gpu, parallelism_config=mesh, flops_efficiency=EFFICIENCY)
        summary = priced.training(
            batch_size_per_gpu=each["micro_batch_size"], global_batch_size=BATCH, seq_len=SEQ_LENGTH,
            activation_recomputation=analysis.ActivationRecomputation(RECOMPUTE.index(each["recompute"])),
            ds_zero=analysis.DSZeRO(each["zero"]),
        )  # fmt: skip
        left_gib = summary["memory_left_per_gpu"] / 2**30
        found.append({**each, "step_s": summary["latency_per_iter"], "left_gib": left_gib})
    return found


def there(request: dict[str, Any]) -> dict[str, Any]:
    """What the process with llm-analysis answers: the layouts that fit and are fastest, and its price of one more layout."""
    cpu = time.process_time()
    found = priced_there(layouts())
    cpu = time.process_time() - cpu
    fitting = [each for each in found if each["left_gib"] > 0]
    best_s = min(each["step_s"] for each in fitting)
    return {
        "layouts": len(found),
        "fitting": len(fitting),
        "cpu_s": cpu,
        "best_s": best_s,
        "fastest": [each for each in fitting if each["step_s"] <= best_s * (1 + TIE)],
        "other": priced_there([request])[0],
    }


def asked_there(python: str, layout: dict[str, Any]) -> dict[str, Any]:
    """The answer of `there` from the process of another interpreter."""
    command = [python, str(Path(__file__).resolve()), "--there"]
    done = subprocess.run(command, input=json.dumps(layout), capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def priced_here(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our evaluations of these layouts."""
    from planner.rows import evaluate_rows

    fields = ("tp", "pp", "dp", "zero", "micro_batch_size", "recompute")
    strategies = [{name: row[name] for name in fields} | {"sequence_parallel": row["tp"] > 1} for row in rows]
    return list(evaluate_rows([{**REQUEST, "strategy": strategy} for strategy in strategies]))


def measure(python: str) -> None:
    """Asks both and records the answers."""
    from benchmarks.record import record
    from planner.plan import plan

    plan(REQUEST)  # so that no search pays for what a process builds once
    cpu = time.process_time()
    answer = plan(REQUEST)
    cpu = time.process_time() - cpu
    alike = plan({**REQUEST, "constraints": {"fixed": {"cp": 1, "vpp": 1}}})
    plain = alike["plans"][0]
    others = asked_there(
        python, {name: plain["strategy"][name] for name in ("tp", "pp", "dp", "zero", "micro_batch_size", "recompute")}
    )
    theirs = priced_here(others["fastest"])
    runs = sorted(each["step_time_s"] for each in theirs if each["verdict"] == "fits")
    best = answer["plans"][0]
    record(
        "beside_llm_analysis", value=best["evaluation"]["step_time_s"], unit="s a step", goal="report",
        here={
            "strategies": answer["search"]["total"], "priced": answer["search"]["evaluated"], "cpu_s": round(cpu, 3),
            "best": _short(best["strategy"]), "best_s": best["evaluation"]["step_time_s"],
        },
        here_without_cp_and_vpp={
            "best": _short(plain["strategy"]), "best_s": plain["evaluation"]["step_time_s"],
            "priced_there_s": others["other"]["step_s"], "left_there_gib": round(others["other"]["left_gib"], 1),
        },
        there={
            "version": "0.2.2", "layouts": others["layouts"], "fitting": others["fitting"], "cpu_s": round(others["cpu_s"], 3),
            "best_s": others["best_s"], "equally_fast": len(others["fastest"]),
            "of_these_here": {
                verdict: sum(each["verdict"] == verdict for each in theirs) for verdict in ("fits", "at-risk", "oom", "invalid")
            },
            "of_these_here_s": [runs[0], runs[len(runs) // 2], runs[-1]] if runs else None,
        },
    )  # fmt: skip


def _short(strategy: dict[str, Any]) -> dict[str, Any]:
    fields = ("tp", "pp", "cp", "dp", "vpp", "zero", "zero_shard_size", "micro_batch_size", "recompute")
    return {name: strategy[name] for name in fields}


if __name__ == "__main__":
    if sys.argv[1] == "--there":
        print(json.dumps(there(json.load(sys.stdin))))
    else:
        measure(sys.argv[1])
