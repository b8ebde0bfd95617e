"""Tuning of run-time knobs by measured steps: `tuning.py` is one tuning, `storage.py` the database that keeps it."""
