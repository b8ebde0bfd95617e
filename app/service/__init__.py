"""The HTTP service, complete in one process: SQLite, worker processes, no queue beside the table of jobs.

`main.py` puts it together. A request enters through `api/` (routes in `api/v1/`), is checked and turned into a job by
`intake/`, stored by `db/`, and run by `jobs/` in a worker process, which stores the answer. `parts.py` names what one
running service consists of, `auth.py` says who is asking, and `logs.py` and `metrics.py` are what operators see.
"""
