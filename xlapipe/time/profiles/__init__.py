"""GPU profiles joined with the instructions of a plan."""
