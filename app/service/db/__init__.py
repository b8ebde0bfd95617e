"""Storage: `tables.py` (SQLAlchemy Core), `engine.py` (one factory for SQLite and PostgreSQL), `migrate.py` with `migrations/`, and
one repository per kind of object: `jobs.py`, `plans.py`, `calibrations.py`, `keys.py`. `plan_result.py` is what a finished
plan leaves to store.
"""
