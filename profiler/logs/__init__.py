"""Training logs read into one number for the step and one for memory, with what kind of number each is.

`read.read_log` is the entrance, `reading` says what a reader is, and `summary` makes one number of its samples. Every format has
a reader, which declares whether its numbers are of single steps, means of an interval, of a rolling window or of the whole run, which
counter of memory they show, and how many digits they have. Nothing here imports torch or the planner.
"""
