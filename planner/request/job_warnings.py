"""What a job's answers are to be read with: warnings of its model, cluster and training, and of how these go together."""

from __future__ import annotations

from cost_models.job import Job, PooledJob


def job_warnings(job: Job | PooledJob) -> list[str]:
    """Warnings of a job, each once; codes are explained in `cost_models.specs.fields.WARNINGS`."""
    if isinstance(job, PooledJob):
        found = [*job.jobs[0].model.warnings, *job.cluster.warnings]
        found += [warning for one in job.jobs for warning in one.training.warnings]
        jobs = job.jobs
    else:
        found = [*job.model.warnings, *job.cluster.warnings, *job.training.warnings]
        jobs = (job,)
    found += ["sequence-beyond-positions"] * any(_beyond_positions(one) for one in jobs)
    return list(dict.fromkeys(found))


def _beyond_positions(job: Job) -> bool:
    """Whether sequences are longer than the rotary positions the model knows; learned ones refuse such a job."""
    longest = job.model.max_position_embeddings
    return job.model.position_embedding == "rope" and longest is not None and job.training.seq_length > longest
