"""Models that xlapipe compiles: Flax NNX modules, their workloads and their expectations.

Importing this package, or a model's package, imports neither jax nor flax.
"""
