"""Answers of a larger set of requests and rows, frozen to the last bit before a restructuring and compared after each step of it.

Every number, strategy, rank, code and proof must be equal. Words (message, hint, warnings, smallest_change, against_next),
identities (id, digests, revision) and times (created_at, elapsed_s) may differ and are not compared.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from cost_models.errors import MeshwrightError
from planner.plan import plan
from planner.rows import evaluate_rows

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = "answers.jsonl.gz"
WORDS = frozenset({"message", "hint", "warnings", "smallest_change", "against_next"})
IDENTITIES = frozenset({"id", "request_digest", "product_version", "model_revision", "created_at", "elapsed_s"})
FRAMEWORKS = ("megatron", "megatron-deepspeed", "deepspeed", "torchtitan", "fsdp", "nanotron")
Document = dict[str, Any]


def requests() -> Iterator[Document]:
    """Plan requests for every framework and several kinds of model and cluster, with pools, open splits, extras and errors."""
    yield from _plain()
    yield from _with_extras()
    yield from _on_pools()
    yield from _that_fail()


def _request(model: str, cluster: Mapping[str, Any], framework: str, *, seq: int, batch: int, **more: Any) -> Document:
    training = {"seq_length": seq, "global_batch_size": batch, "precision": "bf16", "framework": framework}
    return {
        "model": {"preset": model},
        "cluster": dict(cluster),
        "training": training | more.pop("training", {}),
        "top_k": 20,
        **more,
    }


def _plain() -> Iterator[Document]:
    h100 = {"preset": "dgx-h100", "num_nodes": 2}
    jobs: tuple[tuple[str, Document, int, int], ...] = (
        ("llama-3.1-8b", h100, 8192, 128),
        ("llama-3.1-70b", {"preset": "dgx-h100", "num_nodes": 8}, 4096, 256),
        ("qwen3-30b-a3b", h100, 4096, 64),
        ("gemma-2-9b", {"preset": "dgx-b200", "num_nodes": 1}, 8192, 64),
        ("gpt3-6.7b", {"preset": "selene", "num_nodes": 4}, 2048, 512),
        ("llama-3.2-1b", {"preset": "rtx4090-pcie-8", "num_nodes": 1}, 2048, 64),
    )
    for framework, (model, cluster, seq, batch) in product(FRAMEWORKS, jobs):
        yield _request(model, cluster, framework, seq=seq, batch=batch)
    for framework in ("megatron", "torchtitan"):
        yield _request("llama-3.1-8b", h100, framework, seq=8192, batch=64, training={"precision": "fp8"})
        fixed = {"fixed": {"tp": 2, "pp": 4, "vpp": 2}}
        yield _request("llama-2-13b", h100, framework, seq=4096, batch=64, constraints=fixed)
    yield _request("deepseek-v2", {"preset": "dgx-h100", "num_nodes": 16}, "megatron", seq=4096, batch=512)
    yield _request("gpt-oss-20b", {"preset": "dgx-h200", "num_nodes": 1}, "megatron", seq=8192, batch=32)
    yield _request("llama-2-13b", h100, "deepspeed", seq=4096, batch=64, objective="cost")
    offload = {"fixed": {"offload": {"optimizer_fraction": 1.0}, "zero": 2}}
    yield _request("llama-3.1-8b", h100, "deepspeed", seq=4096, batch=64, constraints=offload)


def _with_extras() -> Iterator[Document]:
    h100 = {"preset": "dgx-h100", "num_nodes": 2}
    for include in (["open_splits"], ["pareto"], ["what_if"], ["open_splits", "pareto", "what_if"]):
        yield _request("llama-3.2-3b", h100, "megatron", seq=4096, batch=64, include=include)
    for model, pp in (("llama-2-13b", 3), ("qwen3-30b-a3b", 5), ("gemma-2-9b", 4)):
        yield _request(
            model,
            h100,
            "megatron",
            seq=4096,
            batch=64,
            include=["open_splits"],
            constraints={"allowed": {"pp": [1, pp, 8]}},
        )
    yield _request("llama-3.2-3b", h100, "torchtitan", seq=4096, batch=64, include=["open_splits"])


def _on_pools() -> Iterator[Document]:
    pools = [
        {"name": "old", "preset": "dgx-a100-80gb", "num_nodes": 2},
        {"name": "new", "preset": "dgx-h100", "num_nodes": 2},
    ]
    cluster = {"pools": pools, "network": {"fabric": "infiniband"}}
    jobs = (("llama-3.1-8b", 8192, 64), ("llama-2-13b", 4096, 128), ("qwen3-30b-a3b", 4096, 64))
    for framework, (model, seq, batch) in product(("megatron", "torchtitan", "nanotron"), jobs):
        yield _request(model, cluster, framework, seq=seq, batch=batch)
    yield json.loads((ROOT / "examples/requests/llama-3.1-70b-two-pools.json").read_text())
    one = {"pools": pools[1:], "network": {"fabric": "infiniband"}}
    yield _request("llama-3.1-8b", one, "megatron", seq=8192, batch=64)


def _that_fail() -> Iterator[Document]:
    h100 = {"preset": "dgx-h100", "num_nodes": 1}
    yield json.loads((ROOT / "examples/requests/too-small.json").read_text())
    yield _request("llama-3.1-405b", h100, "fsdp", seq=8192, batch=64)
    yield _request("llama-3.1-70b", {"preset": "rtx4090-pcie-8", "num_nodes": 1}, "megatron", seq=4096, batch=8)
    yield _request("llama-3.1-8b", h100, "megatron", seq=8192, batch=64, constraints={"fixed": {"tp": 7}})
    yield _request("llama-3.1-8b", h100, "nanotron", seq=8192, batch=7)
    yield _request("no-such-model", h100, "megatron", seq=8192, batch=64)
    yield _request("llama-3.1-8b", {"preset": "dgx-h100", "num_nodes": 0}, "megatron", seq=8192, batch=64)
    yield _request("llama-3.1-8b", h100, "megatron", seq=8192, batch=64, constraints={"fixed": {"tpp": 2}})
    yield {"model": {"preset": "llama-3.1-8b"}}


def rows() -> Iterator[Document]:
    """Evaluate rows: the measured runs, and drawn strategies of every framework, legal and not, on one pool and on two."""
    for file in sorted((ROOT / "data" / "measured").rglob("*.jsonl")):
        yield from (json.loads(line) for line in file.read_text().splitlines() if line.strip())
    # Most drawn strategies break some rule, which freezes the reasons as well; the measured rows above are the legal ones.
    draw = Random(11)  # noqa: S311 - equal seeds draw equal rows
    asked = [request for request in requests() if {"cluster", "training"} <= request.keys()]
    for number in range(1500):
        request = draw.choice(asked)
        parts = {name: request[name] for name in ("model", "cluster", "training")}
        yield {"id": f"drawn-{number}", **parts, "strategy": _drawn_strategy(draw)}


def _drawn_strategy(draw: Random) -> Document:
    strategy: Document = {"micro_batch_size": draw.choice([1, 1, 2, 4])}
    fields: dict[str, list[Any]] = {
        "tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "cp": [1, 2], "ep": [1, 2, 8], "vpp": [1, 2], "zero": [0, 1, 2, 3],
        "recompute": ["none", "selective", "full"], "sequence_parallel": [True, False], "zero_shard_size": [4, 8],
        "grad_sync": ["last", "each"], "schedule": ["1f1b", "zb-h1", "gpipe"], "dp": [1, 2, 4],
        "moe_dispatcher": ["allgather", "alltoall", "flex"], "cp_comm": ["p2p", "a2a", "allgather"],
        "offload": [{"optimizer_fraction": 1.0}, {"activation_layers": 2}], "overlap": [{"tp_comm": True}],
    }  # fmt: skip
    for name, values in fields.items():
        if draw.random() < (0.6 if name in {"tp", "pp", "zero", "recompute"} else 0.15):
            strategy[name] = draw.choice(values)
    return strategy


def numbers_of(answer: Any) -> Any:
    """The answer without its words, identities and times."""
    if isinstance(answer, Mapping):
        return {k: numbers_of(v) for k, v in sorted(answer.items()) if k not in WORDS | IDENTITIES}
    return [numbers_of(item) for item in answer] if isinstance(answer, list) else answer


def answers() -> Iterator[tuple[str, Document]]:
    """Name and answer of every request and row. The answer of a refused request are its problems."""
    for number, request in enumerate(requests()):
        try:
            answer = plan(request)
        except MeshwrightError as error:
            problems = getattr(error, "problems", ())
            answer = {"refused": error.code, "problems": [[p.pointer, p.code] for p in problems]}
        yield f"request {number}", numbers_of(answer)
    # All rows in one call, as a file of them is priced: what a batch does to its rows shows as well.
    for number, answer in enumerate(evaluate_rows(rows())):
        yield f"row {number}", numbers_of(answer)


def _lines(found: Iterable[tuple[str, Document]]) -> Iterator[str]:
    return (json.dumps([name, answer], separators=(",", ":"), sort_keys=True) + "\n" for name, answer in found)


def write(folder: Path) -> int:
    """Writes the answers of this checkout into a folder; the exit code is 0."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / FILE, "wt") as out:
        count = sum(bool(out.write(line)) for line in _lines(answers()))
    print(f"{count} answers written to {folder / FILE}")
    return 0


def compare(folder: Path) -> int:
    """Compares this checkout's answers with those in a folder; the exit code is 1 if any differs."""
    with gzip.open(folder / FILE, "rt") as frozen:
        pairs = list(zip(frozen, _lines(answers()), strict=True))
    different = [json.loads(was)[0] for was, now in pairs if was != now]
    print(f"{len(pairs)} answers compared, {len(different)} differ")
    for name in different[:20]:
        print(f"  {name}")
    return int(bool(different))
