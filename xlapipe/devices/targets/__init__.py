"""GPUs to compile for (targets), and the hosts that they are in (topologies)."""
