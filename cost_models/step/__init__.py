"""From layers to a training step: stages, pipeline, replicas, optimizer, offload, and the range of the sum."""
