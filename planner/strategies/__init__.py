"""Strategies as users write them, what frameworks default to, and the space a search chooses from."""
