"""What this machine can do: measuring, fitting and uploading. May import `cost_models`, never `planner` or `app`."""
