"""What this machine is (`fingerprint.py`), how its devices are linked (`topology.py`), what state they are in (`device_state.py`, by
`nvml.py`), and what would spoil a measurement on it (`doctor.py`).
"""
