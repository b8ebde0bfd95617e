"""Launch files from a plan, and rows from the launch files that somebody already has.

A target is what files are written for: a framework, or a front end of one. Its writer says every quantity of a plan in the
target's own keys, and its reader takes them back; both work on `Quantities` and `Settings`, which keep account of what was said
and what was understood, so that nothing is dropped in silence on either way.
"""
