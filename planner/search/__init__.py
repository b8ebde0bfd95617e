"""Searchers: each takes a space and returns the best strategies with a proof of how good they are."""
