"""Tuning of run-time knobs by measured steps."""
