"""The objects that the documentation's examples refer to. Every tenant has them before its first answer.

So each example in /docs can be tried as it stands, and tests that follow the OpenAPI document find what it promises.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path

from app.errors import NotFoundError, QuotaError, TooManyJobsError
from app.observations.observe import stored_form
from app.service.db.agents import AgentStore, NodeFacts
from app.service.db.calibrations import CalibrationStore
from app.service.db.observations import ObservationStore
from app.service.db.plan_result import Document
from app.service.db.plans import PlanStore, Submission
from app.service.db.profiling_jobs import ProfilingJobStore
from app.service.db.tunings import TuningLimits, TuningStore, WantedTuning
from app.service.intake.plan_requests import prepare_request
from cost_models.calibration import CalibrationDocument
from cost_models.hardware import document_of
from planner.request.checked_request import PRODUCT_VERSION
from planner.schemas.observation import EXAMPLE_OBSERVATION_REQUEST
from planner.schemas.plan_request import EXAMPLE_REQUEST

EXAMPLE_PLAN_ID = "plan-example"
EXAMPLE_AGENT_ID, EXAMPLE_PROFILING_JOB_ID, EXAMPLE_LEASE = "agent-example", "profiling-example", "lease-example"
EXAMPLE_TUNING_ID = "tuning-example"
EXAMPLE_OBSERVATION_ID = "observation-example"
EXAMPLE_CALIBRATION: Document = {
    "schema_version": 1,
    "name": "example of the documentation",
    "kind": "measured",
    "fingerprint": {"gpu": "H100-SXM-80GB", "interconnect": "nvswitch", "gpus_per_node": 8, "num_nodes": 1},
    "device": {
        "generation": "hopper",
        "peak_flops_per_s": {"bf16": 989.4e12},
        "memory_bytes_per_s": 3.352e12,
        "link_bytes_per_s": 450e9,
        "num_sms": 132,
    },
    "created_at": "2026-01-01T00:00:00Z",
    "source": "invented for the documentation, measured nowhere",
    "gemm": [{"m": 8192, "n": 8192, "k": 8192, "time_s": 0.0016}],
}


_TUNING = Path(__file__).with_name("example_tuning.json")
"""The document of a tuning whose steps were measured; its field `asked` is what was asked."""


@cache
def example_observation() -> Document:
    """The observation that every tenant starts with. Its numbers are invented, so that it corrects nothing."""
    made = stored_form(EXAMPLE_OBSERVATION_REQUEST)
    made["document"] |= {"id": EXAMPLE_OBSERVATION_ID, "used": False}
    return made


@cache
def example_calibration() -> CalibrationDocument:
    """The calibration that every tenant starts with; its id is its digest."""
    return document_of(EXAMPLE_CALIBRATION)


def _add_tuning(tenant: str, tunings: TuningStore) -> None:
    kept = json.loads(_TUNING.read_text(encoding="utf-8"))
    asked, limits = kept.pop("asked"), kept["limits"]
    # Without an agent that has such GPUs, so that nobody is taken for one who could run its trials.
    wanted = WantedTuning(
        plan_id=EXAMPLE_PLAN_ID, asked=json.dumps(asked), backend=kept["backend"], gpu="none", min_gpus=1,
        limits=TuningLimits(limits["max_trials"], limits["budget_s"], limits["gpu_hours"], asked["trial_limit_s"]),
    )  # fmt: skip
    tunings.add_example(tenant, EXAMPLE_TUNING_ID, wanted, document=json.dumps(kept))


def seed_examples(
    tenant: str,
    *,
    plans: PlanStore,
    calibrations: CalibrationStore,
    agents: AgentStore,
    observations: ObservationStore,
    profiling_jobs: ProfilingJobStore,
    tunings: TuningStore,
    job_time_limit_s: float,
) -> None:
    """Stores the example calibration, and queues the example plan unless it is there, did not fail and is of this version."""
    document = example_calibration()
    # It is stored without a node shape, so that `auto` never prices a real plan with invented numbers.
    calibrations.add(
        tenant,
        document.id,
        document=document.file_text(),
        gpu=document.fingerprint.gpu,
        gpus_per_node=None,
        is_limited=False,
    )
    observed = example_observation()
    observations.add(
        tenant, observed["document"], framework=observed["framework"], gpu=observed["gpu"], is_limited=False
    )
    # Without a node shape too, so that no profiling job waits for an agent that nobody runs.
    node = NodeFacts("example", document.fingerprint.gpu, None, 1, PRODUCT_VERSION)
    agents.register(tenant, node, agent_id=EXAMPLE_AGENT_ID)
    profiling_jobs.add_measured(
        tenant, EXAMPLE_PROFILING_JOB_ID, agent_id=EXAMPLE_AGENT_ID, lease=EXAMPLE_LEASE, calibration_id=document.id
    )
    _add_tuning(tenant, tunings)
    asked = prepare_request(
        EXAMPLE_REQUEST, tenant=tenant, calibrations=calibrations, job_time_limit_s=job_time_limit_s
    )
    with suppress(NotFoundError):
        plan = plans.get(tenant, EXAMPLE_PLAN_ID)
        if plan.request_digest == asked.digest and plan.status not in {"failed", "cancelled"}:
            return
        plans.delete(tenant, EXAMPLE_PLAN_ID)
    with suppress(TooManyJobsError, QuotaError):
        plans.submit(tenant, Submission(asked.digest, asked.payload, asked.time_limit_s), plan_id=EXAMPLE_PLAN_ID)
