"""What is trained and on what, resolved: frozen dataclasses in SI base units that everything inside works with.

`model` holds sizes and layer kinds, `cluster` the GPUs, nodes and links, `training` the batch, precision and framework. How users
write them, and how that is read, is in `cost_models/inputs/`.
"""
