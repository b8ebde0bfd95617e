"""Real training steps of one plan: what the planner predicts, measured.

A trial builds the model of an evaluate row with random weights, splits it as the row's strategy says, and times whole optimizer steps.
It runs in processes of its own (`launch`), so that running out of memory, a hang or a crash is a result like any other.
"""
