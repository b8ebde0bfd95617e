"""The service: HTTP, storage, jobs."""
