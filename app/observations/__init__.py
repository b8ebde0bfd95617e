"""Runs that users have measured: read from a log or told, set beside the prediction for the same row, and judged for what they are worth."""
