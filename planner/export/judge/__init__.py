"""Somebody's own configuration beside the best plan for the same job, and the difference as changes of their own files."""
