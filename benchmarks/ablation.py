"""What each part of the search is worth: ten jobs with everything, and then without one part at a time.

Leaving an axis out shows what it gains in plan 1 and what it costs in CPU time; leaving a bound out changes no plan and shows
what it saves. Every search may take three times as long as the whole one, and ten seconds at least; `proof` tells where that was
not enough. The tables of docs/SEARCH.md are written from the results.
Run: python -m benchmarks.ablation [JOB...], or with --write to write the tables alone.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.marked_page import MarkedPage
from benchmarks.record import RESULTS, ROOT, record
from benchmarks.search_proofs import request
from planner.plan import plan_checked
from planner.request.checked_request import CheckedRequest, check_request
from planner.strategies.axes import build_space
from planner.strategies.parts import AXES, BOUNDS, Part, Parts

PAGE = MarkedPage(
    ROOT / "docs" / "SEARCH.md",
    "<!-- tables of benchmarks/ablation.py -->",
    "<!-- end of the tables -->",
)
LEAST_LIMIT_S, TIMES_AS_LONG = 10.0, 3.0


def listed(*job: Any, **training: Any) -> dict[str, Any]:
    """A request for the best of the framework's own splits."""
    return {name: value for name, value in request(*job, **training).items() if name != "include"}


JOBS: dict[str, dict[str, Any]] = {
    "llama_70b_128_h100": listed("llama-3.1-70b", "dgx-h100", 16, 8192, 512),
    "llama_405b_8192_h100": listed("llama-3.1-405b", "dgx-h100", 1024, 8192, 2048),
    "deepseek_v3_2048_h800": listed("deepseek-v3", "hgx-h800", 256, 4096, 15_360),
    "deepseek_v2_64_a100": listed("deepseek-v2", "aws-p4d", 8, 4096, 512),
    "gpt_oss_120b_64_h100": listed("gpt-oss-120b", "dgx-h100", 8, 8192, 512),
    "mixtral_8x7b_128_h100": listed("mixtral-8x7b", "dgx-h100", 16, 4096, 1024),
    "llama_70b_16_h100": listed("llama-3.1-70b", "dgx-h100", 2, 4096, 64),
    # Zero-bubble schedules run neither compiled nor with FlexAttention, which is the default from 0.3 on.
    "llama_70b_128_a100_torchtitan": listed(
        "llama-3.1-70b",
        "a100-pcie-pairs-8",
        16,
        4096,
        128,
        framework="torchtitan",
        framework_version="0.2",
        compile=False,
    ),
    "llama_8b_64_a100_fsdp": listed("llama-3.1-8b", "a100-pcie-pairs-8", 8, 4096, 128, framework="fsdp"),
    "llama_13b_64_a100_deepspeed": listed("llama-2-13b", "dgx-a100-80gb", 8, 4096, 1024, framework="deepspeed"),
}
ALL_BOUNDS = "all bounds"


def searched(checked: CheckedRequest, without: Parts, *, limit_s: float | None = None) -> dict[str, Any]:
    """Plan 1, the proof and the CPU seconds of one search."""
    limited = checked.changed({**checked.given, "time_limit_s": limit_s}) if limit_s else checked
    wall, cpu = time.perf_counter(), time.process_time()
    answer = plan_checked(limited, without=without)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    best, proof = answer["plans"][0] if answer["plans"] else None, answer["search"]["proof"]
    return {
        "step_time_s": best and best["evaluation"]["step_time_s"],
        "cpu_s": round(cpu, 3),
        "wall_s": round(wall, 3),
        "evaluated": answer["search"]["evaluated"],
        "total": answer["search"]["total"],
        "optimal": proof["optimal"],
        "gap": proof["gap"],
        "strategy": best and best["strategy"],
    }


def matters(checked: CheckedRequest, axis: Part) -> bool:
    """Whether the job has this axis at all; only a search can tell of offload, which it tries where nothing else fits."""
    job, constraints = checked.job.jobs[0], checked.asked.constraints
    sizes = [build_space(job, constraints, without=some).mesh_sizes.sum() for some in (frozenset(), frozenset({axis}))]
    return axis in (Part.OFFLOAD, Part.TP_OVERLAP) or sizes[0] != sizes[1]


