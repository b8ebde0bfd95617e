"""One plan in full, for people: its job and batch, its stages and their memory, its time by term, and what speaks for it.

Tables name terms and fields as the JSON documents do, with what each means beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from app.cli.rendering.one_plan_tables import (
    assumed_table,
    memory_tables,
    neighbours_table,
    overlaps_table,
    stages_table,
    strategy_table,
    time_table,
)
from app.cli.rendering.plan_footer import trained
from app.cli.rendering.plan_table import console_width, title
from app.cli.rendering.run_tables import collective_parts, condition_parts, run_parts
from app.plan_cells import Json, seconds
from app.report.words import BESIDE
from cost_models.inputs.fields import WARNINGS
from cost_models.units import GIB


def print_plan(detail: Json, *, of: int | None, quiet: bool) -> None:
    """Prints a plan on stdout and warnings on stderr; `of` is how many plans the response has."""
    out = Console(file=sys.stdout, width=console_width(), highlight=False, soft_wrap=False)
    for part in _page(detail, of=of):
        out.print(part)
    if not quiet:
        err = Console(file=sys.stderr, width=out.width, highlight=False)
        for warning in detail["evaluation"].get("warnings", ()):
            meaning = f": {WARNINGS[warning]}" if warning in WARNINGS else ""
            err.print(Text.assemble(("warning: ", "yellow"), warning, meaning))


def _page(detail: Json, *, of: int | None) -> Iterator[RenderableType]:
    yield _headline(detail, of=of)
    evaluation = detail["evaluation"]
    yield Text(_VERDICTS[evaluation["verdict"]], style="" if evaluation["verdict"] == "fits" else "yellow")
    for reason in evaluation["reasons"]:
        yield Text(f"  {reason['message']}. {reason['hint']}".rstrip())
    if evaluation["step_time_s"] is not None:
        yield from _priced(detail)
    if evaluation["assumed"]:
        yield from _section("Assumed, because nothing was said", assumed_table(evaluation["assumed"]))
    yield from _section("Beside the plans next to it", *map(Text, detail["ranking"]))
    if detail["neighbours"] is not None:
        yield from _section("With one thing changed", *neighbours_table(detail["neighbours"]))
    yield from _section("Not shown", *map(Text, detail["not_shown"]))


def _priced(detail: Json) -> Iterator[RenderableType]:
    """What only a strategy that could run has."""
    evaluation, row, strategy = detail["evaluation"], detail["row"], detail["strategy"]
    yield Text("")
    yield from trained(row or {}, [detail])
    yield from (_line(*pair) for pair in _figures(detail))
    if strategy is not None:
        yield from _section("Strategy", strategy_table(strategy, row))
        yield from _section("Stages", stages_table(detail))
    yield from _memory(evaluation["memory"])
    yield from _section("Time of a step", time_table(evaluation), _provenance(evaluation))
    yield from _section("The whole run", *run_parts(evaluation))
    yield from _section("What could hide communication", *condition_parts(evaluation))
    yield from _section("Collectives", *collective_parts(evaluation))
    if strategy is not None:
        yield from _section("Overlaps", overlaps_table(strategy, row))
        yield from _section("In the memory of the host", Text(_offloaded(strategy, evaluation["memory"])))


def _section(name: str, *parts: RenderableType | None) -> Iterator[RenderableType]:
    shown = [part for part in parts if part is not None]
    if shown:
        yield Text(f"\n{name}", style="bold")
        yield from shown


def _line(name: str, value: str) -> Text:
    return Text.assemble((f"{name:<11}", "bold"), value)


def _headline(detail: Json, *, of: int | None) -> Text:
    row, given_id = detail["row"], detail["evaluation"]["id"]
    if detail["rank"] is None:
        return Text(f"Evaluation{'' if given_id is None else f' of {given_id}'}", style="bold")
    ranked = f"Plan {detail['rank']}{'' if of is None else f' of {of}'}"
    return Text.assemble(ranked, ": " if row else "", title(row) if row else "", style="bold")


_VERDICTS = {
    "fits": "It fits.",
    "at-risk": "It may not fit (at-risk).",
    "oom": "It does not fit (oom).",
    "invalid": "No framework could run it (invalid).",
}


def _figures(detail: Json) -> Iterator[tuple[str, str]]:
    """The figures of the whole job, with a name each."""
    evaluation, strategy, row = detail["evaluation"], detail["strategy"], detail["row"]
    yield "GPUs", _gpus(detail)
    if row is not None and strategy is not None:
        batch, micro = row["training"]["global_batch_size"], strategy["micro_batch_size"]
        rounds = evaluation["num_micro_batches"]
        parts = f"{_count(strategy['dp'], 'replica')} x {_count(rounds, 'micro-batch')} x {_count(micro, 'sequence')}"
        accumulated = f"gradients accumulate over {rounds} micro-batches" if rounds > 1 else "no gradient accumulation"
        yield "Batch", f"{batch:,} sequences a step = {parts}; {accumulated}"
    else:
        yield "Batch", f"{_count(evaluation['num_micro_batches'], 'micro-batch')} for each replica in a step"
    low, high = evaluation["step_time_range_s"]
    yield "Step", f"{seconds(evaluation['step_time_s'])} s, 80 % range {seconds(low)} to {seconds(high)} s"
    rate = evaluation["tokens_per_s_per_gpu"]
    yield "Throughput", f"{rate * evaluation['num_gpus_used']:,.0f} tokens/s, {rate:,.0f} for each GPU in use"
    yield "Operations", _operations(evaluation)


def _count(number: int, name: str) -> str:
    plural = name if number == 1 else f"{name}es" if name.endswith("ch") else f"{name}s"
    return f"{number:,} {plural}"


def _gpus(detail: Json) -> str:
    gpus, strategy = detail["gpus"], detail["strategy"]
    if gpus["total"] is None:
        told = f"{gpus['used']:,} used"
    else:
        idle = f"{gpus['idle']:,} idle" if gpus["idle"] else "none idle"
        told = f"{gpus['used']:,} of {gpus['total']:,} used, {idle}"
    if strategy is None:
        return told
    return f"{told}: {' x '.join(f'{name} {strategy.get(name) or 1}' for name in ('tp', 'pp', 'cp', 'dp'))}"


def _operations(evaluation: Json) -> str:
    model, hardware = evaluation["model_tflops_per_gpu"], evaluation["hardware_tflops_per_gpu"]
    repeated = (
        "" if hardware is None or f"{hardware:.0f}" == f"{model:.0f}" else f" ({hardware:,.0f} with repeated work)"
    )
    parts = [f"{model:,.0f} TFLOP/s a GPU{repeated}"]
    if evaluation["mfu"] is not None:
        parts.append(f"MFU {evaluation['mfu']:.1%}")
    if evaluation.get("mfu_bf16") is not None:
        parts.append(f"{evaluation['mfu_bf16']:.1%} of the bf16 peak")
    return ", ".join(parts)


def _memory(memory: Json) -> Iterator[RenderableType]:
    """Each stage's memory by kind, then what the fullest stage's card holds beside it."""
    if memory.get("stages"):
        yield from _section("Memory of each stage at its peak, GiB a GPU", *memory_tables(memory["stages"]))
    allocated, reserved, device = (memory[f"peak_{name}_bytes"] for name in ("allocated", "reserved", "device"))
    low, high = memory["peak_device_range_bytes"]
    capacity = memory["capacity_bytes"]
    yield Text(
        f"The fullest card: {_gib(allocated)} allocated + {_gib(reserved - allocated)} cached by the allocator + "
        f"{_gib(device - reserved)} context and communication buffers = {_gib(device)} GiB "
        f"(80 % range {_gib(low)} to {_gib(high)}) of the {_gib(capacity)} GiB that the card offers, {device / capacity:.1%}."
    )


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.1f}"


def _provenance(evaluation: Json) -> Text:
    calibration = evaluation["provenance"]["calibration"]
    return Text(f"Prices from {calibration}." if calibration else "Prices from nominal data sheets.")


def _offloaded(strategy: Mapping[str, Any], memory: Json) -> str:
    offload = strategy.get("offload") or {}
    parts = []
    if fraction := offload.get("optimizer_fraction"):
        beside = BESIDE[offload.get("optimizer_overlap", "none")]
        place = " on drives" if offload.get("optimizer_device") == "nvme" else ""
        parts.append(f"{fraction:.0%} of the optimizer state{place}, updated by the host{beside}")
    if offload.get("parameters"):
        place = " on drives" if offload.get("parameter_device") == "nvme" else ""
        parts.append(f"the parameters{place} between their uses")
    if layers := offload.get("activation_layers"):
        parts.append(f"the saved activations of {layers} layers of each stage")
    if modules := offload.get("activation_modules"):
        parts.append(f"{offload.get('activation_fraction', 1.0):.0%} of what {', '.join(modules)} save")
    if not parts:
        return "Nothing is offloaded."
    drives = memory.get("nvme_bytes_per_node") or 0.0
    told = f"{'; '.join(parts)}, {memory['host_bytes_per_node'] / GIB:,.1f} GiB on each node"
    told += f" and {drives / GIB:,.1f} GiB on its drives." if drives else "."
    return told[0].upper() + told[1:]
