"""Jobs and what runs them. `runner.py` is what the service asks of any runner; `embedded_runner.py` is the one that is complete
on one machine, and `assembly.py` makes it from the settings. It hands jobs to worker processes: `worker_process.py` is one of them as the service sees it, `worker.py` its
inside, and `plan_task.py` the work itself. `watchers.py` wakes who waits for a job.
"""
