"""Answers that are computed while a client waits and that nothing stores: evaluations, judgements, launch files, pages of a report.

They are computed in processes of their own, so that a long list of rows slows nobody down who asks for something else. `pool.py`
is what a route asks; `line.py` says whose turn it is; `answering_process.py` is one of the processes as the service sees it, and
`inside.py` its inside. `forker.py` starts them, and `messages.py` is what both sides say to each other.
"""
