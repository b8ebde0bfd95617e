"""The service and the command line. Everything about cost and search is asked of `planner`.

| room | what is there |
| --- | --- |
| `cli/` | the command line: commands, what they read and print, the HTTP client behind `--server` |
| `service/` | the HTTP service: routes, storage, jobs and their worker processes |
| `knobs/` | tuning of run-time knobs by measured steps, for Python programs and the command line |
| `errors.py` | every error of the two, its HTTP status, and the document it is sent as |
| `settings.py` | what a deployment can choose |
"""
