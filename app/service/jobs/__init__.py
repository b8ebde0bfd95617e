"""Jobs: what runs them (`JobRunner`), the embedded pool of worker processes, and the work itself."""
