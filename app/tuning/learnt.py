"""What the trials of a tuning teach of the cost models' terms: the corrections that `meshwright correct` would fit to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.corrections import fit_corrections
from cost_models.inputs.corrections import correction_dict
from planner.learning.measured import measured_runs
from planner.search.standing import Standing

Json = dict[str, Any]


def corrections_of(response: Mapping[str, Any], standing: Standing) -> list[Json]:
    """The corrections that follow from the trials that ended, one for each term that they tell something of, as JSON.

    Args:
        response: the plan response that was tuned.
        standing: of the tuning's study.
    """
    planned = response["request"]["cluster"].get("gpu")
    gpu = planned["name"] if isinstance(planned, dict) else planned
    records = [told.outcome.record for told in standing.told if told.outcome.status == "ok" and told.outcome.record]
    # Trials on anything but the GPU that was planned for, such as processors, teach nothing of its terms.
    own = [record for record in records if _gpu_of(record) == gpu]
    # Priced anew and uncorrected, so that what is learnt is learnt about the models and not about earlier corrections.
    found = measured_runs(own, allow_files=True)
    return [correction_dict(each) for each in fit_corrections(found.runs)]


def _gpu_of(record: Mapping[str, Any]) -> str:
    return str((record.get("machine") or {}).get("gpu", ""))
