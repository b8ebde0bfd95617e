"""What a trial measures is the plan: every split of a model has the losses of one process, on this machine's processors.

In single precision only the order of sums tells two splits apart: losses and gradient norms agree to six digits. The clipping of gradients,
and Adam by itself, would hide a wrong factor before all gradients; norms are taken before both, and the optimizer is plain descent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.trial_forms.forms import FORMS, TENSOR, broken, forms_of, job, kind
from benchmarks.trial_forms.processes import run_together
from benchmarks.trial_forms.table import off

LOSS = 5e-6
NORM = 2e-5
# Of the combinations on four processes, those that CI runs; -m proof runs all.
COMBINED = (
    "tensor parallel, ZeRO 3", "shards of half the replicas", "pipeline of replicas", "pipeline, ZeRO 3",
    "pipeline of zb-v, ZeRO 2", "context and pipeline", "mixture, experts spread over half", "mixture, experts spread in a pipeline",
)  # fmt: skip
# These are slow to set up, and are no form of their own: the mixture whose experts are cut runs what tensor parallelism runs.
LEFT_TO_PROOFS = (
    "ZeRO 3 with selective recomputation", "tensor parallel", "tensor parallel with selective recomputation", "tied, tensor parallel",
)  # fmt: skip


def _found(jobs: Iterable[dict[str, Any]], **limits: float) -> dict[str, dict[str, Any]]:
    jobs = list(jobs)
    found = dict(zip((each["name"] for each in jobs), run_together(jobs, **limits), strict=True))
    errors = {name: answer["error"][-600:] for name, answer in found.items() if "error" in answer}
    assert not errors, errors
    return found


def _hold(found: Mapping[str, dict[str, Any]]) -> None:
    for name, answer in found.items():
        losses, norms = off(answer, found[kind(name)])
        assert losses < LOSS, (name, losses)
        assert norms < NORM, (name, norms)


def test_every_form_has_the_losses_of_one_process() -> None:
    combined = [job(name, FORMS[4][name], world=4) for name in COMBINED]
    still = {**job("dense", {}, world=1), "name": "still", "learning_rate": 0.0}
    wrong = {each["fault"]: {**each, "name": each["fault"]} for each in broken()}
    forms = [each for each in forms_of(1, 2) if each["name"] not in LEFT_TO_PROOFS]
    found = _found([*forms, *combined, still, *wrong.values()])
    apart = {name: found.pop(name) for name in ("still", *wrong)}
    _hold(found)
    assert {name: answer["outputs_kept"] for name, answer in found.items() if answer["outputs_kept"]} == {}
    # An untrained model of 256 tokens is as good as a guess: log(256) = 5.545.
    assert found["dense"]["losses"][0] == pytest.approx(5.545, abs=0.05)
    # The comparison sees what it is for: training moves the losses, and gradients that are not summed, or by a wrong factor, show.
    assert off(apart["still"], found["dense"])[0] > 200 * LOSS
    assert off(apart["unreduced"], found["mixture"])[0] > 50 * LOSS
    assert off(apart["mean over shards"], found["mixture"])[1] > 50 * NORM


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("world", [2, 4, 8])
def test_every_combination_has_the_losses_of_one_process_over_five_steps(world: int) -> None:
    found = _found(forms_of(world, layers=4, steps=5), timeout_s=1100.0, job_s=400.0)
    _hold(found)
    assert (
        max(abs(a - b) for a, b in zip(found["dense"]["losses"], found["dense"]["losses"][1:], strict=False))
        > 50 * LOSS
    )


@pytest.mark.proof
def test_half_precision_and_states_of_two_bytes_train_alike() -> None:
    """bf16 keeps three digits of each number, and five steps of Adam at this rate move the losses by more than what is let pass."""
    jobs = []
    for kept in ("fp32", "bf16"):
        types = {"precision": "bf16", "optimizer": "adam", "param_dtype": kept, "grad_dtype": kept}
        for world, strategy in ((1, {}), (2, {"dp": 2, "zero": 3}), (2, TENSOR), (2, {"pp": 2}), (2, {"dp": 2})):
            made = job("dense", strategy, world=world, layers=4, steps=5, **types)
            jobs.append({**made, "name": f"{kept} {strategy}", "learning_rate": 3e-3})
    found = _found(jobs)
    for name, answer in found.items():
        assert off(answer, found[f"{name[:4]} {{}}"])[0] < 4e-3, name
