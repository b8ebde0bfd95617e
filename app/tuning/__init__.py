"""Tuning by real training steps: the plans of a response are measured, and ranked again by what was found.

| look for | file |
| --- | --- |
| what a tuning found, as one JSON document | `document` |
"""
