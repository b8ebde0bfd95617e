"""What starts a launch: a script for every node, a SLURM batch script, and Kubernetes objects."""
