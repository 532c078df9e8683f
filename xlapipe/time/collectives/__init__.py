"""How collectives are laid over a network, and how long they then take."""
