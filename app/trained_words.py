"""What is trained of a model where that is not simply all of it, in the words of tables and pages; and what its towers take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.plan_cells import parameter_count, seconds

Json = Mapping[str, Any]


def trained_words(evaluation: Json, training: Json) -> str:
    """What is trained and what is frozen, as a clause; empty where everything is trained."""
    trained, stored = evaluation.get("trainable_parameters"), evaluation.get("stored_parameters")
    # Towers have both numbers told, whether or not any part is frozen.
    if trained is None or stored is None or trained == stored:
        return ""
    # An evaluation by itself, as `show` reads it, does not say which parts are frozen.
    if not training:
        return "the rest is frozen"
    towers = training.get("towers") or {}
    frozen = list(training.get("frozen") or ())
    frozen += [f"{sense} tower" for sense in ("vision", "audio") if towers.get(sense) == "frozen"]
    frozen += ["projector"] * (towers.get("projector") == "frozen")
    kept = f"{', '.join(frozen)} frozen"
    if adapter := training.get("adapter"):
        base = adapter.get("quantized_base", "none")
        what = f"adapters of rank {adapter['rank']} on {', '.join(adapter['target_modules'])}"
        what += f" beside a base in {base}" if base != "none" else " beside a frozen base"
        return f"{what}, {kept}" if frozen else what
    return kept


def tower_sentences(evaluation: Json) -> list[str]:
    """What each tower is and takes, a sentence for each, and what padding and a moving average of the weights take; none without them."""
    found = []
    stages = evaluation.get("memory", {}).get("stages") or ()
    first = " on the first stage" if len(stages) > 1 else ""
    for tower in evaluation.get("towers") or ():
        size = parameter_count(tower["parameters"] + tower["projector_parameters"])
        found.append(
            f"The {tower['state']} {tower['tower']} tower with its projector ({size} parameters) yields "
            f"{tower['tokens_per_sequence']:,.0f} tokens of a sequence and takes {seconds(tower['step_s'])} s of a step{first}."
        )
    if (share := evaluation.get("padding_share")) is not None:
        found.append(f"{share:.1%} of all tokens is padding; tokens a second, MFU and costs count the others.")
    if average := evaluation.get("ema"):
        where = "GPU" if average["device"] == "gpu" else "process in host memory"
        kept = "its shard" if average["sharded"] else "all"
        found.append(
            f"A moving average of the weights takes {average['gib_per_rank']:.2f} GiB of each {where}, which keeps {kept} of what it holds, and "
            f"{seconds(average['step_s'])} s of a step."
        )
    return found
