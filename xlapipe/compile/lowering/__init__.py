"""From a Workload to a lowered program: the code that traces and lowers with jax."""
