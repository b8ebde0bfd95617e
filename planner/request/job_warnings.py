"""Warnings that belong to every answer about a job: on its model, cluster and training, and on how these fit together."""

from __future__ import annotations

from cost_models.job import Job, PooledJob


def job_warnings(job: PooledJob) -> list[str]:
    """The warnings of a job, each once. `cost_models.inputs.fields.WARNINGS` explains the codes."""
    found = [*job.jobs[0].model.warnings, *job.cluster.warnings]
    if job.jobs[0].training.towers is not None:  # the request says what becomes of the towers
        found = [warning for warning in found if warning != "vision-tower-ignored"]
    found += [warning for one in job.jobs for warning in one.training.warnings]
    found += ["sequence-beyond-positions"] * any(_beyond_positions(one) for one in job.jobs)
    found += ["corrections-of-another-scope"] * any(one.corrections.unmatched for one in job.jobs)
    found += ["corrections-not-on-pools"] * job.corrections_left
    return list(dict.fromkeys(found))


def _beyond_positions(job: Job) -> bool:
    """Whether sequences are longer than the positions for which the model's rotary embedding was configured."""
    # Rotary positions can be computed beyond that length, so the job runs and is only warned of. Learned positions end there,
    # and the specification refuses such a job.
    longest = job.model.max_position_embeddings
    return job.model.position_embedding == "rope" and longest is not None and job.training.seq_length > longest
