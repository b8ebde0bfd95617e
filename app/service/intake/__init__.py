"""From a posted document to a job: `plan_requests.py` checks it, `own_calibrations.py` finds the tenant's calibrations that it
names, and `examples.py` stores the objects that the API's documentation refers to.
"""
