"""Measures the machine that training will run on: matrix products, attention, memory, collectives, the host.

Nothing here imports torch before something is measured, and nothing here knows the planner or the service.
"""
