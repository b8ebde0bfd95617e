"""The benchmarks: each module turns a rig into tasks, each task into samples of the calibration document.

A task is what a budget adds or leaves out and what a rerun skips: a second or two of work under a stable key.
"""