def measure(name: str) -> None:
    """Measures and records one job."""
    checked = check_request({**JOBS[name], "top_k": 5})
    searched(checked, frozenset())  # so that no search pays for what a process builds once
    whole = searched(checked, frozenset())
    limit_s = max(LEAST_LIMIT_S, TIMES_AS_LONG * whole["wall_s"])
    parts: dict[str, Parts] = {
        part.value: frozenset({part}) for part in Part if part in BOUNDS or matters(checked, part)
    }
    left_out = {}
    for part, without in {**parts, ALL_BOUNDS: BOUNDS}.items():
        found = searched(checked, without, limit_s=limit_s)
        if without <= AXES and found["total"] == whole["total"] and found["strategy"] == whole["strategy"]:
            continue  # it made no difference
        del found["strategy"]
        left_out[part] = found | {"loss": _loss(whole, found)}
    record(
        f"ablation_{name}", value=whole["cpu_s"], unit="CPU s", goal="report", whole=whole, left_out=left_out,
        limit_s=round(limit_s, 1),
    )  # fmt: skip
    for part, found in left_out.items():
        loss = "no plan" if found["loss"] is None else f"{found['loss']:+.1%}"
        print(
            f"  without {part}: {loss}, {found['cpu_s'] / whole['cpu_s']:.2f} x CPU, {found['evaluated']:,} priced",
            end="",
        )
        print(f", {_proof(found)}", flush=True)


def tables() -> str:
    """The tables of docs/SEARCH.md, from the newest figures of every job."""
    files = {name: RESULTS / f"ablation_{name}.json" for name in JOBS}
    newest = {name: json.loads(file.read_text())[-1]["details"] for name, file in files.items() if file.exists()}
    axes = [part for part in Part if part in AXES and any(part in each["left_out"] for each in newest.values())]
    bounds = [part for part in Part if part in BOUNDS]
    lines = [
        f"| job | CPU s | plan 1, s | proof | {' | '.join(axes)} |",
        f"| --- | ---: | ---: | --- |{' ---: |' * len(axes)}",
    ]
    for name, each in newest.items():
        whole, left_out = each["whole"], each["left_out"]
        cells = [_gain(left_out.get(axis), whole) for axis in axes]
        lines.append(
            f"| {name} | {whole['cpu_s']:.2f} | {whole['step_time_s']:.2f} | {_proof(whole)} | {' | '.join(cells)} |"
        )
    lines += ["", f"| job | strategies | priced | {' | '.join(bounds)} | {ALL_BOUNDS} |"]
    lines.append(f"| --- | ---: | ---: |{' ---: |' * (len(bounds) + 1)}")
    for name, each in newest.items():
        whole, left_out = each["whole"], each["left_out"]
        cells = [_cost(left_out[part], whole) for part in (*bounds, ALL_BOUNDS)]
        lines.append(f"| {name} | {whole['total']:,} | {whole['evaluated']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _gain(found: dict[str, Any] | None, whole: dict[str, Any]) -> str:
    """What an axis gains, and the CPU time without it as a multiple of the time with it."""
    if found is None:
        return ""
    loss = "no plan" if found["loss"] is None else f"{found['loss']:.1%}"
    return f"{loss} ({found['cpu_s'] / whole['cpu_s']:.1f})"


def _cost(found: dict[str, Any], whole: dict[str, Any]) -> str:
    """CPU time without a bound as a multiple of the time with it, and what was left unproven."""
    return f"{found['cpu_s'] / whole['cpu_s']:.1f}" + ("" if found["optimal"] else f", {_proof(found)}")


def _proof(found: dict[str, Any]) -> str:
    return "optimal" if found["optimal"] else "no plan" if found["gap"] is None else f"gap {found['gap']:.0%}"


def write() -> None:
    """Puts the tables into docs/SEARCH.md."""
    PAGE.write(tables())


def _loss(whole: dict[str, Any], found: dict[str, Any]) -> float | None:
    """By how much plan 1 is slower, as a share of the step; None where there is none."""
    return None if found["step_time_s"] is None else found["step_time_s"] / whole["step_time_s"] - 1.0


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        for each in sys.argv[1:] or JOBS:
            measure(each)
    write()
