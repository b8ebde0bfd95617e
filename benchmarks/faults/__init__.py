"""A small installation of meshwright on PostgreSQL, to which things happen: see `benchmarks/service_faults.py`."""
