"""The benchmarks: each module turns a rig into tasks, and each task gives samples of the calibration document.

A task is what a budget includes or leaves out and what a rerun skips: a second or two of work under a stable key. Its `value` is
its place in the order. Below 40 stand the facts without which a plan is priced from the data sheet, from 40 on what refines the
prices of common plans, and from 120 on what few plans need or what takes long, such as compiling.
"""
