"""Tunings on registered agents: when they begin, which plan is tried next, and what they found.

| look for | file |
| --- | --- |
| who is given which trial, and when a tuning ends | `conductor` |
| what an agent is given, and the record of a trial that could not be run | `trial_jobs` |
| the trials of the best plan's run-time knobs | `knob_trials` |
| the document of a tuning | `documents` |
| studies of tunings that are gone | `left_studies` |
"""
