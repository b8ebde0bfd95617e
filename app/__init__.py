"""The service and the command line: HTTP, storage, jobs. Everything about cost and search is asked of `planner`."""
